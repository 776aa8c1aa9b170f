//! Running a scenario from its first moment to its last, and saying what came of it.

mod sweep;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use rhizome_identity::Hash;
use serde_json::{Value, json};

pub use self::sweep::{Swept, sweep};
use super::{
    Invariant, Netsim, Violation,
    scenario::{Act, Revokee, Scenario, Step},
};

/// How many events pass between two looks at the wall clock.
const SLICE: u64 = 20_000;
/// How often in virtual time everything is checked that no single event shows.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// How often the state is looked at while something is waited for.
const POLL: Duration = Duration::from_millis(500);

/// What one run of a scenario is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How many nodes; as many as the scenario says when absent.
    pub nodes: Option<usize>,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Stop before this event and show what led there.
    pub until_step: Option<u64>,
    /// Remember the last events.
    pub keep_trail: bool,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The time of the run.
    pub at: Duration,
    /// When the run ends.
    pub lasts: Duration,
    /// Events so far.
    pub steps: u64,
    /// Real time so far.
    pub took: Duration,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many nodes took part, newcomers included.
    pub nodes: usize,
    /// The seed.
    pub seed: u64,
    /// How many events happened.
    pub steps: u64,
    /// Virtual time.
    pub ran: Duration,
    /// Real time.
    pub took: Duration,
    /// A digest of everything that happened, in order.
    pub trace: Hash,
    /// Fragments that were acknowledged to their publishers.
    pub acked: usize,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Items that the real check refused.
    pub rejected: u64,
    /// How often members were sent away.
    pub sent_away: usize,
    /// How long each `converge` took.
    pub converged: Vec<Duration>,
    /// The most memory that the process has used, in bytes, where the system tells.
    pub peak_bytes: Option<u64>,
    /// What did not hold.
    pub violation: Option<Violation>,
    /// The last events, if they were to be remembered.
    pub trail: Vec<String>,
}

impl Report {
    /// Returns how many events happened in a second of real time.
    #[must_use]
    pub fn steps_per_second(&self) -> u64 {
        per_second(self.steps, self.took)
    }

    /// Returns the report as one JSON object.
    #[must_use]
    pub fn to_json(&self, scenario: &str) -> Value {
        let violation = self.violation.as_ref().map(|violation| {
            json!({
                "invariant": violation.invariant.to_string(),
                "what": violation.what,
                "step": violation.step,
                "at_ms": millis(violation.at),
                "replay": self.replay_command(scenario),
            })
        });
        json!({
            "schema": 1,
            "scenario": scenario,
            "nodes": self.nodes,
            "seed": self.seed,
            "steps": self.steps,
            "steps_per_second": self.steps_per_second(),
            "ran_ms": millis(self.ran),
            "took_ms": millis(self.took),
            "trace": self.trace.to_string(),
            "acked": self.acked,
            "bytes_sent": self.bytes_sent,
            "rejected": self.rejected,
            "sent_away": self.sent_away,
            "converged_ms": self.converged.iter().copied().map(millis).collect::<Vec<_>>(),
            "peak_bytes": self.peak_bytes,
            "violation": violation,
        })
    }

    /// Returns the command that shows what led to the violation, or to the end.
    #[must_use]
    pub fn replay_command(&self, scenario: &str) -> String {
        let (nodes, seed) = (self.nodes, self.seed);
        let step = self
            .violation
            .as_ref()
            .map_or(self.steps, |broken| broken.step);
        format!("rhizome-netsim replay {scenario} --nodes {nodes} --seed {seed} --step {step}")
    }
}

/// Something that a run does at a moment.
#[derive(Clone, Copy, Debug)]
enum Due {
    Act(usize),
    Heal,
    RelayBack(usize),
    WeatherBack,
}

struct Run<'a> {
    scenario: &'a Scenario,
    net: Netsim,
    /// Members from the start.
    nodes: usize,
    options: Options,
    began: Instant,
    checked_at: Duration,
    converged: Vec<Duration>,
    progress: &'a mut dyn FnMut(&Progress),
}

