//! Scenarios: files that say what a run starts with, what goes wrong when, and what must hold.
//!
//! The format is TOML; `docs/simulator.md` lists every key. A scenario says shares rather than
//! numbers of nodes, so that the same file runs with ten nodes and with ten thousand.

mod fields;
mod parse;
mod shipped;

use std::{io, path::PathBuf, time::Duration};

use super::{Builder, Hostility, Netsim, links::Weather};

pub use self::shipped::{SHIPPED, Shipped};

/// The longest scenario file, in bytes.
pub const MAX_FILE_BYTES: usize = 64 * 1024;
/// The fewest and the most nodes of a run, newcomers included: the authority log holds no more.
pub const NODES: (usize, usize) = (2, 14_000);
/// The most steps of a scenario.
pub const MAX_STEPS: usize = 256;

/// What a run starts with, what happens in it, and what must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it shows, in one line.
    pub about: String,
    /// How many nodes it has when nobody says otherwise.
    pub nodes: usize,
    /// How long it lasts, in virtual time.
    pub lasts: Duration,
    newcomers: usize,
    writers: Option<usize>,
    neighbours: usize,
    period: Duration,
    push: bool,
    weather: Weather,
    nat: Option<NatPlan>,
    skews: Vec<i64>,
    hostile: Option<HostilePlan>,
    slow: Option<SlowPlan>,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct NatPlan {
    cone_per_mille: u32,
    symmetric_per_mille: u32,
    relays: usize,
}

#[derive(Clone, Debug, PartialEq)]
struct HostilePlan {
    per_mille: u32,
    kinds: Vec<Hostility>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct SlowPlan {
    per_mille: u32,
    bytes_per_second: u64,
}

/// Something that happens at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) at: Duration,
    /// Where the file says so, for messages.
    pub(super) line: usize,
    pub(super) act: Act,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Act {
    /// Honest writers publish so many fragments, spread over a while.
    Publish { count: u32, over: Duration },
    /// The nodes are parted in two for a while.
    Partition { per_mille: u32, lasts: Duration },
    /// So many nodes crash at once.
    Crash { per_mille: u32, down: Duration },
    /// So many nodes crash at moments of a while, each down for a time between two.
    Churn {
        per_mille: u32,
        over: Duration,
        down: (Duration, Duration),
    },
    /// A node ends for good.
    Kill { node: usize },
    /// A relay swallows everything for a while.
    SilenceRelay { relay: usize, lasts: Duration },
    /// Links are worse for a while.
    Weather { weather: Weather, lasts: Duration },
    /// An admin revokes the hostile members, or the last so many.
    Revoke { node: Revokee, forget: u64 },
    /// Those with an invite start.
    Join,
    /// Everything acknowledged is everywhere, and all are connected, within a time.
    Converge { within: Duration },
    /// No node lost more neighbours than that since the last such step, but for what the network did.
    Evictions { below: u32 },
    /// At least so many connections go through a relay.
    Relayed { at_least: usize },
}

/// Whom a step revokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revokee {
    Hostile,
    Node(usize),
}

/// Why a text is not a scenario; always with the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The text is longer than [`MAX_FILE_BYTES`].
    #[error("line 1: the file has {size} bytes; at most {MAX_FILE_BYTES} are allowed")]
    TooLong {
        /// Its size.
        size: usize,
    },
    /// The text is not TOML.
    #[error("line {line}: {what}")]
    Syntax {
        /// Where.
        line: usize,
        /// What the parser says.
        what: String,
    },
    /// A key that has no meaning there.
    #[error("line {line}: `{key}` means nothing here; known are {known}")]
    UnknownKey {
        /// Where.
        line: usize,
        /// The key.
        key: String,
        /// What could stand there.
        known: String,
    },
    /// A key that has to be there.
    #[error("line {line}: `{key}` is missing")]
    Missing {
        /// Where its table begins.
        line: usize,
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong kind, or out of bounds.
    #[error("line {line}: `{key}` must be {expected}")]
    Value {
        /// Where.
        line: usize,
        /// The key.
        key: String,
        /// What it has to be.
        expected: String,
    },
    /// Values that contradict each other.
    #[error("line {line}: {what}")]
    Contradiction {
        /// Where.
        line: usize,
        /// What does not go together.
        what: String,
    },
}

impl ScenarioError {
    /// Returns the line that is at fault, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        match self {
            Self::TooLong { .. } => 1,
            Self::Syntax { line, .. }
            | Self::UnknownKey { line, .. }
            | Self::Missing { line, .. }
            | Self::Value { line, .. }
            | Self::Contradiction { line, .. } => *line,
        }
    }
}

