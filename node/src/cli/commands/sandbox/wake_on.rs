//! `rhizome sandbox show`, `rhizome sandbox wake-on show|set|cancel`.

use clap::Subcommand;

use super::{Context, Failure, path_of, short};
use crate::{
    api::types::{
        sandbox::{Sandbox, SandboxCreated},
        wake::{Copies, Waiting, WakeOn, WakeOnBody, WokenBy},
    },
    cli::{
        client::with_query,
        commands::names,
        ui::{plain, utc},
    },
};

/// What to do with what sandboxes wait for.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what wakes a sandbox, wherever it sleeps
    Show {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
    /// Say what wakes a sandbox that sleeps, instead of what did before
    #[command(after_help = "Examples:
  rhizome sandbox wake-on set bench time=2h
  rhizome sandbox wake-on set bench time=2026-12-24T08:00:00Z 'memory=build green' webhook

Whichever comes first wakes it, on one of the nodes that hold a copy.")]
    Set {
        /// Name, id or unique prefix of one
        sandbox: String,
        /// `time=<length or RFC 3339>`, `memory=<words>`, `webhook`
        #[arg(required = true, value_name = "WHAT")]
        wake_on: Vec<String>,
    },
    /// Let a sandbox sleep until somebody wakes it
    Cancel {
        /// Name, id or unique prefix of one
        sandbox: String,
    },
}

pub(super) async fn run(context: &Context, verb: Verb) -> Result<(), Failure> {
    let waiting: Waiting = match verb {
        Verb::Show { sandbox } => {
            let path = with_query("/v1/wake-on", &[("what", Some(sandbox))]);
            context.client.get(&path).await?
        }
        Verb::Set { sandbox, wake_on } => {
            let what = sandbox;
            let body = WakeOnBody { what, wake_on };
            context.client.post("/v1/wake-on", &body).await?
        }
        Verb::Cancel { sandbox } => {
            let body = WakeOnBody {
                what: sandbox,
                wake_on: Vec::new(),
            };
            context.client.post("/v1/wake-on", &body).await?
        }
    };
    if context.ui.is_json() {
        return context.ui.object(&waiting);
    }
    let name = waiting.name.as_deref().map(plain);
    let called = name.unwrap_or_else(|| short(&waiting.sandbox));
    say(
        context,
        &called,
        &waiting.wake_on,
        waiting.webhook.as_deref(),
    )
}

/// Says what a sandbox waits for, and the path of its webhook.
pub(super) fn say(
    context: &Context,
    called: &str,
    wake_on: &[WakeOn],
    webhook: Option<&str>,
) -> Result<(), Failure> {
    context.ui.line(&match wake_on {
        [] => format!("sandbox {called} sleeps until somebody wakes it"),
        some => format!("sandbox {called} sleeps {}", until(some)),
    })?;
    if let Some(path) = webhook {
        context.ui.line(&format!("webhook POST {path}"))?;
        context.ui.status(
            "whoever knows this path can wake it, once, at the API of any node that holds a copy; \
             it is not shown again",
        );
    }
    Ok(())
}

/// Returns what a sandbox waits for, in words.
pub(super) fn until(wake_on: &[WakeOn]) -> String {
    let words = wake_on.iter().map(|one| match one {
        WakeOn::Time { at_ms } => utc(*at_ms),
        WakeOn::Memory { query } => format!("a memory with `{}`", plain(query)),
        WakeOn::Webhook => "its webhook is called".to_owned(),
        WakeOn::Unknown => "something that this release does not know".to_owned(),
    });
    format!("until {}", words.collect::<Vec<_>>().join(", or "))
}

/// Returns what woke a sandbox, in words.
fn because(cause: &WokenBy) -> String {
    match cause {
        WokenBy::Time { at_ms } => format!("its time, {}", utc(*at_ms)),
        WokenBy::Memory {
            fragment, title, ..
        } => format!(
            "the memory `{}` (fragment {})",
            plain(title),
            short(fragment)
        ),
        WokenBy::Webhook { bytes } => format!("its webhook, with {bytes} bytes"),
        WokenBy::Unknown => "something that this release does not know".to_owned(),
    }
}

/// Returns how many nodes keep a copy.
pub(super) fn copies(copies: &Copies) -> Option<String> {
    let Copies {
        wanted,
        holders,
        connected,
    } = copies;
    if *wanted == 0 && holders.is_empty() {
        return None;
    }
    Some(format!(
        "{connected} of {} copies connected",
        (*wanted).max(holders.len())
    ))
}

pub(super) async fn show(context: &Context, sandbox: &str) -> Result<(), Failure> {
    let shown: SandboxCreated = context.client.get(&path_of(sandbox)).await?;
    let ui = context.ui;
    if ui.is_json() {
        return ui.object(&shown);
    }
    let Sandbox {
        id,
        name,
        image,
        image_id,
        state,
        reason,
        driver,
        accel,
        memory_mib,
        snapshot,
        agent,
        spaces,
        node,
        wake_on,
        woken_by,
        copies,
        ..
    } = &shown.sandbox;
    let held = copies.as_ref().filter(|copies| !copies.holders.is_empty());
    let lines = [
        ("sandbox  ", Some(id.clone())),
        ("name     ", name.as_deref().map(plain)),
        ("state    ", Some(state.clone())),
        ("because  ", reason.as_deref().map(plain)),
        ("sleeps   ", (!wake_on.is_empty()).then(|| until(wake_on))),
        ("woken by ", woken_by.as_ref().map(because)),
        ("node     ", node.as_ref().map(ToString::to_string)),
        (
            "image    ",
            Some(format!("{} {}", plain(image), short(image_id))),
        ),
        (
            "runs on  ",
            Some(format!("{driver} ({accel}), {memory_mib} MiB")),
        ),
        ("agent    ", agent.as_ref().map(ToString::to_string)),
        ("spaces   ", Some(names(spaces, "none"))),
        ("snapshot ", snapshot.as_deref().map(short)),
        (
            "held by  ",
            held.map(|copies| names(&copies.holders, "nobody")),
        ),
        ("copies   ", copies.as_ref().and_then(self::copies)),
    ];
    for (label, text) in lines {
        if let Some(text) = text {
            ui.line(&format!("{label} {text}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_said_in_words() {
        let some = [
            WakeOn::Time { at_ms: 0 },
            WakeOn::Memory {
                query: "build \u{1b}green".into(),
            },
            WakeOn::Webhook,
        ];
        assert_eq!(
            until(&some),
            "until 1970-01-01T00:00:00Z, or a memory with `build \u{fffd}green`, or its webhook is called"
        );
    }
}
