//! Asks a guest what it is made of.

use std::{collections::BTreeMap, time::Duration};

use tracing::debug;

use super::{Fingerprint, report};
use crate::channel::{ExecRequest, ExitStatus, GuestChannel};

/// Time the guest has: tools under emulation, read from a cold disk, are slow.
const LIMIT: Duration = Duration::from_secs(60);

/// Which tools a fingerprint is to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tools {
    /// Those that are known already.
    Keep,
    /// What the guest says now.
    Ask,
}

/// Fills in what only the guest can say.
///
/// A guest that does not answer, or answers with nonsense, leaves `known` as it was: its runtime
/// is then what the node gave it, and a contract that asks for more does not hold.
pub(crate) async fn probe(
    channel: &GuestChannel,
    env: &BTreeMap<String, String>,
    tools: Tools,
    known: &mut Fingerprint,
) {
    let mut argv = vec!["rhizome", "runtime", "--json"];
    if tools == Tools::Keep {
        argv.push("--no-tools");
    }
    let request = ExecRequest {
        argv: argv.into_iter().map(str::to_owned).collect(),
        env: env.clone(),
        timeout: Some(LIMIT),
        ..ExecRequest::default()
    };
    let kept = known.tools.clone();
    let said = match channel.exec(request).await {
        Ok(handle) => handle.output(report::MAX_REPORT_BYTES).await,
        Err(error) => Err(error),
    };
    match said {
        Ok(output) if output.status == ExitStatus::Code(0) => {
            if let Err(error) = report::parse_report(known, &output.stdout) {
                debug!(%error, "a guest's account of its runtime was not taken");
            }
        }
        Ok(output) => debug!(status = ?output.status, "a guest cannot say what it is made of"),
        Err(error) => debug!(%error, "a guest does not say what it is made of"),
    }
    if tools == Tools::Keep {
        known.tools = kept;
    }
}
