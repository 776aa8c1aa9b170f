//! Builds the guest agent and hands it to the crate to embed.
//!
//! The agent must be static, since an image need not have any library, and it must be one file
//! with the daemon, since there is nowhere to fetch it from. So cargo runs a second time, for
//! the one crate, in a target directory of its own (the outer one is locked).

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the agent runs on: the guests are x86-64, whatever built the daemon.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Variables of cargo that say where things come from; all others would change what is built.
const KEPT_PREFIXES: &[&str] = &[
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
];

fn main() {
    let here = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let guest = here.join("guest");
    let out = PathBuf::from(var("OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rerun-if-changed={}",
        guest.join("Cargo.toml").display()
    );
    watch(&guest.join("src"));

    let target_dir = out.join("guest-target");
    let mut cargo = Command::new(var("CARGO"));
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let of_cargo = name.starts_with("CARGO") || name.starts_with("__CARGO");
        let of_rustc = name.starts_with("RUSTC") || name.starts_with("RUSTFLAGS");
        // `OUT_DIR`, `TARGET` and their like are set for build scripts only.
        let of_script =
            ["OUT_DIR", "TARGET", "HOST", "PROFILE", "OPT_LEVEL", "DEBUG"].contains(&name.as_ref());
        let kept = KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if (of_cargo && !kept) || of_rustc || of_script {
            cargo.env_remove(name.as_ref());
        }
    }
    cargo
        .current_dir(&guest)
        .args([
            "build",
            "--release",
            "--bin",
            "rhizome-guest",
            "--target",
            TARGET,
            "--quiet",
        ])
        // All that it needs was fetched for the library of the same crate.
        .args(["--offline", "--locked"])
        .arg("--manifest-path")
        .arg(guest.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "4")
        // Not `abort`: a panic in one stream's thread must not take PID 1 with it.
        .env("CARGO_PROFILE_RELEASE_PANIC", "unwind");
    let status = cargo
        .status()
        .unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(
        status.success(),
        "the guest agent does not build for {TARGET} ({status}); its errors are above. If the \
         target is missing: rustup target add {TARGET}"
    );

    let built = target_dir.join(TARGET).join("release/rhizome-guest");
    let embedded = out.join("rhizome-guest");
    fs::copy(&built, &embedded)
        .unwrap_or_else(|error| panic!("cannot copy {}: {error}", built.display()));
    println!(
        "cargo::rustc-env=RHIZOME_GUEST_BINARY={}",
        embedded.display()
    );
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}

/// Names every file below `dir`: a directory's own time does not change with its files.
fn watch(dir: &Path) {
    println!("cargo::rerun-if-changed={}", dir.display());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            watch(&path);
        } else {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}
