//! Sandboxes as clients of E2B see them: one, all, page by page.
use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, RawQuery, State},
    http::{HeaderMap, HeaderValue},
    response::{IntoResponse, Response},
};
use rhizome_sandbox::{SandboxInfo, SandboxState};
use serde_json::{Value, json};

use super::SANDBOX_HEADER;
use crate::{
    cli::utc,
    e2b::{
        Door, ENVD_VERSION, Standing,
        error::{Answer, E2bError},
        registry::{OnTimeout, Record},
    },
};

/// Items of a page when nobody says, and at most.
pub(super) const DEFAULT_PAGE: usize = 100;
pub(super) const MAX_PAGE: usize = 1000;
/// What a sandbox may write to its disk, in MiB.
const DISK_MIB: u64 = 4096;

pub(super) async fn list_v1(State(door): State<Arc<Door>>, RawQuery(query): RawQuery) -> Answer {
    let mut asked = Asked::parse(query.as_deref().unwrap_or_default())?;
    // That version lists what runs, all of it.
    asked.states = vec![Standing::Running];
    asked.limit = usize::MAX;
    let (page, _) = page(&door, &asked);
    Ok(Json(page).into_response())
}

pub(super) async fn list_v2(State(door): State<Arc<Door>>, RawQuery(query): RawQuery) -> Answer {
    let asked = Asked::parse(query.as_deref().unwrap_or_default())?;
    let (page, next) = page(&door, &asked);
    Ok(with_next(Json(page).into_response(), next))
}

pub(super) async fn info(State(door): State<Arc<Door>>, Path(id): Path<String>) -> Answer {
    let Some((record, info, standing)) = door.known(&id) else {
        return Err(E2bError::no_sandbox(&id));
    };
    let mut shown = item(&door, &record, &info, standing);
    shown["envdAccessToken"] = record.access_token.clone().into();
    shown["domain"] = door.at.sandbox_domain().into();
    shown["allowInternetAccess"] = record.internet.unwrap_or(true).into();
    if let Some(network) = &record.network {
        shown["network"] = network.clone();
    }
    let on_timeout = match record.on_timeout {
        OnTimeout::Kill => "kill",
        OnTimeout::Pause => "pause",
    };
    shown["lifecycle"] = json!({"autoResume": record.auto_resume, "onTimeout": on_timeout});
    if standing == Standing::Paused {
        let mode = if record.stopped { "filesystem" } else { "full" };
        shown["pauseMode"] = mode.into();
    }
    Ok((extras(&door, &info), Json(shown)).into_response())
}

/// Returns a sandbox as `create` and `connect` answer it.
pub(super) fn made(door: &Door, record: &Record, info: &SandboxInfo) -> Value {
    let mut made = json!({
        "templateID": record.template,
        "sandboxID": record.id,
        "clientID": client(door),
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": record.access_token,
        "domain": door.at.sandbox_domain(),
    });
    if let Some(alias) = &record.alias {
        made["alias"] = alias.clone().into();
    }
    if let Some(token) = &record.traffic_token {
        made["trafficAccessToken"] = token.clone().into();
    }
    debug_assert_eq!(record.id, info.id.to_string());
    made
}

/// Returns what only this node says of a sandbox, in headers that their clients ignore.
pub(super) fn extras(door: &Door, info: &SandboxInfo) -> HeaderMap {
    let shown = door.node.sandbox_of(info.clone());
    let mut headers = HeaderMap::new();
    let mut say = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    };
    say(SANDBOX_HEADER, shown.id);
    say("rhizome-node", door.node.id().to_string());
    say("rhizome-state", shown.state);
    say("rhizome-image", shown.image_id);
    say("rhizome-fingerprint", shown.fingerprint_hash);
    if let Some(ms) = shown.boot_ms {
        say("rhizome-boot-ms", ms.to_string());
    }
    if let Some(agent) = shown.agent {
        say("rhizome-agent", agent.id);
    }
    if let Some(snapshot) = shown.snapshot {
        say("rhizome-snapshot", snapshot);
    }
    headers
}