/// Runs a scenario.
///
/// `progress` is told now and then how far it is.
pub fn run(scenario: &Scenario, options: Options, progress: &mut dyn FnMut(&Progress)) -> Report {
    let began = Instant::now();
    // A replay names what the report names: newcomers are counted there.
    let nodes = options.nodes.map_or(scenario.nodes, |nodes| {
        nodes.max(scenario.least_nodes()) - scenario.newcomers()
    });
    let mut net = scenario.build(nodes, options.seed);
    if options.keep_trail {
        net.keep_trail();
    }
    let mut run = Run {
        scenario,
        net,
        nodes,
        options,
        began,
        checked_at: Duration::ZERO,
        converged: Vec::new(),
        progress,
    };
    run.through();
    run.report()
}

impl Run<'_> {
    fn through(&mut self) {
        let steps = self.scenario.steps.iter().enumerate();
        // By moment and, among equals, what ends before what begins.
        let mut due: BTreeMap<(Duration, bool, usize), Due> = steps
            .map(|(number, step)| ((step.at, true, number), Due::Act(number)))
            .collect();
        let mut next = due.len();
        while let Some(((at, ..), what)) = due.pop_first() {
            if !self.advance(at.min(self.scenario.lasts)) {
                return;
            }
            if at > self.scenario.lasts {
                break;
            }
            for (later, then) in self.carry_out(what) {
                due.insert((later, false, next), then);
                next += 1;
            }
            if self.is_over() {
                return;
            }
        }
        if self.advance(self.scenario.lasts) {
            self.check();
        }
    }

    /// Lets time pass up to `end`; says whether the run goes on.
    fn advance(&mut self, end: Duration) -> bool {
        while self.net.now() < end {
            let stop = end.min(self.checked_at + CHECK_EVERY);
            loop {
                let left = self
                    .options
                    .until_step
                    .map(|step| step.saturating_sub(self.net.steps()));
                if left == Some(0) && self.net.next_event_at().is_some_and(|at| at <= stop) {
                    return false;
                }
                let slice = left.map_or(SLICE, |left| left.clamp(1, SLICE));
                if !self.net.run_some(stop, slice) {
                    break;
                }
                self.tell();
            }
            if self.net.now() >= self.checked_at + CHECK_EVERY {
                self.check();
            }
            if self.is_over() {
                return false;
            }
        }
        true
    }

    fn is_over(&self) -> bool {
        self.net.violation().is_some()
    }

    fn tell(&mut self) {
        (self.progress)(&Progress {
            at: self.net.now(),
            lasts: self.scenario.lasts,
            steps: self.net.steps(),
            took: self.began.elapsed(),
        });
    }

    fn check(&mut self) {
        self.checked_at = self.net.now();
        if let Err(Violation {
            invariant, what, ..
        }) = self.net.verify()
        {
            self.net.violate(invariant, what);
        }
    }

    /// Does what is due; returns what follows from it, and when.
    fn carry_out(&mut self, due: Due) -> Vec<(Duration, Due)> {
        let now = self.net.now();
        let number = match due {
            Due::Act(number) => number,
            Due::Heal => {
                self.net.heal();
                return Vec::new();
            }
            Due::RelayBack(relay) => {
                self.net.silence_relay(relay, false);
                return Vec::new();
            }
            Due::WeatherBack => {
                self.net.set_weather(self.scenario.weather());
                return Vec::new();
            }
        };
        let Step { act, line, .. } = self.scenario.steps[number];
        match act {
            Act::Publish { count, over } => self.publish(count, over),
            Act::Partition { per_mille, lasts } => {
                self.net.partition_share(per_mille);
                return vec![(now + lasts, Due::Heal)];
            }
            Act::Crash { per_mille, down } => {
                for node in self.net.draw(self.nodes, per_mille) {
                    self.net.crash(node, down);
                }
            }
            Act::Churn {
                per_mille,
                over,
                down,
            } => {
                for node in self.net.draw(self.nodes, per_mille) {
                    let after = self.net.draw_time((Duration::ZERO, over));
                    let down = self.net.draw_time(down);
                    self.net.crash_later(node, after, down);
                }
            }
            Act::Kill { node } => {
                self.net.kill(node);
            }
            Act::SilenceRelay { relay, lasts } => {
                self.net.silence_relay(relay, true);
                return vec![(now + lasts, Due::RelayBack(relay))];
            }
            Act::Weather { weather, lasts } => {
                self.net.set_weather(weather);
                return vec![(now + lasts, Due::WeatherBack)];
            }
            Act::Revoke { node, forget } => {
                let subjects = match node {
                    Revokee::Node(node) => vec![node],
                    Revokee::Hostile => self.net.hostile(),
                };
                for subject in subjects {
                    self.net.revoke(0, subject, forget);
                }
            }
            Act::Join => {
                for newcomer in self.nodes..self.net.nodes() {
                    self.net.join(newcomer);
                }
            }
            Act::Converge { within } => self.converge(within, line),
            Act::Evictions { below } => {
                let most = self.net.most_evictions();
                self.net.forget_evictions();
                if most >= below {
                    let what = format!("a node lost {most} neighbours (line {line})");
                    self.net.violate(Invariant::Expected, what);
                }
            }
            Act::Relayed { at_least } => {
                let relayed = self.net.relayed();
                if relayed < at_least {
                    let what = format!("{relayed} connections are relayed (line {line})");
                    self.net.violate(Invariant::Expected, what);
                }
            }
        }
        Vec::new()
    }

    fn publish(&mut self, count: u32, over: Duration) {
        let writers = self.scenario.writers(self.nodes);
        for _ in 0..count {
            let after = self.net.draw_time((Duration::ZERO, over));
            if let Some(node) = self.net.draw_honest(writers) {
                self.net.publish_later(node, after);
            }
        }
    }

    fn converge(&mut self, within: Duration, line: usize) {
        let begin = self.net.now();
        let end = begin + within;
        let is_done = |net: &Netsim| net.all_acked_everywhere() && net.components() == 1;
        while !is_done(&self.net) {
            if self.net.now() >= end {
                let what = match self.net.verify_quiet() {
                    Err(violation) => violation.what,
                    Ok(()) => format!("there are {} components", self.net.components()),
                };
                let what = format!("{what}, {within:?} after it should have begun (line {line})");
                let invariant = if self.scenario.is_hostile() {
                    Invariant::HonestServed
                } else if within <= 2 * self.scenario.period() {
                    Invariant::HealsInTime
                } else {
                    Invariant::Delivered
                };
                return self.net.violate(invariant, what);
            }
            let next = (self.net.now() + POLL).min(end);
            if !self.advance(next) {
                return;
            }
        }
        self.converged.push(self.net.now() - begin);
    }

    fn report(self) -> Report {
        let Self { net, .. } = self;
        Report {
            nodes: net.nodes(),
            seed: net.seed(),
            steps: net.steps(),
            ran: net.now(),
            took: self.began.elapsed(),
            trace: net.trace_hash(),
            acked: net.acked(),
            bytes_sent: net.bytes_sent(),
            rejected: net.rejected(),
            sent_away: net.sent_away().len(),
            converged: self.converged,
            peak_bytes: peak_bytes(),
            violation: net.violation().cloned(),
            trail: net.trail().map(str::to_owned).collect(),
        }
    }
}

/// Returns the most memory that this process has used, as Linux tells.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(1024 * kib)
}

fn per_second(count: u64, took: Duration) -> u64 {
    let nanos = took.as_nanos().max(1);
    u64::try_from(u128::from(count) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
