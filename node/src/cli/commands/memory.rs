//! `rhizome memory publish|recall|show|history|list|retract|redact|watch|why|import`.

mod files;
mod redact;

use std::{collections::BTreeMap, io::Read};

use clap::{Args, Subcommand};
use futures::StreamExt;

use super::{Context, Failure, short};
use crate::{
    api::types::memory::{
        Memory, MemoryHistory, MemoryList, MemoryShown, PublishBody, Published, RecallBody,
        Recalled, WatchEvent, Why, WhyRecord, WhyState,
    },
    cli::{
        client::{encode, with_query},
        ui::{headline, plain, utc},
    },
};

/// The largest text that is read from standard input, in bytes; the daemon's own limit is lower.
const MAX_STDIN_BYTES: u64 = 1024 * 1024;

/// What to do with memories.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Publish a memory; it is durable on this node when this returns
    #[command(after_help = "Examples:
  rhizome memory publish --kind fact --title 'the build needs cmake 3.28'
  rhizome memory publish --kind error --title 'tests time out' --text - --replicas 1 < log")]
    Publish(Box<Publish>),
    /// Find memories by a question in any words
    #[command(
        after_help = "Example:\n  rhizome memory recall why do the tests time out --kind fix"
    )]
    Recall(Recall),
    /// Show one memory
    Show {
        /// Document id, or a unique prefix of it
        doc: String,
    },
    /// Show what was ever said in a memory, and in those it replaces or that replace it
    History {
        /// Document id
        doc: String,
    },
    /// Take a memory back: no node shows it any more; its signed history stays
    #[command(
        after_help = "A memory that holds a secret is hidden by this, not erased: use `rhizome memory redact`,\nand change the secret."
    )]
    Retract {
        /// Document id
        doc: String,
        /// Agent to speak as, by name or id; the node's own by default
        #[arg(long)]
        agent: Option<String>,
        /// Space, by name or id
        #[arg(long)]
        space: Option<String>,
    },
    /// Redact a memory: what it says goes from the disk of every node, for good; its signed headers stay
    #[command(after_help = "Example:
  rhizome memory redact 4f3c… --reason 'held a live token' --yes

Its author may, another agent of that node, and an admin of the space. A node that is offline
does it when it comes back. Nobody can make a person forget, nor a node that will not obey: a
secret that was published has to be changed all the same.")]
    Redact(redact::Redact),
    /// Bring in the file of the reference MCP memory server
    #[command(
        after_help = "Example:\n  rhizome memory import memory.jsonl --space findings

Damaged lines are named with their number, all others are kept. What is there already is left
alone: an import can be repeated."
    )]
    Import(super::import::Import),
    /// List memories, newest first
    List {
        /// Space, by name or id
        #[arg(long)]
        space: Option<String>,
        /// Only this kind
        #[arg(long)]
        kind: Option<String>,
        /// Only this task
        #[arg(long)]
        task: Option<String>,
        /// Only those whose key begins so, in the order of their keys
        #[arg(long, value_name = "KEY")]
        key_prefix: Option<String>,
        /// At most this many
        #[arg(long)]
        limit: Option<usize>,
    },
    /// Print memories as they arrive
    Watch {
        /// Space, by name or id
        #[arg(long)]
        space: Option<String>,
        /// Start after this arrival number; 0 prints everything, `now` only what is new
        #[arg(long, default_value = "now")]
        after: String,
        /// Stop at the present instead of waiting for more
        #[arg(long)]
        no_follow: bool,
    },
    /// Explain a fragment: who signed it, through which chain, what became of it
    Why {
        /// Fragment id, or a unique prefix of it
        fragment: String,
    },
    /// List and show files of memory, and sync them with directories
    #[command(subcommand)]
    Files(files::Verb),
}

