//! Working contexts: checkpoint, resume, list.
use std::{collections::BTreeMap, sync::Arc};

use axum::http::StatusCode;
use rhizome_identity::{Authority, SpaceId};
use rhizome_memory::{CheckpointRequest, ContextPatch, ContextState, Note, SandboxRef};
use rhizome_sandbox::{Contract, Reliance, SandboxInfo};
use tracing::debug;

use super::{
    caller::Caller,
    fail,
    names::Names,
    node::{Node, blocking},
    runtime::Reader,
    sandbox::Bound,
};
use crate::{
    api::types::{
        SCHEMA,
        context::{
            CheckpointBody, Context, ContextParams, ContextSummary, Contexts, ContextsParams,
            Entry, Line, Verification, VerifiedFragment, WorkedIn,
        },
        memory::Published,
    },
    error::ApiError,
};

/// The label of a sandbox that names the work done in it: a space and a task a line, the newest last.
pub(crate) const WORK_LABEL: &str = "rhizome.contexts";
/// Most lines of it.
const MAX_WORK: usize = 16;

impl Node {
    /// Adds to the context of a task; answers when that is durable here.
    pub(crate) async fn checkpoint(
        &self,
        caller: &Caller,
        body: CheckpointBody,
    ) -> Result<Published, ApiError> {
        let agent = caller.agent(self, body.agent.as_deref()).await?;
        let space = caller.space(self, body.space.as_deref())?;
        // Where the work is done is the node's to say: a guest cannot claim another's sandbox.
        let sandbox = caller.guest().map(|guest| SandboxRef {
            id: guest.sandbox.clone(),
            image: Some(guest.image.clone()),
            node: Some(self.id().to_string()),
            snapshot: None,
        });
        let requires = body
            .requires
            .map(super::memory::parse_contract)
            .transpose()?;
        let patch = self.screen_patch(ContextPatch {
            requires: requires.map(Into::into),
            goal: body.goal,
            status: body.status,
            explored: body.explored,
            decisions: body.decisions,
            errors: body.errors,
            questions: body.questions,
            resolved_questions: body.resolved_questions,
            next: body.next,
            artifacts: body.artifacts,
            sandbox: None,
        })?;
        if patch.is_empty() {
            return Err(ApiError::bad_request("the checkpoint changes nothing")
                .hint("give a goal, a status, steps, decisions, errors, questions or artifacts"));
        }
        let mut task = body.task;
        self.screen("task", &mut task)?;
        let request = CheckpointRequest {
            space,
            task: task.clone(),
            patch: ContextPatch { sandbox, ..patch },
            fingerprint: caller.fingerprint(self),
        };
        let replica = self.replica.clone();
        let published = blocking(move || replica.checkpoint(&agent.key, request))
            .await?
            .map_err(fail::publish)?;
        if let Some(guest) = caller.guest() {
            self.note_work(&guest.sandbox, &space, &task).await;
        }
        Ok(Published {
            schema: SCHEMA,
            id: published.id.to_string(),
            doc: published.doc.to_string(),
            space: space.to_string(),
            seq: published.seq,
            at_ms: published.hlc.unix_ms(),
            replicas: Vec::new(),
            confirmed: false,
        })
    }

    /// Returns the context of a task, each of its fragments read again from disk and checked.
    pub(crate) async fn context(
        &self,
        caller: &Caller,
        params: ContextParams,
    ) -> Result<Context, ApiError> {
        let space = caller.space(self, params.space.as_deref())?;
        let place = self.place_of(caller, params.sandbox.as_deref())?;
        let (replica, task) = (self.replica.clone(), params.task);
        let verify = params.verify != Some(0);
        let (task, found, checked) = blocking(move || {
            let found = replica.context(&space, &task).map_err(fail::replica)?;
            let checked = match (&found, verify) {
                (Some(_), true) => Some(
                    replica
                        .verify_context(&space, &task)
                        .map_err(fail::replica)?,
                ),
                _ => None,
            };
            Ok::<_, ApiError>((task, found, checked))
        })
        .await??;
        let authority = self.replica.authority();
        let state = found.ok_or_else(|| {
            let space = Names(&authority).space(&space);
            let message = format!(
                "no context of the task `{}` is in the space `{space}`",
                super::memory::clip(&task)
            );
            ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
                .hint("`rhizome context list` shows the contexts that are here")
        })?;
        let mut context = context_of(&authority, state);
        if let Some(place) = place {
            let spaces = caller.readable(self, None)?.0;
            self.compare_context(&place, spaces, &mut context).await?;
            if params.resume == Some(1) && params.force != Some(1) && !context.breaks.is_empty() {
                return Err(broken_here(&place, &context));
            }
        }
        context.verification = checked.map(|checked| verification_of(&authority, checked));
        Ok(context)
    }

