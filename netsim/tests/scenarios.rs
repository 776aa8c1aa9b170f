//! Scenario files: those that are built in hold, and malformed ones are told by their line.

use rhizome_netsim::sim::{
    run::{Options, Report, run, sweep},
    scenario::{LoadError, MAX_FILE_BYTES, SHIPPED, Scenario, ScenarioError},
    seed_from_env_or,
};

/// Scenarios that other tests run, or that take longer than a test may.
const ELSEWHERE: [&str; 6] = [
    "clocks", "halved", "large", "newcomer", "thousand", "two-days",
];

fn once(scenario: &Scenario, nodes: Option<usize>, seed: u64) -> Report {
    let options = Options {
        nodes,
        seed,
        ..Options::default()
    };
    run(scenario, options, &mut |_| {})
}

#[test]
fn every_file_is_built_in_and_well_formed() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let files = std::fs::read_dir(dir).expect("the directory of scenarios");
    let mut names: Vec<String> = files
        .map(|file| {
            file.expect("a file")
                .file_name()
                .into_string()
                .expect("ASCII")
        })
        .collect();
    names.sort();
    let built_in: Vec<String> = SHIPPED.iter().map(|s| format!("{}.toml", s.name)).collect();
    assert_eq!(built_in, names);
    for shipped in SHIPPED {
        let scenario = Scenario::load(shipped.name).expect(shipped.name);
        assert!(scenario.nodes >= scenario.least_nodes(), "{}", shipped.name);
    }
}

#[test]
fn scenarios_hold() {
    let seed = seed_from_env_or(1);
    for shipped in SHIPPED.iter().filter(|s| !ELSEWHERE.contains(&s.name)) {
        let scenario = Scenario::load(shipped.name).expect(shipped.name);
        let report = once(&scenario, None, seed);
        let violation = report.violation.as_ref().map(ToString::to_string);
        assert_eq!(violation, None, "{}", report.replay_command(shipped.name));
    }
}

#[test]
fn the_large_one_holds_when_it_is_small() {
    let scenario = Scenario::load("large").expect("it is built in");
    let report = once(&scenario, Some(60), seed_from_env_or(1));
    let violation = report.violation.as_ref().map(ToString::to_string);
    assert_eq!(violation, None, "{}", report.replay_command("large"));
    assert_eq!(report.converged.len(), 2);
}