/// What to publish.
#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// Agent to speak as, by name or id; the node's own by default
    #[arg(long)]
    agent: Option<String>,
    /// Space, by name or id; may be left out where there is only one
    #[arg(long)]
    space: Option<String>,
    /// observation, attempt, decision, error, fix, fact, preference, rule, outcome or artifact
    #[arg(long)]
    kind: String,
    /// One line
    #[arg(long)]
    title: String,
    /// The memory itself; `-` reads it from standard input
    #[arg(long, default_value = "")]
    text: String,
    /// Word to find it by; repeat for several
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Publishing again under the same kind and key changes that memory
    #[arg(long)]
    key: Option<String>,
    /// Task it belongs to
    #[arg(long)]
    task: Option<String>,
    /// What it rests on: a path, a command, a link; repeat for several
    #[arg(long, value_name = "WHAT")]
    evidence: Vec<String>,
    /// Document it replaces; repeat for several
    #[arg(long, value_name = "DOC")]
    supersedes: Vec<String>,
    /// Document it builds on; repeat for several
    #[arg(long, value_name = "DOC")]
    depends_on: Vec<String>,
    /// What it relies on in the runtime, such as `python3>=3.11` or `env:HOME`; repeat for several
    #[arg(long, value_name = "REQUIREMENT")]
    requires: Vec<String>,
    /// Further named value; repeat for several
    #[arg(long = "field", value_name = "NAME=VALUE", value_parser = field)]
    fields: Vec<(String, String)>,
    /// Return only after this many other nodes hold it durably
    #[arg(long, value_name = "N")]
    replicas: Option<u16>,
}

/// What to recall.
#[derive(Debug, Args)]
pub(crate) struct Recall {
    /// The question
    #[arg(required = true)]
    words: Vec<String>,
    /// Space, by name or id; all readable ones by default
    #[arg(long)]
    space: Option<String>,
    /// Only this kind; repeat for several
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 10)]
    limit: usize,
}

pub(crate) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Publish(args) => publish(context, *args).await,
        Verb::Recall(args) => recall(context, args).await,
        Verb::Show { doc } => show(context, &doc).await,
        Verb::History { doc } => history(context, &doc).await,
        Verb::Retract { doc, agent, space } => {
            let path = format!("/v1/memory/{}", encode(&doc));
            let path = with_query(&path, &[("agent", agent), ("space", space)]);
            let published: Published = context.client.delete(&path).await?;
            if context.ui.is_json() {
                return context.ui.object(&published);
            }
            context.ui.line(&format!("took back {}", published.doc))
        }
        Verb::Redact(args) => redact::run(context, args).await,
        Verb::Import(args) => super::import::run(context, args).await,
        Verb::List {
            space,
            kind,
            task,
            key_prefix,
            limit,
        } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = [
                ("space", space),
                ("kind", kind),
                ("task", task),
                ("key_prefix", key_prefix),
                ("limit", limit),
            ];
            list(context, &with_query("/v1/memory", &query)).await
        }
        Verb::Watch {
            space,
            after,
            no_follow,
        } => {
            let follow = Some(u8::from(!no_follow).to_string());
            let query = [("space", space), ("after", Some(after)), ("follow", follow)];
            watch(context, &with_query("/v1/watch", &query)).await
        }
        Verb::Why { fragment } => why(context, &fragment).await,
        Verb::Files(verb) => files::run(context, verb).await,
    }
}

async fn publish(context: &Context, args: Publish) -> Result<(), Failure> {
    let body = PublishBody {
        agent: args.agent,
        space: args.space,
        kind: args.kind,
        title: args.title,
        text: text_or_stdin(args.text)?,
        tags: args.tags,
        key: args.key,
        task: args.task,
        evidence: args.evidence,
        supersedes: args.supersedes,
        depends_on: args.depends_on,
        requires: args.requires,
        fields: args.fields.into_iter().collect::<BTreeMap<_, _>>(),
        replicas: args.replicas,
        replicas_timeout_ms: None,
    };
    let published: Published = context.client.post("/v1/memory", &body).await?;
    if context.ui.is_json() {
        return context.ui.object(&published);
    }
    context.ui.line(&format!(
        "published {} as number {} of its author",
        published.id, published.seq
    ))?;
    context.ui.line(&format!("document {}", published.doc))?;
    if published.confirmed {
        let said = "it was said before in these words: counted as a confirmation";
        context.ui.line(said)?;
    }
    if !published.replicas.is_empty() {
        context.ui.line(&format!(
            "also durable on {}",
            super::names(&published.replicas, "-")
        ))?;
    }
    Ok(())
}

