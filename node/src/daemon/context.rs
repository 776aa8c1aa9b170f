//! Working contexts: checkpoint, resume, list.
use axum::http::StatusCode;
use rhizome_identity::Authority;
use rhizome_memory::{CheckpointRequest, ContextPatch, ContextState, Note, SandboxRef};

use super::{
    caller::Caller,
    fail,
    names::Names,
    node::{Node, blocking},
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
        let patch = ContextPatch {
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
        };
        if patch.is_empty() {
            return Err(ApiError::bad_request("the checkpoint changes nothing")
                .hint("give a goal, a status, steps, decisions, errors, questions or artifacts"));
        }
        let request = CheckpointRequest {
            space,
            task: body.task,
            patch: ContextPatch { sandbox, ..patch },
            fingerprint: caller.fingerprint(self),
        };
        let replica = self.replica.clone();
        let published = blocking(move || replica.checkpoint(&agent.key, request))
            .await?
            .map_err(fail::publish)?;
        Ok(Published {
            schema: SCHEMA,
            id: published.id.to_string(),
            doc: published.doc.to_string(),
            space: space.to_string(),
            seq: published.seq,
            at_ms: published.hlc.unix_ms(),
            replicas: Vec::new(),
        })
    }

    /// Returns the context of a task, each of its fragments read again from disk and checked.
    pub(crate) async fn context(
        &self,
        caller: &Caller,
        params: ContextParams,
    ) -> Result<Context, ApiError> {
        let space = caller.space(self, params.space.as_deref())?;
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
        context.verification = checked.map(|checked| verification_of(&authority, checked));
        Ok(context)
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