#[test]
fn no_change_of_a_file_makes_the_reader_fall() {
    // A walk through all bytes with a stride that meets none of their patterns.
    let mut at = 1_usize;
    for shipped in SHIPPED {
        for _ in 0..150 {
            let mut bytes = shipped.text.as_bytes().to_vec();
            at = at.wrapping_mul(48_271) % 0x7fff_ffff;
            let place = at % bytes.len();
            match at % 3 {
                0 => bytes[place] ^= 1 << (at % 7),
                1 => drop(bytes.split_off(place)),
                _ => bytes.extend_from_within(place..),
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Err(error) = Scenario::parse(&text) {
                let lines = 1 + text.matches('\n').count();
                assert!((1..=lines).contains(&error.line()), "{error}\n{text}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for name in ["byzantine", "churn", "nat"] {
        let scenario = Scenario::load(name).expect(name);
        let first = once(&scenario, Some(16), 5);
        let again = once(&scenario, Some(16), 5);
        assert_eq!(
            (first.trace, first.steps),
            (again.trace, again.steps),
            "{name}"
        );
        assert_ne!(first.trace, once(&scenario, Some(16), 6).trace, "{name}");
    }
}

#[test]
fn a_sweep_runs_every_seed_once_and_is_no_other_run() {
    let scenario = Scenario::load("clocks").expect("it is built in");
    let mut seen = Vec::new();
    let swept = sweep(&scenario, Some(6), 3, 4, 2, &mut |report| {
        seen.push((report.seed, report.trace));
    });
    assert_eq!((swept.runs, swept.failed.len()), (4, 0));
    seen.sort_by_key(|(seed, _)| *seed);
    let alone: Vec<_> = (3..7)
        .map(|seed| (seed, once(&scenario, Some(6), seed).trace))
        .collect();
    assert_eq!(seen, alone);
}

#[test]
fn a_run_that_fails_says_where_and_a_replay_gets_there() {
    let text = "about = \"\"\nnodes = 8\nlasts = \"60s\"\n\
        [[step]]\nat = \"5s\"\ndo = \"partition\"\nfor = \"55s\"\n\
        [[step]]\nat = \"10s\"\ndo = \"publish\"\ncount = 5\n\
        [[step]]\nat = \"12s\"\ndo = \"converge\"\nwithin = \"20s\"\n";
    let scenario = Scenario::parse(text).expect("well formed");
    let failed = once(&scenario, None, 3);
    let violation = failed.violation.clone().expect("it cannot converge");
    assert!(violation.what.contains("line 12"), "{violation}");
    assert!(violation.at.as_secs() >= 32, "{violation}");
    let command = failed.replay_command("x.toml");
    let wanted = format!("--nodes 8 --seed 3 --step {}", violation.step);
    assert!(command.ends_with(&wanted), "{command}");
    let options = Options {
        nodes: Some(failed.nodes),
        seed: failed.seed,
        until_step: Some(violation.step),
        keep_trail: true,
    };
    let again = run(&scenario, options, &mut |_| {});
    assert_eq!(again.violation, failed.violation);
    assert_eq!(again.trace, failed.trace);
    assert!(!again.trail.is_empty());
}

#[test]
fn malformed_scenarios_are_refused_by_line() {
    let head = "about = \"x\"\nnodes = 8\nlasts = \"60s\"\n";
    let cases: &[(&str, usize, &str)] = &[
        ("about = \n", 1, "syntax"),
        ("about = \"x\"\nnodes = [8", 2, "syntax"),
        ("about = \"x\"\nlasts = \"60s\"\n", 1, "missing"),
        ("about = \"x\"\nnodes = 1\nlasts = \"60s\"", 2, "value"),
        (
            "about = \"x\"\nnodes = 99999999999\nlasts = \"60s\"",
            2,
            "value",
        ),
        ("about = \"x\"\nnodes = 8\nlasts = \"60 s\"", 3, "value"),
        ("about = \"x\"\nnodes = 8\nlasts = \"99999d\"", 3, "value"),
        ("about = 7\nnodes = 8\nlasts = \"60s\"", 1, "value"),
        ("{head}colour = \"red\"\n", 4, "unknown"),
        ("{head}[links]\nloss = 1.5\n", 5, "value"),
        ("{head}[links]\nlatency = [\"9ms\", \"2ms\"]\n", 5, "value"),
        ("{head}[links]\nlos = 0.5\n", 5, "unknown"),
        ("{head}links = 7\n", 4, "value"),
        (
            "{head}[hostile]\nshare = 0.1\nkinds = [\"fork\", \"rude\"]\n",
            6,
            "value",
        ),
        (
            "{head}[nat]\ncone = 0.8\nsymmetric = 0.8\n",
            4,
            "contradiction",
        ),
        ("{head}[clocks]\noff = [\"1d\"]\n", 5, "value"),
        ("{head}step = 3\n", 4, "value"),
        ("{head}[[step]]\nat = \"1s\"\n", 4, "missing"),
        ("{head}[[step]]\nat = \"1s\"\ndo = \"dance\"\n", 6, "value"),
        (
            "{head}[[step]]\nat = \"61s\"\ndo = \"join\"\n",
            4,
            "contradiction",
        ),
        (
            "{head}[[step]]\nat = \"1s\"\ndo = \"join\"\n",
            4,
            "contradiction",
        ),
        (
            "{head}[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = 8\n",
            4,
            "contradiction",
        ),
        (
            "{head}[[step]]\nat = \"1s\"\ndo = \"revoke\"\nnode = 1\n",
            4,
            "contradiction",
        ),
        (
            "{head}[[step]]\nat = \"1s\"\ndo = \"publish\"\ncount = -1\n",
            7,
            "value",
        ),
        (
            "{head}[[step]]\nat = \"9s\"\ndo = \"publish\"\ncount = 1\n\
             [[step]]\nat = \"8s\"\ndo = \"publish\"\ncount = 1\n",
            8,
            "contradiction",
        ),
        (
            "{head}[[step]]\nat = \"9s\"\ndo = \"converge\"\nwithin = \"9s\"\n\
             [[step]]\nat = \"10s\"\ndo = \"publish\"\ncount = 1\n",
            8,
            "contradiction",
        ),
    ];
    for (text, line, kind) in cases {
        let text = text.replace("{head}", head);
        let error = Scenario::parse(&text).expect_err(&text);
        let found = match &error {
            ScenarioError::Syntax { .. } => "syntax",
            ScenarioError::UnknownKey { .. } => "unknown",
            ScenarioError::Missing { .. } => "missing",
            ScenarioError::Value { .. } => "value",
            ScenarioError::Contradiction { .. } => "contradiction",
            _ => "other",
        };
        assert_eq!((error.line(), found), (*line, *kind), "{error}\n{text}");
        assert!(
            error.to_string().starts_with(&format!("line {line}: ")),
            "{error}"
        );
    }
    let long = "#".repeat(MAX_FILE_BYTES + 1);
    assert!(matches!(
        Scenario::parse(&long),
        Err(ScenarioError::TooLong { .. })
    ));
    let deep = format!("a = {}", "[".repeat(30_000));
    assert!(matches!(
        Scenario::parse(&deep),
        Err(ScenarioError::Syntax { .. })
    ));
    let many = "[[step]]\nat = \"1s\"\ndo = \"join\"\n".repeat(300);
    let many = format!("{head}newcomers = 1\n{many}");
    assert!(matches!(
        Scenario::parse(&many),
        Err(ScenarioError::Value { .. })
    ));
    assert!(matches!(
        Scenario::load("nothing"),
        Err(LoadError::Unknown { .. })
    ));
    assert!(matches!(
        Scenario::load("/nowhere/x.toml"),
        Err(LoadError::Read { .. })
    ));
}
