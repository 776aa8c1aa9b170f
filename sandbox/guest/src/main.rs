//! The agent inside a microVM: PID 1, and by the name `rhizome` the command of its users.
#![deny(unsafe_code)]

mod agent;
mod boot;
mod cli;
mod sys;

use std::{env, ffi::OsString, io::Write, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let mut args = env::args_os();
    let name = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    if rustix::process::getpid().is_init() {
        sys::share_the_heap();
        boot::run();
    }
    let by_name = Path::new(&name)
        .file_name()
        .is_some_and(|name| name == "rhizome");
    match args.first().and_then(|word| word.to_str()) {
        // For tests: the same agent as an ordinary process.
        Some("serve") if !by_name => agent::serve_here(&args[1..]),
        Some("cli") if !by_name => cli::main(args[1..].to_vec()),
        _ if by_name => cli::main(args),
        _ => {
            // Nothing is left to do if standard error is closed.
            let _ = writeln!(
                std::io::stderr(),
                "This is the agent of a rhizome sandbox. It runs as /init; its users call it as \
                 `rhizome`."
            );
            ExitCode::from(2)
        }
    }
}