async fn recall(context: &Context, args: Recall) -> Result<(), Failure> {
    let Recall {
        words,
        space,
        kinds,
        task,
        limit,
    } = args;
    let body = RecallBody {
        query: words.join(" "),
        space,
        kinds,
        task,
        limit: Some(limit),
    };
    let answer: Recalled = context.client.post("/v1/recall", &body).await?;
    if context.ui.is_json() {
        return answer
            .hits
            .iter()
            .try_for_each(|hit| context.ui.object(hit));
    }
    if answer.hits.is_empty() {
        context.ui.status("nothing found");
    }
    for hit in &answer.hits {
        context.ui.line(&context.ui.bold(&format!(
            "{:.2}  {}",
            hit.score,
            heading(&hit.memory)
        )))?;
        write_text(context, &hit.memory.text, 6)?;
    }
    Ok(())
}

async fn show(context: &Context, doc: &str) -> Result<(), Failure> {
    let answer: MemoryShown = context
        .client
        .get(&format!("/v1/memory/{}", encode(doc)))
        .await?;
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&answer);
    }
    let memory = &answer.memory;
    ui.line(&ui.bold(&heading(memory)))?;
    write_text(context, &memory.text, usize::MAX)?;
    let mut facts = vec![
        ("document", memory.doc.clone()),
        ("fragment", memory.id.clone()),
        ("space", memory.space.to_string()),
        ("tags", memory.tags.join(", ")),
        ("key", memory.key.clone().unwrap_or_default()),
        ("task", memory.task.clone().unwrap_or_default()),
        ("evidence", memory.evidence.join("; ")),
        ("builds on", memory.depends_on.join(", ")),
        ("replaces", memory.supersedes.join(", ")),
        ("replaced by", memory.superseded_by.join(", ")),
        ("runtime", memory.fingerprint.clone()),
        ("relies on", memory.requires.join("; ")),
    ];
    if memory.confirmations > 1 {
        let said = format!(
            "{} times by {} agents",
            memory.confirmations, memory.confirmed_by
        );
        facts.push(("said", said));
    }
    let conflicts: Vec<_> = memory.conflicts.iter().map(ToString::to_string).collect();
    facts.push(("conflicts", conflicts.join("; ")));
    facts.extend(
        memory
            .fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone())),
    );
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        ui.line(&format!("{name}: {}", plain(value)))?;
    }
    Ok(())
}

async fn history(context: &Context, doc: &str) -> Result<(), Failure> {
    let path = format!("/v1/memory/{}/history", encode(doc));
    let answer: MemoryHistory = context.client.get(&path).await?;
    if context.ui.is_json() {
        return context.ui.object(&answer);
    }
    for memory in &answer.statements {
        let mark = if memory.fields.contains_key("retracted") {
            "  (takes it back)"
        } else if memory.superseded_by.is_empty() {
            ""
        } else {
            "  (superseded)"
        };
        let heading = format!("{}{mark}", heading(memory));
        context.ui.line(&context.ui.bold(&heading))?;
        write_text(context, &memory.text, 6)?;
    }
    Ok(())
}

async fn list(context: &Context, path: &str) -> Result<(), Failure> {
    let answer: MemoryList = context.client.get(path).await?;
    let columns = ["document", "when", "kind", "author", "node", "title"];
    context.ui.list(
        &answer.memories,
        "no memories",
        columns,
        |memory: &Memory| {
            [
                short(&memory.doc),
                utc(memory.at_ms),
                memory.kind.clone(),
                memory.author.to_string(),
                memory.node.to_string(),
                headline(&memory.title, 80),
            ]
        },
    )
}

async fn watch(context: &Context, path: &str) -> Result<(), Failure> {
    let mut lines = context.client.get_lines(path).await?;
    while let Some(line) = lines.next().await {
        let line = line?;
        if let Some(failure) = Failure::from_line(&line) {
            return Err(failure);
        }
        if context.ui.is_json() {
            context.ui.line(&line)?;
            continue;
        }
        let event: WatchEvent =
            serde_json::from_str(&line).map_err(|error| Failure::Protocol(error.to_string()))?;
        let (at, author, node) = (utc(event.at_ms), &event.author, &event.node);
        let title = headline(&event.title, 120);
        context.ui.line(&format!(
            "{:>6}  {at}  {author} on {node}  {}: {title}",
            event.arrival, event.kind
        ))?;
    }
    Ok(())
}