/// Why a scenario could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No scenario of that name is built in.
    #[error("there is no scenario `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file could not be read.
    #[error("cannot read scenario `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a scenario.
    #[error("`{}` is not a scenario", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: ScenarioError,
    },
}

impl LoadError {
    /// Says what the reader can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => {
                "`rhizome-netsim list` names those built in; a file of your own is named by its path, with `.toml`"
            }
            Self::Read { .. } => "check the path and its permissions",
            Self::Invalid { .. } => "`docs/simulator.md` lists every key",
        }
    }
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// [`ScenarioError`] names the line.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        parse::parse(text)
    }

    /// Loads a scenario by its name, or by the path of a file.
    ///
    /// # Errors
    /// [`LoadError`] if there is none, or it is malformed.
    pub fn load(name: &str) -> Result<Self, LoadError> {
        let path = PathBuf::from(name);
        let invalid = |path: PathBuf| move |source| LoadError::Invalid { path, source };
        if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name) {
            return Self::parse(shipped.text).map_err(invalid(path));
        }
        if path.extension().is_none_or(|extension| extension != "toml") {
            let name = name.to_owned();
            return Err(LoadError::Unknown { name });
        }
        // One byte more than allowed is enough to see that it is too long.
        let text = read_at_most(&path, MAX_FILE_BYTES + 1).map_err(|source| {
            let path = path.clone();
            LoadError::Read { path, source }
        })?;
        Self::parse(&text).map_err(invalid(path))
    }

    /// Returns the fewest nodes, newcomers included, with which every step has something to act on.
    #[must_use]
    pub fn least_nodes(&self) -> usize {
        let named = self.steps.iter().map(|step| match step.act {
            Act::Kill { node }
            | Act::Revoke {
                node: Revokee::Node(node),
                ..
            } => node + 1,
            _ => 0,
        });
        let relays = self.nat.map_or(0, |nat| nat.relays + 1);
        let needed = named.chain([relays, NODES.0]).max().unwrap_or(NODES.0);
        needed + self.newcomers
    }

    /// Builds the mesh of the scenario.
    #[must_use]
    pub fn build(&self, nodes: usize, seed: u64) -> Netsim {
        let mut builder = Netsim::seeded(seed)
            .peers(nodes)
            .newcomers(self.newcomers)
            .neighbours(self.neighbours)
            .period(self.period)
            .loss_per_mille(self.weather.loss_per_mille)
            .repeat_per_mille(self.weather.repeat_per_mille)
            .jitter(self.weather.jitter)
            .latency(self.weather.latency.0, self.weather.latency.1)
            .skews(self.skews.clone());
        if let Some(writers) = self.writers {
            builder = builder.writers(writers);
        }
        if !self.push {
            builder = builder.without_push();
        }
        if let Some(nat) = self.nat {
            let (cone, symmetric) = (nat.cone_per_mille, nat.symmetric_per_mille);
            builder = builder.nat_per_mille(cone, symmetric, nat.relays);
        }
        builder = self.with_hostile(builder, nodes);
        if let Some(slow) = self.slow {
            for node in spread(nodes, slow.per_mille, 1) {
                builder = builder.slow_reader(node, slow.bytes_per_second);
            }
        }
        builder.build()
    }

    fn with_hostile(&self, mut builder: Builder, nodes: usize) -> Builder {
        if let Some(hostile) = &self.hostile {
            let kinds = hostile.kinds.iter().cycle();
            for (node, kind) in spread(nodes, hostile.per_mille, 0).zip(kinds) {
                builder = builder.hostile(node, *kind);
            }
        }
        builder
    }

    /// Returns how many nodes publish in a run of `nodes`.
    pub(super) fn writers(&self, nodes: usize) -> usize {
        self.writers.unwrap_or(nodes).min(nodes)
    }

    pub(super) fn newcomers(&self) -> usize {
        self.newcomers
    }

    pub(super) fn period(&self) -> Duration {
        self.period
    }

    pub(super) fn weather(&self) -> Weather {
        self.weather
    }

    pub(super) fn is_hostile(&self) -> bool {
        self.hostile.is_some()
    }
}

/// Spreads so many of a thousand over the nodes that are no admins; at least one, if any.
fn spread(nodes: usize, per_mille: u32, offset: usize) -> impl Iterator<Item = usize> {
    let first = super::founding::ADMINS.min(nodes.saturating_sub(1));
    let room = nodes - first;
    let wanted = (nodes * per_mille as usize).div_ceil(1000).min(room);
    (0..wanted).map(move |n| first + (n * room / wanted + offset) % room)
}

fn read_at_most(path: &std::path::Path, limit: usize) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(limit as u64)
        .read_to_string(&mut text)?;
    Ok(text)
}
