//! `rhizome net denials`: what this sandbox tried to reach and may not, and how to ask for it.

use std::io::Write;

use serde_json::Value;

use super::{
    Args, CliError,
    door::{Door, Target},
    print::{Out, text},
};

/// Shows what was denied, the oldest first.
pub(crate) fn denials(out: &mut Out<impl Write>, args: &Args) -> Result<(), CliError> {
    let answer = Door::from_env()?.get(&Target::new("/v1/net/denials"))?;
    if args.flag("json") {
        return Ok(out.json(&answer)?);
    }
    out.line(format!("network: {}", text(&answer, "policy")))?;
    let denials: Vec<&Value> = answer["denials"].as_array().into_iter().flatten().collect();
    if denials.is_empty() {
        return Ok(out.line("nothing was denied")?);
    }
    for denial in denials {
        let times = match denial["count"].as_u64() {
            Some(count) if count > 1 => format!(" ({count} times)"),
            _ => String::new(),
        };
        out.line(format!(
            "{} {}{times}",
            text(denial, "attempt"),
            text(denial, "destination")
        ))?;
        out.line(format!("  rule: {}", text(denial, "rule")))?;
        out.line(format!("   ask: {}", text(denial, "how_to_ask")))?;
    }
    Ok(())
}
