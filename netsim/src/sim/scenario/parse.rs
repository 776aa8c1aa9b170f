//! From the text of a scenario to the scenario.

use std::time::Duration;

use toml_edit::Document;

use super::{
    Act, HostilePlan, MAX_FILE_BYTES, MAX_STEPS, NODES, NatPlan, Revokee, Scenario, ScenarioError,
    SlowPlan, Step, Weather,
    fields::{Fields, line_at, parse_skew},
};
use crate::sim::{Hostility, founding::ADMINS};

/// Most fragments of one step.
const MAX_COUNT: i64 = 1_000_000;
/// Most neighbours of a node.
const MAX_NEIGHBOURS: i64 = 64;
const MS: fn(u64) -> Duration = Duration::from_millis;

pub(super) fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    if text.len() > MAX_FILE_BYTES {
        return Err(ScenarioError::TooLong { size: text.len() });
    }
    let document = Document::parse(text).map_err(|error| ScenarioError::Syntax {
        line: line_at(text, error.span().map_or(0, |span| span.start)),
        what: error.message().to_owned(),
    })?;
    let fields = Fields::new(text, document.as_table(), 1);
    let about = fields.text("about")?;
    let nodes = fields.number("nodes", (to_i64(NODES.0), to_i64(NODES.1)))?;
    let lasts = fields.time("lasts")?;
    let scenario = Scenario {
        about: fields.needed("about", about)?.to_owned(),
        nodes: fields.needed("nodes", nodes)?,
        lasts: fields.needed("lasts", lasts)?,
        newcomers: fields.number("newcomers", (0, 1000))?.unwrap_or(0),
        writers: fields.number("writers", (1, to_i64(NODES.1)))?,
        neighbours: fields
            .number("neighbours", (1, MAX_NEIGHBOURS))?
            .unwrap_or(4),
        period: fields.time("period")?.unwrap_or(Duration::from_secs(30)),
        push: fields.flag("push")?.unwrap_or(true),
        weather: weather(fields.table("links")?)?,
        nat: fields.table("nat")?.map(nat).transpose()?,
        skews: skews(&fields)?,
        hostile: fields.table("hostile")?.map(hostile).transpose()?,
        slow: fields.table("slow")?.map(slow).transpose()?,
        steps: steps(text, &fields)?,
    };
    if scenario.period < MS(100) {
        return Err(fields.wrong("period", "a time of at least \"100ms\""));
    }
    check_steps(&scenario)?;
    fields.finish()?;
    Ok(scenario)
}

const DEFAULT_WEATHER: Weather = Weather {
    loss_per_mille: 0,
    repeat_per_mille: 10,
    jitter: Duration::from_millis(15),
    latency: (Duration::from_millis(2), Duration::from_millis(90)),
};

fn weather(fields: Option<Fields<'_>>) -> Result<Weather, ScenarioError> {
    let Some(fields) = fields else {
        return Ok(DEFAULT_WEATHER);
    };
    let weather = weather_in(&fields)?;
    fields.finish()?;
    Ok(weather)
}

fn weather_in(fields: &Fields<'_>) -> Result<Weather, ScenarioError> {
    let otherwise = DEFAULT_WEATHER;
    let repeat = fields.per_mille("repeat")?;
    Ok(Weather {
        loss_per_mille: fields
            .per_mille("loss")?
            .unwrap_or(otherwise.loss_per_mille),
        repeat_per_mille: repeat.unwrap_or(otherwise.repeat_per_mille),
        jitter: fields.time("jitter")?.unwrap_or(otherwise.jitter),
        latency: fields.times("latency")?.unwrap_or(otherwise.latency),
    })
}

fn nat(fields: Fields<'_>) -> Result<NatPlan, ScenarioError> {
    let plan = NatPlan {
        cone_per_mille: fields.per_mille("cone")?.unwrap_or(0),
        symmetric_per_mille: fields.per_mille("symmetric")?.unwrap_or(0),
        relays: fields.number("relays", (0, 1000))?.unwrap_or(1),
    };
    if plan.cone_per_mille + plan.symmetric_per_mille > 1000 {
        return Err(ScenarioError::Contradiction {
            line: fields.line(),
            what: "`cone` and `symmetric` are more than all nodes together".to_owned(),
        });
    }
    fields.finish()?;
    Ok(plan)
}

fn skews(fields: &Fields<'_>) -> Result<Vec<i64>, ScenarioError> {
    let Some(clocks) = fields.table("clocks")? else {
        return Ok(Vec::new());
    };
    let expected = "times with a sign such as [\"-1d\", \"+700ms\", \"+1h\", \"+3653d\"]";
    let skews = clocks.list("off", expected, parse_skew)?;
    let skews = clocks.needed("off", skews)?;
    clocks.finish()?;
    Ok(skews)
}

