//! Runs libFuzzer over every target in turn, or over those named: `all SECONDS [TARGET…]`.
//!
//! What libFuzzer finds interesting goes to `target/corpus`, so that the corpus that is checked in
//! grows by choice alone.

// Built with the same instruments, so it needs their runtime as well.
use libfuzzer_sys as _;

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let seconds: u32 = args.next().and_then(|text| text.parse().ok()).unwrap_or(60);
    let wanted: Vec<String> = args.filter(|name| !name.is_empty()).collect();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let myself = std::env::current_exe().expect("this program has a path");
    let fuzzer = myself.with_file_name("any");
    let mut failed = Vec::new();
    for (name, ..) in rhizome_fuzz::targets() {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        let grown = here.join("target/corpus").join(name);
        let artifacts = here.join("artifacts").join(name);
        for dir in [&grown, &artifacts] {
            fs::create_dir_all(dir).expect("the directory can be made");
        }
        println!("{name}: {seconds} s");
        let status = Command::new(&fuzzer)
            .env("FUZZ_TARGET", name)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"])
            .args(["-print_final_stats=1", "-verbosity=0"])
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(&grown)
            .arg(here.join("corpus").join(name))
            .status();
        if !status.is_ok_and(|status| status.success()) {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("failed: {}; inputs are in fuzz/artifacts", failed.join(" "));
    ExitCode::FAILURE
}