    /// Returns the sandbox that a context is to go on in, if there is one.
    fn place_of(
        &self,
        caller: &Caller,
        wanted: Option<&str>,
    ) -> Result<Option<SandboxInfo>, ApiError> {
        match (caller.guest(), wanted) {
            (Some(_), Some(_)) => Err(ApiError::denied(
                "a context goes on in the sandbox that asks for it",
            )
            .hint("leave `sandbox` out")),
            (Some(guest), None) => Ok(self.find_sandbox(&guest.sandbox).ok()),
            (None, wanted) => wanted
                .map(|wanted| self.find_sandbox_for(caller, wanted))
                .transpose(),
        }
    }

    /// Says in a context how its runtime differs from a sandbox's, and what does not hold there.
    async fn compare_context(
        &self,
        place: &SandboxInfo,
        spaces: Vec<SpaceId>,
        context: &mut Context,
    ) -> Result<(), ApiError> {
        let Ok(runtime) = context.fingerprint.parse() else {
            return Ok(());
        };
        let lines = context.requires.iter();
        let requires: Vec<_> = lines.map(|line| line.value.what.clone()).collect();
        let mut reader = Reader::of(place.fingerprint.clone(), spaces);
        let (replica, runtimes) = (self.replica.clone(), Arc::clone(&self.runtimes));
        let standing =
            blocking(move || reader.standing(&runtimes, &replica, &runtime, &requires)).await?;
        (context.differs, context.breaks) = (standing.differs, standing.breaks);
        Ok(())
    }

    /// Writes down with a sandbox which work is done in it: the label goes where the sandbox goes,
    /// so that a node that wakes it finds what the work relies on.
    async fn note_work(&self, sandbox: &str, space: &SpaceId, task: &str) {
        let line = format!("{space} {task}");
        let Ok(info) = self.find_sandbox(sandbox) else {
            return;
        };
        let known = info.labels.get(WORK_LABEL);
        if known.is_some_and(|known| known.lines().last() == Some(&line)) || task.contains('\n') {
            return;
        }
        let Ok(sandboxes) = self.sandboxes().cloned() else {
            return;
        };
        let noted = blocking(move || {
            sandboxes.change_labels(&info.id, |labels| {
                let work = labels.entry(WORK_LABEL.to_owned()).or_default();
                *work = with_work(work, &line);
            })
        });
        match noted.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%sandbox, %error, "which work is done there is not noted"),
            Err(error) => debug!(%sandbox, %error, "which work is done there is not noted"),
        }
    }

    /// Returns what the work that was done in a sandbox relies on, as far as it is known here.
    pub(crate) async fn reliances(
        &self,
        labels: &BTreeMap<String, String>,
    ) -> Result<Vec<Reliance>, ApiError> {
        let Some(work) = labels.get(WORK_LABEL) else {
            return Ok(Vec::new());
        };
        // The label came with the sandbox, maybe from elsewhere: it opens no other space.
        let spaces = Bound::of_labels(labels).spaces;
        let work: Vec<(SpaceId, String)> = work
            .lines()
            .filter_map(|line| {
                let (space, task) = line.split_once(' ')?;
                Some((space.parse().ok()?, task.to_owned()))
            })
            .filter(|(space, _)| spaces.contains(space))
            .take(MAX_WORK)
            .collect();
        let replica = self.replica.clone();
        blocking(move || {
            let mut reliances = Vec::new();
            for (space, task) in work {
                let Some(state) = replica.context(&space, &task).map_err(fail::replica)? else {
                    continue;
                };
                let lines = state.requires.into_iter();
                let contract = Contract::of_readable(lines.map(|line| line.value.text));
                if !contract.is_empty() {
                    reliances.push(Reliance {
                        by: format!("the context of the task `{}`", super::memory::clip(&task)),
                        contract,
                    });
                }
            }
            Ok(reliances)
        })
        .await?
    }

    /// Lists contexts, last touched first.
    pub(crate) async fn contexts(
        &self,
        caller: &Caller,
        params: ContextsParams,
    ) -> Result<Contexts, ApiError> {
        let scope = caller.readable(self, params.space.as_deref())?;
        let replica = self.replica.clone();
        let mut found = blocking(move || {
            let mut found = Vec::new();
            for space in scope.0 {
                found.extend(replica.contexts(Some(space)).map_err(fail::replica)?);
            }
            Ok::<_, ApiError>(found)
        })
        .await??;
        found.sort_by_key(|context| std::cmp::Reverse((context.hlc, context.doc)));
        let authority = self.replica.authority();
        let names = Names(&authority);
        let contexts = found
            .into_iter()
            .map(|context| ContextSummary {
                doc: context.doc.to_string(),
                space: names.space(&context.space),
                task: context.task,
                goal: context.goal,
                status: context.status,
                by: names.agent(&context.by),
                node: names.node(&context.node),
                at_ms: context.at_ms,
                fragments: context.fragments,
            })
            .collect();
        Ok(Contexts {
            schema: SCHEMA,
            contexts,
        })
    }
}

