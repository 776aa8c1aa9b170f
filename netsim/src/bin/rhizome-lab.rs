//! `rhizome-lab`: sets up what tests and the demo need, and shows the main job on real parts.

#![forbid(unsafe_code)]

use std::{env, io::Write, path::PathBuf, process::ExitCode, time::Duration};

use rhizome_netsim::lab::{LabError, acceptance, demo, setup, soak};

const USAGE: &str = "usage: rhizome-lab setup|demo|acceptance|soak [SECONDS]

  setup   install the programs that sandboxes need from Debian's packages
  demo    show the main job: memory that outlives its machine
  acceptance
          install public clients in the user's cache, and run the tests that need them
  soak    publish on five daemons and kill them at random, 60 seconds by default; SEED decides whom";

fn main() -> ExitCode {
    let mut out = |line: &str| {
        let mut stdout = std::io::stdout().lock();
        // A closed pipe ends the show quietly; the steps go on to their end.
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    };
    let verb = env::args().nth(1).unwrap_or_default();
    let result = match verb.as_str() {
        "setup" => setup::setup(&mut out),
        "demo" => {
            let agents = env::var_os("RHIZOME_AGENTS")
                .map_or_else(|| "node/examples/agents".into(), PathBuf::from);
            let images = env::var_os("RHIZOME_IMAGES_DIR")
                .map_or_else(demo::default_images_dir, PathBuf::from);
            demo::demo(program(), agents, images, &mut out)
                .map(|steps| out(&format!("\ndemo: {steps} of {} steps", demo::STEPS)))
        }
        "acceptance" => acceptance::acceptance(&mut out)
            .map(|(passed, of)| out(&format!("\nacceptance: {passed} of {of} passed"))),
        "soak" => {
            let seconds = env::args().nth(2).and_then(|seconds| seconds.parse().ok());
            let length = Duration::from_secs(seconds.unwrap_or(60));
            let scratch = env::temp_dir().join(format!("rhizome-soak-{}", std::process::id()));
            let soaked = soak::soak(&program(), &scratch, 5, length);
            // After a failure the nodes' logs and stores are the evidence.
            if soaked.is_ok() {
                let _ = std::fs::remove_dir_all(&scratch);
            }
            soaked.map(|soaked| out(&format!("{soaked:?}")))
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Returns the `rhizome` program: named by the environment, or the one built beside this.
fn program() -> PathBuf {
    let beside = env::current_exe().ok();
    let beside = beside.and_then(|path| Some(path.parent()?.join("rhizome")));
    let named = env::var_os("RHIZOME").map(PathBuf::from);
    named.or(beside).unwrap_or_else(|| "rhizome".into())
}

fn report(error: &LabError) {
    eprintln!("error: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        eprintln!("  cause: {error}");
        cause = error.source();
    }
}
