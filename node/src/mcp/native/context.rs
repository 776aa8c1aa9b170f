//! `context`: show, checkpoint, resume, list.
use rmcp::model::{CallToolResult, JsonObject};
use serde::Deserialize;
use serde_json::json;

use crate::{
    api::types::context::{
        Artifact, CheckpointBody, Context, ContextParams, Contexts, ContextsParams, Decision,
        Entry, ErrorEntry, Explored, Line,
    },
    error::ApiError,
    mcp::{
        answer,
        session::Session,
        shown::{DATA, DATA_IN_JSON, bar, by},
    },
};

/// Contexts that are listed.
const MAX_LISTED: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Show,
    Checkpoint,
    Resume,
    List,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    action: Action,
    task: Option<String>,
    goal: Option<String>,
    status: Option<String>,
    #[serde(default)]
    explored: Vec<Explored>,
    #[serde(default)]
    decisions: Vec<Decision>,
    #[serde(default)]
    errors: Vec<ErrorEntry>,
    #[serde(default)]
    questions: Vec<String>,
    #[serde(default)]
    resolved_questions: Vec<String>,
    next: Option<Vec<String>>,
    #[serde(default)]
    artifacts: Vec<Artifact>,
    requires: Option<Vec<String>>,
}

pub(super) async fn call(
    session: &Session,
    arguments: JsonObject,
) -> Result<CallToolResult, ApiError> {
    let asked: Asked = answer::arguments(arguments)?;
    if asked.action == Action::List {
        return list(session).await;
    }
    let task = asked.task.clone().or_else(|| session.task.clone());
    let task = task.ok_or_else(|| {
        ApiError::bad_request("the call names no task").hint("give `task`, the task's name")
    })?;
    match asked.action {
        Action::Checkpoint => checkpoint(session, task, asked).await,
        Action::Resume => show(session, task, true).await,
        Action::Show | Action::List => show(session, task, false).await,
    }
}

async fn list(session: &Session) -> Result<CallToolResult, ApiError> {
    let found = contexts(session).await?;
    let mut text = format!("{} tasks. {DATA}\n", found.contexts.len());
    for context in &found.contexts {
        text.push_str(&format!(
            "\nlast touched by {}\n",
            by(&context.by, &context.node)
        ));
        bar(&context.task, &mut text);
        bar(context.goal.as_deref().unwrap_or_default(), &mut text);
        bar(context.status.as_deref().unwrap_or_default(), &mut text);
    }
    let value = json!({"action": "list", "contexts": found.contexts});
    Ok(answer::told(text, &value))
}

async fn contexts(session: &Session) -> Result<Contexts, ApiError> {
    let params = ContextsParams {
        space: session.space.clone(),
    };
    let mut found = session.node.contexts(&session.caller, params).await?;
    found.contexts.truncate(MAX_LISTED);
    Ok(found)
}

/// Returns the contexts as a resource.
pub(super) async fn all(session: &Session) -> Result<String, ApiError> {
    let found = contexts(session).await?;
    let value = json!({"about": DATA_IN_JSON, "contexts": found.contexts});
    Ok(serde_json::to_string_pretty(&value).expect("it has string keys"))
}

async fn checkpoint(
    session: &Session,
    task: String,
    asked: Asked,
) -> Result<CallToolResult, ApiError> {
    let body = CheckpointBody {
        agent: session.agent.clone(),
        space: session.space.clone(),
        task: task.clone(),
        goal: asked.goal,
        status: asked.status,
        explored: asked.explored,
        decisions: asked.decisions,
        errors: asked.errors,
        questions: asked.questions,
        resolved_questions: asked.resolved_questions,
        next: asked.next,
        artifacts: asked.artifacts,
        requires: asked.requires,
    };
    let saved = session.node.checkpoint(&session.caller, body).await?;
    let text = format!("Saved: fragment {}", saved.id);
    let value = json!({"action": "checkpoint", "task": task, "saved": saved});
    Ok(answer::told(text, &value))
}

async fn show(session: &Session, task: String, resume: bool) -> Result<CallToolResult, ApiError> {
    let params = ContextParams {
        space: session.space.clone(),
        task: task.clone(),
        // Looking is cheap; going on is worth reading every fragment again.
        verify: (!resume).then_some(0),
        resume: resume.then_some(1),
        ..ContextParams::default()
    };
    let context = session.node.context(&session.caller, params).await?;
    let action = if resume { "resume" } else { "show" };
    let text = told(&context);
    let value = json!({"action": action, "task": task, "context": context});
    Ok(answer::told(text, &value))
}

fn told(context: &Context) -> String {
    let mut text = format!("{DATA}\n");
    if let Some(checked) = &context.verification {
        text.push_str(&format!(
            "{} of {} signatures hold.\n",
            checked.ok, checked.total
        ));
    }
    let mut part = |name: &str, lines: &mut dyn Iterator<Item = String>| {
        let mut lines = lines.filter(|line| !line.is_empty()).peekable();
        if lines.peek().is_some() {
            text.push_str(&format!("\n{name}:\n"));
            for line in lines {
                text.push_str(&line);
            }
        }
    };
    part("goal", &mut context.goal.iter().map(|goal| barred(goal)));
    part(
        "status",
        &mut context.status.iter().map(|status| barred(status)),
    );
    part("next", &mut entries(&context.next, line));
    part("open questions", &mut entries(&context.questions, line));
    part(
        "decisions",
        &mut entries(&context.decisions, |it: &Decision| arrow(&it.what, &it.why)),
    );
    part(
        "explored",
        &mut entries(&context.explored, |it: &Explored| {
            arrow(&it.what, &it.result)
        }),
    );
    part(
        "errors",
        &mut entries(&context.errors, |it: &ErrorEntry| {
            let mut said = arrow(&it.error, it.fix.as_deref().unwrap_or_default());
            if let Some(cause) = &it.cause {
                said.push_str(&format!(" (cause: {cause})"));
            }
            said
        }),
    );
    part(
        "artifacts",
        &mut entries(&context.artifacts, |it: &Artifact| {
            arrow(&it.name, &it.reference)
        }),
    );
    part("relies on", &mut entries(&context.requires, line));
    part(
        "does not hold here",
        &mut context.breaks.iter().map(|what| barred(what)),
    );
    text
}

fn entries<'a, T>(
    entries: &'a [Entry<T>],
    said: impl Fn(&T) -> String + 'a,
) -> impl Iterator<Item = String> + 'a {
    entries.iter().map(move |entry| {
        let mut text = format!("  by {}\n", by(&entry.by, &entry.node));
        bar(&said(&entry.value), &mut text);
        text
    })
}

fn line(line: &Line) -> String {
    line.what.clone()
}

fn arrow(what: &str, then: &str) -> String {
    if then.is_empty() {
        return what.to_owned();
    }
    format!("{what} => {then}")
}

fn barred(text: &str) -> String {
    let mut out = String::new();
    bar(text, &mut out);
    out
}
