//! `rhizome usage`: what this sandbox used of its node, and the quotas that count for it.

use std::io::Write;

use serde_json::Value;

use super::{
    Args, CliError,
    door::{Door, Target},
    print::{Out, text, who},
};

/// Shows both, as of the node's last reading.
pub(crate) fn show(out: &mut Out<impl Write>, args: &Args) -> Result<(), CliError> {
    let answer = Door::from_env()?.get(&Target::new("/v1/usage"))?;
    if args.flag("json") {
        return Ok(out.json(&answer)?);
    }
    let used = &answer["usage"];
    let number = |field: &str| used[field].as_u64().unwrap_or(0);
    for (name, amount, unit) in [
        ("cpu", number("cpu_ms") / 1_000, "s"),
        ("ram", number("ram_mib_s"), "MiB s"),
        ("disk", number("disk_bytes"), "bytes"),
        ("egress", number("sent_bytes"), "bytes"),
        ("sandbox", number("sandbox_ms") / 1_000, "s"),
    ] {
        out.line(format!("{name:<8} {amount} {unit}"))?;
    }
    for quota in answer["quotas"].as_array().into_iter().flatten() {
        let amount = |field: &str| quota[field].as_u64().unwrap_or(0);
        let state = match quota["over"].as_bool() {
            Some(true) => ", used up",
            _ => "",
        };
        out.line(format!(
            "quota of {} {} per {}: {} of {} {} {}{state}",
            text(quota, "kind"),
            named(&quota["of"]),
            text(quota, "per"),
            amount("used"),
            amount("limit"),
            text(quota, "unit"),
            text(quota, "resource"),
        ))?;
    }
    Ok(())
}

fn named(of: &Value) -> String {
    match of["name"].as_str() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => who(of),
    }
}
