//! `rhizome-netsim`: runs scenarios of many nodes in virtual time, and shows how one failed.

#![forbid(unsafe_code)]

use std::{
    io::{self, IsTerminal, Write},
    num::NonZeroUsize,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand};
use rhizome_netsim::sim::{
    run::{Options, Progress, Report, run, sweep},
    scenario::{LoadError, NODES, SHIPPED, Scenario},
};
use serde_json::json;

/// How often progress is said on a terminal, and elsewhere.
const TELL_EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// Run the protocol cores of production on many nodes in virtual time
///
/// The same scenario, number of nodes and seed give the same run, event for event.
#[derive(Debug, Parser)]
#[command(
    name = "rhizome-netsim",
    version,
    after_help = "\
Examples:
  rhizome-netsim list
  rhizome-netsim run halved
  rhizome-netsim run byzantine --nodes 200 --seed 7 --json
  rhizome-netsim sweep churn --seeds 1..100 --jobs 2
  rhizome-netsim replay churn --nodes 40 --seed 23 --step 48211
  rhizome-netsim run ./my-case.toml

Scenario files are described in docs/simulator.md."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the scenarios that are built in
    List {
        /// Print one JSON object per scenario
        #[arg(long)]
        json: bool,
    },
    /// Run a scenario once
    Run {
        #[command(flatten)]
        what: What,
        /// What is left to chance
        #[arg(long, env = "SEED", default_value_t = 1)]
        seed: u64,
    },
    /// Run a scenario up to one event, and show the events that led there
    Replay {
        #[command(flatten)]
        what: What,
        /// The seed that the failure named
        #[arg(long, env = "SEED", default_value_t = 1)]
        seed: u64,
        /// The event that the failure named; the end of the run when absent
        #[arg(long)]
        step: Option<u64>,
    },
    /// Run a scenario with many seeds
    Sweep {
        #[command(flatten)]
        what: What,
        /// From the first seed up to the last, both included
        #[arg(long, default_value = "1..8", value_parser = seeds)]
        seeds: (u64, u64),
        /// How many run at a time; as many as there are processors when absent
        #[arg(long)]
        jobs: Option<NonZeroUsize>,
    },
}

#[derive(Debug, Args)]
struct What {
    /// A name of `list`, or the path of a file that ends in `.toml`
    scenario: String,
    /// How many nodes; as many as the scenario says when absent
    #[arg(long)]
    nodes: Option<usize>,
    /// Print one JSON object per run
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("scenario `{scenario}` runs with {least} to {} nodes, not with {nodes}", NODES.1)]
    Nodes {
        scenario: String,
        least: usize,
        nodes: usize,
    },
    #[error("cannot write the result")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::List { json } => list(json).map(|()| true),
        Verb::Run { what, seed } => run_once(&what, seed),
        Verb::Replay { what, seed, step } => replay(&what, seed, step),
        Verb::Sweep { what, seeds, jobs } => run_many(&what, seeds, jobs),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            report(&failure);
            ExitCode::from(2)
        }
    }
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let whole = || "two numbers such as 1..100, the smaller first".to_owned();
    let (first, last) = text.split_once("..").ok_or_else(whole)?;
    let number = |text: &str| text.trim_start_matches('=').parse().map_err(|_| whole());
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        Err(whole())
    } else {
        Ok((first, last))
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    for shipped in SHIPPED {
        let scenario = Scenario::load(shipped.name)?;
        if as_json {
            let line = json!({
                "schema": 1,
                "scenario": shipped.name,
                "about": scenario.about,
                "nodes": scenario.nodes,
                "lasts_ms": u64::try_from(scenario.lasts.as_millis()).unwrap_or(u64::MAX),
            });
            writeln!(out, "{line}")?;
        } else {
            let (name, nodes) = (shipped.name, scenario.nodes);
            writeln!(out, "{name:<12} {nodes:>6} nodes  {}", scenario.about)?;
        }
    }
    Ok(())
}

fn load(what: &What) -> Result<Scenario, Failure> {
    let scenario = Scenario::load(&what.scenario)?;
    let least = scenario.least_nodes();
    match what.nodes {
        Some(nodes) if !(least..=NODES.1).contains(&nodes) => Err(Failure::Nodes {
            scenario: what.scenario.clone(),
            least,
            nodes,
        }),
        _ => Ok(scenario),
    }
}

