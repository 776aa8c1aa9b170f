//! What a sandbox uses, as its guest counts it, and what it said while it booted.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, RawQuery, State},
    response::IntoResponse,
};
use rhizome_memory::now_ms;
use rhizome_sandbox::channel::{ExecEvent, ExitStatus};
use serde_json::{Value, json};

use super::list::pairs;
use crate::{
    api::types::sandbox::ExecBody,
    cli::utc,
    e2b::{
        Door, Standing,
        error::{Answer, E2bError},
    },
};

/// A sample younger than this is fresh enough, in milliseconds.
const FRESH_MS: u64 = 1000;
/// Time that the guest's programs have to answer.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most that they may say, in bytes.
const MAX_SAID: usize = 256 * 1024;
/// Lines of a log when nobody says, and at most.
const MAX_LINES: usize = 1000;

/// What a sandbox used at a moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    at_ms: u64,
    cpus: u32,
    /// Ticks of all processors that were busy, and all of them, since the guest booted.
    busy: u64,
    ticks: u64,
    used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    disk_total: u64,
    disk_used: u64,
}

impl Sample {
    fn shown(&self) -> Value {
        json!({
            "timestamp": utc(self.at_ms),
            "timestampUnix": self.at_ms / 1000,
            "cpuCount": self.cpus,
            "cpuUsedPct": self.used_pct,
            "memUsed": self.mem_used,
            "memTotal": self.mem_total,
            "memCache": self.mem_cache,
            "diskUsed": self.disk_used,
            "diskTotal": self.disk_total,
        })
    }