/// Adds a line to the work of a sandbox; the newest are kept, each once.
fn with_work(work: &str, line: &str) -> String {
    let others = work.lines().filter(|known| *known != line);
    let mut lines: Vec<_> = others.chain([line]).collect();
    let surplus = lines.len().saturating_sub(MAX_WORK);
    lines.drain(..surplus);
    lines.join("\n")
}

/// The work cannot go on in a sandbox: what it relies on does not hold there.
fn broken_here(place: &SandboxInfo, context: &Context) -> ApiError {
    let message = format!(
        "the runtime of sandbox {} is not what the context of the task `{}` relies on: {}",
        place.id,
        super::memory::clip(&context.task),
        context.breaks.join("; ")
    );
    let refused = ApiError::new(StatusCode::CONFLICT, "contract_broken", message)
        .hint("resume it where that holds, or go on all the same with `--force`");
    if context.differs.is_empty() {
        return refused;
    }
    let differs = format!("the runtimes differ: {}", context.differs.join("; "));
    refused.caused_by(Some(&ApiError::not_found(differs)))
}

fn context_of(authority: &Authority, state: ContextState) -> Context {
    let names = Names(authority);
    let line = |note: Note| Line { what: note.text };
    Context {
        schema: SCHEMA,
        doc: state.doc.to_string(),
        space: names.space(&state.space),
        task: state.task,
        goal: state.goal.map(|goal| goal.value.text),
        status: state.status.map(|status| status.value.text),
        explored: entries(names, state.explored, |value| value),
        decisions: entries(names, state.decisions, |value| value),
        errors: entries(names, state.errors, |value| value),
        questions: entries(
            names,
            state
                .questions
                .into_iter()
                .filter(|question| !question.value.resolved),
            |question| Line {
                what: question.text,
            },
        ),
        next: entries(names, state.next, line),
        artifacts: entries(names, state.artifacts, |value| value),
        requires: entries(names, state.requires, line),
        fingerprint: state.fingerprint.to_string(),
        differs: Vec::new(),
        breaks: Vec::new(),
        sandbox: entries(names, state.sandbox, |value| WorkedIn {
            id: value.id,
            image: value.image,
            snapshot: value.snapshot,
        })
        .pop(),
        verification: None,
    }
}

fn entries<A, B>(
    names: Names<'_>,
    from: impl IntoIterator<Item = rhizome_memory::Entry<A>>,
    value: impl Fn(A) -> B,
) -> Vec<Entry<B>> {
    from.into_iter()
        .map(|entry| Entry {
            value: value(entry.value),
            by: names.agent(&entry.by),
            node: names.node(&entry.node),
            at_ms: entry.at_ms,
            fragment: entry.fragment.to_string(),
        })
        .collect()
}

fn verification_of(authority: &Authority, checked: rhizome_memory::Verification) -> Verification {
    let names = Names(authority);
    Verification {
        total: checked.fragments.len(),
        ok: checked.passed(),
        fragments: checked
            .fragments
            .into_iter()
            .map(|fragment| VerifiedFragment {
                id: fragment.id.to_string(),
                author: names.agent(&fragment.author),
                node: names.node(&fragment.node),
                seq: fragment.seq,
                at_ms: fragment.hlc.unix_ms(),
                ok: fragment.ok,
                problem: fragment.problem,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_work_is_kept_each_once() {
        let mut work = String::new();
        for number in 0..MAX_WORK + 3 {
            work = with_work(&work, &format!("s task {number}"));
        }
        work = with_work(&work, "s task 7");
        let lines: Vec<_> = work.lines().collect();
        assert_eq!(
            (lines.len(), lines[0], lines[MAX_WORK - 1]),
            (MAX_WORK, "s task 3", "s task 7")
        );
        assert_eq!(lines.iter().filter(|line| **line == "s task 7").count(), 1);
    }
}