fn run_once(what: &What, seed: u64) -> Result<bool, Failure> {
    let scenario = load(what)?;
    let options = Options {
        nodes: what.nodes,
        seed,
        ..Options::default()
    };
    let report = run(&scenario, options, &mut teller());
    say(what, &report)?;
    Ok(report.violation.is_none())
}

fn replay(what: &What, seed: u64, step: Option<u64>) -> Result<bool, Failure> {
    let scenario = load(what)?;
    let options = Options {
        nodes: what.nodes,
        seed,
        until_step: step,
        keep_trail: true,
    };
    let report = run(&scenario, options, &mut teller());
    {
        let mut errors = io::stderr().lock();
        for event in &report.trail {
            writeln!(errors, "{event}")?;
        }
    }
    say(what, &report)?;
    Ok(report.violation.is_none())
}

fn run_many(
    what: &What,
    (first, last): (u64, u64),
    jobs: Option<NonZeroUsize>,
) -> Result<bool, Failure> {
    let scenario = load(what)?;
    let jobs = jobs.or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, NonZeroUsize::get);
    let count = (last - first).saturating_add(1);
    let mut written = Ok(());
    let swept = sweep(&scenario, what.nodes, first, count, jobs, &mut |report| {
        if written.is_ok() {
            written = say(what, report);
        }
    });
    written?;
    if !what.json {
        let (runs, failed) = (swept.runs, swept.failed.len());
        writeln!(io::stdout(), "{runs} runs, {failed} of them failed")?;
    }
    Ok(swept.failed.is_empty())
}

/// Returns what says on standard error how far a run is: often on a terminal, seldom elsewhere.
fn teller() -> impl FnMut(&Progress) {
    let on_terminal = io::stderr().is_terminal();
    let every = if on_terminal {
        TELL_EVERY.0
    } else {
        TELL_EVERY.1
    };
    let mut told = Instant::now();
    move |progress: &Progress| {
        if told.elapsed() < every {
            return;
        }
        told = Instant::now();
        let Progress {
            at, lasts, steps, ..
        } = progress;
        let (at, lasts) = (at.as_secs(), lasts.as_secs());
        let end = if on_terminal { '\r' } else { '\n' };
        let _ = write!(io::stderr(), "{at} of {lasts} s, {steps} events{end}");
    }
}

fn say(what: &What, report: &Report) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if what.json {
        writeln!(out, "{}", report.to_json(&what.scenario))?;
        return Ok(());
    }
    let Report {
        nodes, seed, steps, ..
    } = report;
    let outcome = if report.violation.is_some() {
        "FAILED"
    } else {
        "held"
    };
    writeln!(
        out,
        "{}: {outcome}; {nodes} nodes, seed {seed}: {steps} events in {:.1} s ({} a second), {} s of virtual time",
        what.scenario,
        report.took.as_secs_f64(),
        report.steps_per_second(),
        report.ran.as_secs(),
    )?;
    for took in &report.converged {
        writeln!(out, "  converged in {:.1} s", took.as_secs_f64())?;
    }
    if let Some(peak) = report.peak_bytes {
        let each = peak / u64::try_from(*nodes).unwrap_or(u64::MAX).max(1);
        writeln!(
            out,
            "  {} fragments acknowledged; at most {peak} bytes of memory, {each} a node",
            report.acked
        )?;
    }
    if let Some(violation) = &report.violation {
        writeln!(out, "  {violation}")?;
        writeln!(out, "  seed {seed}, step {}; see it with", violation.step)?;
        writeln!(out, "  {}", report.replay_command(&what.scenario))?;
    }
    Ok(())
}

fn report(failure: &Failure) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "error: {failure}");
    let mut cause = std::error::Error::source(failure);
    while let Some(error) = cause {
        let _ = writeln!(err, "  cause: {error}");
        cause = error.source();
    }
    let hint = match failure {
        Failure::Load(error) => error.hint(),
        Failure::Nodes { .. } => "give another number, or leave `--nodes` out",
        Failure::Output(_) => "check where standard output goes",
    };
    let _ = writeln!(err, "   hint: {hint}");
}