    /// Reads what `cat /proc/meminfo /proc/stat` and `stat -f -c "%S %b %f" /` said.
    fn parse(proc: &str, disk: &str, before: Option<&Self>) -> Option<Self> {
        let kib = |name: &str| -> Option<u64> {
            let line = proc.lines().find_map(|line| line.strip_prefix(name))?;
            let number = line.trim_start_matches(':').split_whitespace().next()?;
            number.parse::<u64>().ok()?.checked_mul(1024)
        };
        let (total, free) = (kib("MemTotal")?, kib("MemAvailable").or(kib("MemFree"))?);
        let cpu = proc.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = cpu
            .split_whitespace()
            .map_while(|number| number.parse().ok())
            .collect();
        // The first eight; what guests of it use is counted in the others already.
        let all: u64 = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        let busy = all.saturating_sub(idle);
        let (since_busy, since_all) = match before.filter(|before| before.ticks < all) {
            Some(before) => (busy.saturating_sub(before.busy), all - before.ticks),
            None => (busy, all.max(1)),
        };
        let numbered = |line: &&str| {
            line.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let row: Vec<u64> = disk
            .split_whitespace()
            .map_while(|number| number.parse().ok())
            .collect();
        let [block, blocks, blocks_free] = row[..] else {
            return None;
        };
        #[expect(clippy::cast_precision_loss, reason = "a share of a hundred")]
        let used_pct = (since_busy as f64 * 10_000.0 / since_all as f64).round() / 100.0;
        Some(Self {
            at_ms: now_ms(),
            cpus: u32::try_from(proc.lines().filter(numbered).count()).ok()?,
            busy,
            ticks: all,
            used_pct,
            mem_total: total,
            mem_used: total.saturating_sub(free),
            mem_cache: kib("Cached").unwrap_or(0),
            disk_total: blocks.checked_mul(block)?,
            disk_used: blocks.saturating_sub(blocks_free).checked_mul(block)?,
        })
    }
}

pub(super) async fn metrics(
    State(door): State<Arc<Door>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let Some((.., standing)) = door.known(&id) else {
        return Err(E2bError::no_sandbox(&id));
    };
    let asked: BTreeMap<_, _> = pairs(query.as_deref().unwrap_or_default())
        .into_iter()
        .collect();
    let second = |name: &str| match asked.get(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => text.parse::<u64>().map(Some).map_err(|_| {
            E2bError::bad_request(format!("`{name}` is a time in seconds since 1970"))
        }),
    };
    let (start, end) = (second("start")?, second("end")?);
    if standing == Standing::Running {
        sample(&door, &id).await?;
    }
    let within = |sample: &Sample| {
        let at = sample.at_ms / 1000;
        start.is_none_or(|start| at >= start) && end.is_none_or(|end| at <= end)
    };
    let samples = door.working.samples(&id);
    let shown: Vec<_> = samples
        .iter()
        .filter(|sample| within(sample))
        .map(Sample::shown)
        .collect();
    Ok(Json(shown).into_response())
}

/// The newest sample of each of several sandboxes.
pub(super) async fn bulk(State(door): State<Arc<Door>>, RawQuery(query): RawQuery) -> Answer {
    let mut all = serde_json::Map::new();
    for (name, value) in pairs(query.as_deref().unwrap_or_default()) {
        if name != "sandbox_ids" && name != "sandboxIDs" {
            continue;
        }
        for id in value.split(',').take(100) {
            let Some((.., standing)) = door.known(id) else {
                continue;
            };
            if standing == Standing::Running {
                sample(&door, id).await?;
            }
            if let Some(last) = door.working.samples(id).last() {
                all.insert(id.to_owned(), last.shown());
            }
        }
    }
    Ok(Json(json!({"sandboxes": all})).into_response())
}

/// Asks the guest what it uses, unless that was just done.
async fn sample(door: &Arc<Door>, id: &str) -> Answer<()> {
    let turn = door.working.turn(&format!("metrics {id}"));
    let _turn = turn.lock().await;
    let before = door.working.samples(id).pop();
    if let Some(before) = &before
        && before.at_ms.saturating_add(FRESH_MS) > now_ms()
    {
        return Ok(());
    }
    let proc = run(door, id, &["cat", "/proc/meminfo", "/proc/stat"]).await?;
    let disk = run(door, id, &["stat", "-f", "-c", "%S %b %f", "/"]).await?;
    let Some(sample) = Sample::parse(&proc, &disk, before.as_ref()) else {
        let message = "the guest does not say what it uses";
        let status = axum::http::StatusCode::BAD_GATEWAY;
        return Err(E2bError::new(status, "guest_failed", message));
    };
    door.working.sampled(id, sample);
    Ok(())
}

/// Runs a program in a sandbox and returns what it said.
pub(super) async fn run(door: &Arc<Door>, id: &str, argv: &[&str]) -> Answer<String> {
    let failed = |what: String| {
        let status = axum::http::StatusCode::BAD_GATEWAY;
        E2bError::new(status, "guest_failed", what)
    };
    let body = ExecBody {
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        timeout_ms: u64::try_from(SAMPLE_TIMEOUT.as_millis()).ok(),
        ..ExecBody::default()
    };
    let mut handle = door.node.exec(id, body).await?;
    let mut said = Vec::new();
    let reading = async {
        while let Some(event) = handle.events.recv().await {
            match event {
                Ok(ExecEvent::Stdout(bytes)) if said.len() + bytes.len() <= MAX_SAID => {
                    said.extend_from_slice(&bytes);
                }
                Ok(ExecEvent::Stdout(_)) => return Err(failed("it says too much".to_owned())),
                Ok(ExecEvent::Stderr(_)) => {}
                Ok(ExecEvent::Exit(ExitStatus::Code(0))) => return Ok(()),
                Ok(ExecEvent::Exit(status)) => {
                    return Err(failed(format!("`{}` ended with {status:?}", argv[0])));
                }
                Err(error) => return Err(crate::daemon::exec_failed(&error).into()),
            }
        }
        Err(failed(format!("`{}` did not end", argv[0])))
    };
    match tokio::time::timeout(SAMPLE_TIMEOUT, reading).await {
        Ok(done) => done?,
        Err(_) => return Err(failed(format!("`{}` did not answer in time", argv[0]))),
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// A line that a sandbox's console said.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    at_ms: u64,
    text: String,
    level: &'static str,
}

pub(super) async fn logs_v2(
    State(door): State<Arc<Door>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let lines = lines(&door, &id, query.as_deref().unwrap_or_default()).await?;
    let logs: Vec<_> = lines.iter().map(entry).collect();
    Ok(Json(json!({"logs": logs})).into_response())
}

pub(super) async fn logs_v1(
    State(door): State<Arc<Door>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    let lines = lines(&door, &id, query.as_deref().unwrap_or_default()).await?;
    let entries: Vec<_> = lines.iter().map(entry).collect();
    let logs: Vec<_> = lines
        .iter()
        .map(|line| json!({"timestamp": utc(line.at_ms), "line": line.text}))
        .collect();
    Ok(Json(json!({"logs": logs, "logEntries": entries})).into_response())
}

fn entry(line: &Line) -> Value {
    json!({
        "timestamp": utc(line.at_ms),
        "message": line.text,
        "level": line.level,
        "fields": {},
    })
}

async fn lines(door: &Arc<Door>, id: &str, query: &str) -> Answer<Vec<Line>> {
    let Some((record, ..)) = door.known(id) else {
        return Err(E2bError::no_sandbox(id));
    };
    let text = door.node.sandbox_logs(id).await?;
    let asked: BTreeMap<_, _> = pairs(query).into_iter().collect();
    let number = |name: &str| asked.get(name).and_then(|text| text.parse::<u64>().ok());
    let limit = number("limit").map_or(MAX_LINES, |limit| {
        usize::try_from(limit).unwrap_or(MAX_LINES).min(MAX_LINES)
    });
    let backward = asked
        .get("direction")
        .is_some_and(|word| word == "backward");
    let cursor = number("cursor").or_else(|| number("start"));
    let search = asked.get("search").map(String::as_str).unwrap_or_default();
    let level = asked.get("level").map(String::as_str).unwrap_or_default();
    let mut lines = console(&text, record.started_ms);
    if backward {
        lines.reverse();
    }
    lines.retain(|line| {
        let is_there = match cursor {
            Some(cursor) if backward => line.at_ms <= cursor,
            Some(cursor) => line.at_ms >= cursor,
            None => true,
        };
        is_there
            && line.text.contains(search)
            && (level.is_empty() || rank(line.level) >= rank(level))
    });
    lines.truncate(limit);
    Ok(lines)
}

fn rank(level: &str) -> usize {
    let levels = ["debug", "info", "warn", "error"];
    levels.iter().position(|known| *known == level).unwrap_or(1)
}

/// Reads a console; a kernel's lines say how long after the boot they were said.
fn console(text: &str, booted_ms: u64) -> Vec<Line> {
    let mut at_ms = booted_ms;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let stamp = line
                .trim_start()
                .strip_prefix('[')
                .and_then(|rest| rest.split_once(']'))
                .and_then(|(stamp, _)| stamp.trim().parse::<f64>().ok());
            if let Some(seconds) = stamp.filter(|seconds| (0.0..1e9).contains(seconds)) {
                let since = Duration::from_secs_f64(seconds).as_millis();
                at_ms = booted_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX));
            }
            let says = |word: &str| line.contains(word);
            let level = if says("panic") || says("error") || says("Error") {
                "error"
            } else if says("warn") || says("WARN") {
                "warn"
            } else {
                "info"
            };
            Line {
                at_ms,
                text: line
                    .chars()
                    .filter(|c| !c.is_control() || *c == '\t')
                    .collect(),
                level,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROC: &str = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\nCached:  50 kB\n\
        cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 5 0 5 40 0 0 0 0 0 0\ncpu1 5 0 5 40 0 0 0 0 0 0\nintr 1\n";
    const DISK: &str = "1024 4000 3000\n";

    #[test]
    fn a_guest_is_understood_and_what_is_no_answer_is_not() {
        let first = Sample::parse(PROC, DISK, None).unwrap();
        assert_eq!((first.cpus, first.used_pct), (2, 20.0));
        assert_eq!(first.mem_used, 600 * 1024);
        assert_eq!((first.disk_total, first.disk_used), (4_096_000, 1_024_000));
        let later = PROC.replace("cpu  10 0 10 80", "cpu  60 0 10 130");
        let second = Sample::parse(&later, DISK, Some(&first)).unwrap();
        assert!((second.used_pct - 50.0).abs() < 0.01, "{}", second.used_pct);
        assert_eq!(Sample::parse("", DISK, None), None);
        assert_eq!(Sample::parse(PROC, "nothing", None), None);
        let huge = PROC.replace("1000", "99999999999999999999");
        assert_eq!(Sample::parse(&huge, DISK, None), None);
    }

    #[test]
    fn a_console_has_times_and_levels() {
        let lines = console(
            "[    0.500000] hello\n\nplain error\n[   2.0] x\u{1b}[0m\n",
            1000,
        );
        let at: Vec<_> = lines.iter().map(|line| line.at_ms).collect();
        assert_eq!(at, [1500, 1500, 3000]);
        assert_eq!(lines[1].level, "error");
        assert_eq!(lines[2].text, "[   2.0] x[0m");
    }
}
