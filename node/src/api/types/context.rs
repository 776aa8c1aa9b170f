//! Working contexts: checkpoint, resume, list.
use std::borrow::Cow;

pub use rhizome_memory::{Artifact, Decision, ErrorEntry, Explored};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::{Named, schema_number};

/// `POST /v1/context/checkpoint`: what changed since the last checkpoint of a task.
///
/// Entries are added to what is there; `goal`, `status` and `next` replace it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointBody {
    /// Name or id of the agent; the node's own agent by default. Refused from a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name or id of the space; may be left out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// The task's name.
    pub task: String,
    /// What the task is to reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// Where it stands, in a word or a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Paths explored, with what came of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<ExploredShape>")]
    pub explored: Vec<Explored>,
    /// Decisions and their reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<DecisionShape>")]
    pub decisions: Vec<Decision>,
    /// Errors met, with cause and fix where known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<ErrorEntryShape>")]
    pub errors: Vec<ErrorEntry>,
    /// Questions that are open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<String>,
    /// Open questions that have found their answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resolved_questions: Vec<String>,
    /// The next steps, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Vec<String>>,
    /// Things made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<ArtifactShape>")]
    pub artifacts: Vec<Artifact>,
    /// What is relied on in the runtime, such as `python3>=3.11`, in the place of what was; an
    /// empty list relies on nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Vec<String>>,
}

/// The query of `GET /v1/context`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextParams {
    /// Space; may be left out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// The task's name.
    pub task: String,
    /// 0 to leave the verification out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<u8>,
    /// 1 to go on with the work: refused where what it relies on does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<u8>,
    /// 1 to go on all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<u8>,
    /// The sandbox to go on in, by id, name or prefix; a guest's own is taken by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
}

/// The query of `GET /v1/contexts`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextsParams {
    /// Space; all readable ones by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
}

/// Something somebody said in a context, and the fragment that proves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<T> {
    /// What was said.
    #[serde(flatten)]
    pub value: T,
    /// Who.
    pub by: Named,
    /// Where.
    pub node: Named,
    /// When, by the author's clock.
    pub at_ms: u64,
    /// The signed fragment it stands in.
    pub fragment: String,
}

/// What the value of an [`Entry`] looks like.
pub trait Shaped {
    /// A type that serializes alike.
    type Shape: JsonSchema;
}

impl<T: Shaped> JsonSchema for Entry<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("EntryOf{}", T::Shape::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = EntryShape::<T::Shape>::json_schema(generator);
        schema.remove("title");
        schema
    }
}

/// Something somebody said in a context, and the fragment that proves it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct EntryShape<T> {
    #[serde(flatten)]
    value: T,
    /// Who.
    by: Named,
    /// Where.
    node: Named,
    /// When, by the author's clock.
    at_ms: u64,
    /// The signed fragment it stands in.
    fragment: String,
}

/// A path that was taken.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Explored")]
pub struct ExploredShape {
    /// What was tried.
    what: String,
    /// What came of it.
    #[serde(default)]
    result: String,
}

/// A choice that was made.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub struct DecisionShape {
    /// What was decided.
    what: String,
    /// Why.
    #[serde(default)]
    why: String,
}

/// Something that went wrong.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ErrorEntry")]
pub struct ErrorEntryShape {
    /// What was seen; the entry's name in later checkpoints.
    error: String,
    /// Why it happens.
    #[serde(default)]
    cause: Option<String>,
    /// What mended it.
    #[serde(default)]
    fix: Option<String>,
    /// Where it stands, such as `open` or `fixed`.
    #[serde(default)]
    status: Option<String>,
}

/// Something that was made.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Artifact")]
pub struct ArtifactShape {
    /// Its name.
    name: String,
    /// Where it is: a path, a hash, a URL.
    #[serde(default)]
    reference: String,
}

impl Shaped for Explored {
    type Shape = ExploredShape;
}

impl Shaped for Decision {
    type Shape = DecisionShape;
}

impl Shaped for ErrorEntry {
    type Shape = ErrorEntryShape;
}

impl Shaped for Artifact {
    type Shape = ArtifactShape;
}

impl Shaped for Line {
    type Shape = Line;
}

impl Shaped for WorkedIn {
    type Shape = WorkedIn;
}

/// A plain line in an [`Entry`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// The line.
    pub what: String,
}

/// `GET /v1/context`: what an agent resumes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Context {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// Document id.
    pub doc: String,
    /// Space.
    pub space: Named,
    /// The task's name.
    pub task: String,
    /// Goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// Status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Paths explored.
    #[serde(default)]
    pub explored: Vec<Entry<Explored>>,
    /// Decisions.
    #[serde(default)]
    pub decisions: Vec<Entry<Decision>>,
    /// Errors and their fixes.
    #[serde(default)]
    pub errors: Vec<Entry<ErrorEntry>>,
    /// Open questions.
    #[serde(default)]
    pub questions: Vec<Entry<Line>>,
    /// Next steps, in order.
    #[serde(default)]
    pub next: Vec<Entry<Line>>,
    /// Artifacts.
    #[serde(default)]
    pub artifacts: Vec<Entry<Artifact>>,
    /// The sandbox it was last worked on in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Entry<WorkedIn>>,
    /// What is relied on in the runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<Entry<Line>>,
    /// The runtime of its last fragment, by its hash.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fingerprint: String,
    /// In what that differs from the runtime it is read in; absent outside a sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// What it relies on and does not hold there, with what is there instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<String>,
    /// Signature by signature, what this state rests on; absent if `verify=0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
}

/// A sandbox a task was worked on in; the [`Entry`] around it says on which node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkedIn {
    /// Sandbox id.
    pub id: String,
    /// The image it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The snapshot it can be resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// The fragments of a context, each read again from disk and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// How many fragments there are.
    pub total: usize,
    /// How many hold: hash, signature, chain and authority.
    pub ok: usize,
    /// Each of them.
    pub fragments: Vec<VerifiedFragment>,
}

/// One fragment's check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedFragment {
    /// Fragment id.
    pub id: String,
    /// Who signed it.
    pub author: Named,
    /// On which node.
    pub node: Named,
    /// Place in the author's chain.
    pub seq: u64,
    /// When, by the author's clock.
    pub at_ms: u64,
    /// Whether everything holds.
    pub ok: bool,
    /// What does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `GET /v1/contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Contexts {
    /// Schema number.
    #[serde(default = "schema_number")]
    pub schema: u32,
    /// The contexts, last touched first.
    pub contexts: Vec<ContextSummary>,
}

/// A context in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextSummary {
    /// Document id.
    pub doc: String,
    /// Space.
    pub space: Named,
    /// The task's name.
    pub task: String,
    /// Goal.
    #[serde(default)]
    pub goal: Option<String>,
    /// Status.
    #[serde(default)]
    pub status: Option<String>,
    /// Who touched it last.
    pub by: Named,
    /// Where.
    pub node: Named,
    /// When, by that author's clock.
    pub at_ms: u64,
    /// How many fragments it is made of.
    pub fragments: usize,
}