fn client(door: &Door) -> String {
    door.node.id().fmt_short().to_string()
}

fn item(door: &Door, record: &Record, info: &SandboxInfo, standing: Standing) -> Value {
    let end_ms = info.lease.as_ref().map_or_else(
        // One that sleeps, or lives for ever, has no end; the field is not optional.
        || record.started_ms + record.timeout_secs.saturating_mul(1000),
        |lease| lease.until_ms,
    );
    let mut item = json!({
        "templateID": record.template,
        "sandboxID": record.id,
        "clientID": client(door),
        "startedAt": utc(record.started_ms),
        "endAt": utc(end_ms),
        "cpuCount": info.vcpus,
        "memoryMB": info.memory_mib,
        "diskSizeMB": DISK_MIB,
        "state": if standing == Standing::Paused { "paused" } else { "running" },
        "envdVersion": ENVD_VERSION,
        "metadata": record.metadata,
    });
    if let Some(alias) = &record.alias {
        item["alias"] = alias.clone().into();
    }
    if !record.mounts.is_empty() {
        item["volumeMounts"] = json!(record.mounts);
    }
    if matches!(info.state, SandboxState::Snapshotting) {
        item["state"] = "running".into();
    }
    item
}

/// What a list is asked for.
#[derive(Debug, Clone, PartialEq)]
struct Asked {
    states: Vec<Standing>,
    metadata: BTreeMap<String, String>,
    template: Option<String>,
    started_after: Option<u64>,
    ascending: bool,
    limit: usize,
    /// The last item of the page before: its time and id.
    after: Option<(u64, String)>,
}

impl Asked {
    fn parse(query: &str) -> Answer<Self> {
        let mut asked = Self {
            states: Vec::new(),
            metadata: BTreeMap::new(),
            template: None,
            started_after: None,
            ascending: false,
            limit: DEFAULT_PAGE,
            after: None,
        };
        for (name, value) in pairs(query) {
            match &name[..] {
                "state" => {
                    for word in value.split(',').filter(|word| !word.is_empty()) {
                        asked.states.push(match word {
                            "running" => Standing::Running,
                            "paused" => Standing::Paused,
                            _ => {
                                let message = "`state` is `running`, `paused` or both";
                                return Err(E2bError::bad_request(message));
                            }
                        });
                    }
                }
                // Encoded twice: what comes out of the query is a query of its own.
                "metadata" => asked.metadata.extend(pairs(&value)),
                "template" | "templateID" => asked.template = Some(value).filter(|t| !t.is_empty()),
                "order" => asked.ascending = value == "asc",
                "startedAfter" => asked.started_after = Some(instant(&value)?),
                "limit" => asked.limit = limit(&value)?,
                "nextToken" if !value.is_empty() => asked.after = Some(read_token(&value)?),
                _ => {}
            }
        }
        if asked.states.is_empty() {
            asked.states = vec![Standing::Running, Standing::Paused];
        }
        Ok(asked)
    }
}

fn page(door: &Door, asked: &Asked) -> (Vec<Value>, Option<String>) {
    let records = door.registry.sandboxes.all();
    let mut found: Vec<_> = records
        .iter()
        .filter_map(|record| door.known(&record.id))
        .filter(|(record, _, standing)| {
            let has = |(name, value)| record.metadata.get(name) == Some(value);
            asked.states.contains(standing)
                && asked.metadata.iter().all(has)
                && asked.template.as_ref().is_none_or(|wanted| {
                    record.template == *wanted || record.alias.as_ref() == Some(wanted)
                })
                && asked.started_after.is_none_or(|at| record.started_ms > at)
        })
        .collect();
    // By time, and by id where times are equal: a page goes on where the last one ended even if
    // sandboxes came or went meanwhile.
    let key = |record: &Record| (record.started_ms, record.id.clone());
    found.sort_by_key(|(record, ..)| key(record));
    if !asked.ascending {
        found.reverse();
    }
    if let Some(after) = &asked.after {
        found.retain(|(record, ..)| match asked.ascending {
            true => key(record) > *after,
            false => key(record) < *after,
        });
    }
    let more = found.len() > asked.limit;
    found.truncate(asked.limit);
    let next = found.last().filter(|_| more).map(|(record, ..)| {
        let text = format!("{}:{}", record.started_ms, record.id);
        data_encoding::BASE64URL_NOPAD.encode(text.as_bytes())
    });
    let items = found
        .iter()
        .map(|(record, info, standing)| item(door, record, info, *standing));
    (items.collect(), next)
}