fn hostile(fields: Fields<'_>) -> Result<HostilePlan, ScenarioError> {
    let per_mille = fields.per_mille("share")?;
    let expected = format!(
        "a list of {}",
        Hostility::all()
            .map(|kind| format!("\"{kind}\""))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let kinds = fields.list("kinds", &expected, |name| name.parse().ok())?;
    let plan = HostilePlan {
        per_mille: fields.needed("share", per_mille)?,
        kinds: kinds.unwrap_or_else(|| Hostility::all().collect()),
    };
    fields.finish()?;
    Ok(plan)
}

fn slow(fields: Fields<'_>) -> Result<SlowPlan, ScenarioError> {
    let per_mille = fields.per_mille("share")?;
    let rate = fields.number("bytes_per_second", (1, 1 << 40))?;
    let plan = SlowPlan {
        per_mille: fields.needed("share", per_mille)?,
        bytes_per_second: fields.needed("bytes_per_second", rate)?,
    };
    fields.finish()?;
    Ok(plan)
}

fn steps(text: &str, fields: &Fields<'_>) -> Result<Vec<Step>, ScenarioError> {
    let Some(item) = fields.get("step") else {
        return Ok(Vec::new());
    };
    let tables = item.as_array_of_tables();
    let tables = tables.ok_or_else(|| fields.wrong("step", "tables headed `[[step]]`"))?;
    if tables.len() > MAX_STEPS {
        return Err(fields.wrong("step", &format!("given at most {MAX_STEPS} times")));
    }
    let steps = tables.iter().map(|table| {
        let line = table.span().map_or(1, |span| line_at(text, span.start));
        step(Fields::new(text, table, line))
    });
    steps.collect()
}

fn step(fields: Fields<'_>) -> Result<Step, ScenarioError> {
    let at = fields.time("at")?;
    let act = fields.text("do")?;
    let step = Step {
        at: fields.needed("at", at)?,
        line: fields.line(),
        act: act_of(fields.needed("do", act)?, &fields)?,
    };
    fields.finish()?;
    Ok(step)
}

fn act_of(name: &str, fields: &Fields<'_>) -> Result<Act, ScenarioError> {
    let node = |key| fields.number(key, (0, to_i64(NODES.1)));
    Ok(match name {
        "publish" => Act::Publish {
            count: fields.needed("count", fields.number("count", (1, MAX_COUNT))?)?,
            over: fields.time("over")?.unwrap_or_default(),
        },
        "partition" => Act::Partition {
            per_mille: fields.per_mille("share")?.unwrap_or(500),
            lasts: fields.needed("for", fields.time("for")?)?,
        },
        "crash" => Act::Crash {
            per_mille: fields.needed("share", fields.per_mille("share")?)?,
            down: fields.needed("down", fields.time("down")?)?,
        },
        "churn" => Act::Churn {
            per_mille: fields.needed("share", fields.per_mille("share")?)?,
            over: fields.needed("over", fields.time("over")?)?,
            down: fields.needed("down", fields.times("down")?)?,
        },
        "kill" => Act::Kill {
            node: fields.needed("node", node("node")?)?,
        },
        "silence-relay" => Act::SilenceRelay {
            relay: fields.needed("relay", node("relay")?)?,
            lasts: fields.needed("for", fields.time("for")?)?,
        },
        "weather" => Act::Weather {
            weather: weather_in(fields)?,
            lasts: fields.needed("for", fields.time("for")?)?,
        },
        "revoke" => Act::Revoke {
            node: node("node")?.map_or(Revokee::Hostile, Revokee::Node),
            forget: fields.number("forget", (0, MAX_COUNT))?.unwrap_or(0),
        },
        "join" => Act::Join,
        "converge" => Act::Converge {
            within: fields.needed("within", fields.time("within")?)?,
        },
        "evictions" => Act::Evictions {
            below: fields.needed("below", fields.number("below", (1, MAX_COUNT))?)?,
        },
        "relayed" => Act::Relayed {
            at_least: fields.needed("at_least", node("at_least")?)?,
        },
        _ => {
            let expected = "one of publish, partition, crash, churn, kill, silence-relay, weather, revoke, join, converge, evictions, relayed";
            return Err(fields.wrong("do", expected));
        }
    })
}

/// Steps ascend, fit into the run, and name only what is there.
fn check_steps(scenario: &Scenario) -> Result<(), ScenarioError> {
    let mut busy_until = Duration::ZERO;
    for Step { at, line, act } in &scenario.steps {
        let wrong = |what: &str| {
            Err(ScenarioError::Contradiction {
                line: *line,
                what: what.to_owned(),
            })
        };
        if *at < busy_until {
            return wrong("the step begins before the one above it is over");
        }
        busy_until = *at;
        let ends = match act {
            Act::Converge { within } => {
                busy_until = *at + *within;
                busy_until
            }
            Act::Publish { over, .. } | Act::Churn { over, .. } => *at + *over,
            _ => *at,
        };
        if ends > scenario.lasts {
            return wrong("the step goes on beyond the end of the run");
        }
        let relays = scenario.nat.map_or(0, |nat| nat.relays);
        match act {
            Act::SilenceRelay { relay, .. } if *relay >= relays => {
                return wrong("there is no such relay; `[nat]` says how many there are");
            }
            Act::Kill { node }
            | Act::Revoke {
                node: Revokee::Node(node),
                ..
            } if *node >= scenario.nodes => {
                return wrong("there is no such node");
            }
            Act::Revoke {
                node: Revokee::Node(node),
                ..
            } if *node < ADMINS => {
                return wrong("an admin does not revoke another one");
            }
            Act::Revoke {
                node: Revokee::Hostile,
                ..
            } if scenario.hostile.is_none() => {
                return wrong("nobody is hostile; name a `node`");
            }
            Act::Join if scenario.newcomers == 0 => {
                return wrong("there are no `newcomers`");
            }
            _ => {}
        }
    }
    Ok(())
}

fn to_i64(n: usize) -> i64 {
    i64::try_from(n).expect("bounds are small")
}