async fn why(context: &Context, fragment: &str) -> Result<(), Failure> {
    let why: Why = context
        .client
        .get(&format!("/v1/why/{}", encode(fragment)))
        .await?;
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&why);
    }
    ui.line(&ui.bold(&format!("fragment {}", why.id)))?;
    let state = match &why.state {
        WhyState::Applied => "part of the view".to_owned(),
        WhyState::Waiting {
            what,
            named_by,
            named_by_author,
        } => {
            let by = named_by
                .as_deref()
                .map(|by| format!(", named by {}", short(by)));
            let author = named_by_author
                .as_ref()
                .map(|author| format!(" of {author}"));
            format!(
                "waits for {what}{}{}",
                by.unwrap_or_default(),
                author.unwrap_or_default()
            )
        }
        WhyState::Quarantined { reason } => format!("in quarantine: {reason}"),
        WhyState::Redacted { redacted: by } => format!(
            "redacted by {} on {} at {}{}",
            by.author,
            by.node,
            utc(by.at_ms),
            by.reason
                .as_ref()
                .map(|reason| format!(" because: {reason}"))
                .unwrap_or_default()
        ),
        WhyState::SetAside { up_to, by, carried } => set_aside(*up_to, by, *carried),
        WhyState::Other { what } => what.clone(),
    };
    ui.line(&format!("state: {}", plain(&state)))?;
    ui.line(&format!(
        "signed by {} ({}) on {} at {}, number {} in its chain in {}",
        why.author,
        short(&why.author.id),
        why.node,
        utc(why.at_ms),
        why.seq,
        why.space
    ))?;
    ui.line(&format!(
        "after: {}",
        why.prev.as_deref().unwrap_or("nothing, it is the first")
    ))?;
    ui.line(&format!(
        "document: {} ({}), {} bytes",
        why.doc, why.kind, why.body_len
    ))?;
    if let Some(fork) = &why.fork {
        ui.line(&format!(
            "fork: its author signed two histories here: {} counts, {} is kept as evidence",
            fork.ours, fork.theirs
        ))?;
    }
    if !why.auth_heads.is_empty() {
        let heads: Vec<String> = why.auth_heads.iter().map(|head| short(head)).collect();
        ui.line(&format!("knew of the authority log: {}", heads.join(", ")))?;
    }
    if let Some(denied) = &why.denied {
        ui.line(&format!("denied: {}", plain(denied)))?;
    }
    ui.line("because:")?;
    for record in &why.chain {
        ui.line(&format!(
            "  {} {}: {}",
            short(&record.id),
            record.kind,
            plain(&record.says)
        ))?;
    }
    Ok(())
}

/// Says why a fragment does not count.
fn set_aside(up_to: Option<u64>, by: &[WhyRecord], carried: bool) -> String {
    let reach = match up_to {
        Some(seq) => format!("its author's chain counts up to number {seq}"),
        None => "nothing of its author's chain counts".to_owned(),
    };
    let by: Vec<String> = by
        .iter()
        .map(|record| format!("; {} {}: {}", short(&record.id), record.kind, record.says))
        .collect();
    let carried = if carried {
        "; it is kept because what counts builds on it"
    } else {
        ""
    };
    format!("set aside: {reach}{}{carried}", by.concat())
}

/// Names a memory and whose word it is: what follows is that author's, not ours.
fn heading(memory: &Memory) -> String {
    format!(
        "{}: {}  [{} on {}, {}]",
        memory.kind,
        headline(&memory.title, 160),
        memory.author,
        memory.node,
        utc(memory.at_ms)
    )
}

fn write_text(context: &Context, text: &str, limit: usize) -> Result<(), Failure> {
    let text = plain(text);
    for line in text.lines().take(limit) {
        context.ui.line(&format!("  | {line}"))?;
    }
    let rest = text.lines().count().saturating_sub(limit);
    if rest > 0 {
        context.ui.line(&format!("  | … {rest} more lines"))?;
    }
    Ok(())
}

fn text_or_stdin(text: String) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text);
    }
    let mut text = String::new();
    let read = std::io::stdin()
        .take(MAX_STDIN_BYTES)
        .read_to_string(&mut text);
    read.map_err(|source| Failure::File {
        path: "-".into(),
        source,
    })?;
    Ok(text)
}

/// Parses `name=value`.
pub(super) fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}