/// Adds where the next page begins.
pub(super) fn with_next(mut response: Response, next: Option<String>) -> Response {
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    response
}

pub(super) fn read_token(token: &str) -> Answer<(u64, String)> {
    let decoded = data_encoding::BASE64URL_NOPAD.decode(token.as_bytes());
    let text = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.as_deref()
        .and_then(|text| text.split_once(':'))
        .and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())))
        .ok_or_else(|| E2bError::bad_request("`nextToken` is none of this node's"))
}

pub(super) fn limit(text: &str) -> Answer<usize> {
    match text.parse() {
        Ok(limit @ 1..=MAX_PAGE) => Ok(limit),
        _ => Err(E2bError::bad_request(format!(
            "`limit` is a number from 1 to {MAX_PAGE}"
        ))),
    }
}

/// Reads a query into its pairs, decoded once.
pub(super) fn pairs(query: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_encoding::percent_decode_str(&text)
            .decode_utf8_lossy()
            .into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

/// Reads a time: RFC 3339 in UTC or with an offset, or Unix milliseconds.
fn instant(text: &str) -> Answer<u64> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    rfc3339(text).ok_or_else(|| E2bError::bad_request("`startedAfter` is no time as in RFC 3339"))
}

fn rfc3339(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let mut rest = text.get(19..)?;
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        ms = format!("{:0<3}", &fraction[..digits])[..3].parse().ok()?;
        rest = &fraction[digits..];
    }
    // A `+` that was not encoded comes out of a query as a space.
    let offset = match rest.bytes().next()? {
        b'Z' | b'z' => 0,
        sign @ (b'+' | b'-' | b' ') => {
            let hours: i64 = rest.get(1..3)?.parse().ok()?;
            let minutes: i64 = rest.get(4..6).unwrap_or("00").parse().ok()?;
            let total = hours * 60 + minutes;
            if sign == b'-' { -total } else { total }
        }
        _ => return None,
    };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970-01-01, proleptic Gregorian, with years that begin in March.
    let (y, m) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let day_of_year = (153 * m + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset * 60;
    u64::try_from(seconds * 1000 + ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_the_clients_write_it() {
        // urlencode({"metadata": urlencode({"a b": "c&d"}), "state": "paused,running"})
        let query = "metadata=a%2Bb%3Dc%2526d&state=paused%2Crunning&limit=5&order=asc";
        let asked = Asked::parse(query).unwrap();
        assert_eq!(asked.metadata["a b"], "c&d");
        assert_eq!(asked.states, [Standing::Paused, Standing::Running]);
        assert!(asked.ascending && asked.limit == 5);
        for bad in [
            "state=odd",
            "limit=0",
            "limit=x",
            "nextToken=%25",
            "startedAfter=now",
        ] {
            assert!(Asked::parse(bad).is_err(), "{bad}");
        }
        let token = data_encoding::BASE64URL_NOPAD.encode(b"7:abc");
        let asked = Asked::parse(&format!("nextToken={token}")).unwrap();
        assert_eq!(asked.after, Some((7, "abc".to_owned())));
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for ms in [0, 951_782_400_000, 1_795_996_800_000] {
            assert_eq!(rfc3339(&utc(ms)), Some(ms));
        }
        assert_eq!(rfc3339("1970-01-01T01:00:00.5+01:00"), Some(500));
        assert_eq!(rfc3339("1970-01-01T00:00:00.123456Z"), Some(123));
        assert_eq!(rfc3339("1970-13-01T00:00:00Z"), None);
        assert_eq!(rfc3339("soon"), None);
    }
}
