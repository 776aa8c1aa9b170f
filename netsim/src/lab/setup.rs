//! The programs a sandbox needs that are not ours, brought from Debian's packages.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use super::{LabError, daemon::run};

/// A program, or the path of a file, and the Debian or Ubuntu package that carries it.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.erofs", "erofs-utils"),
    ("mkfs.ext4", "e2fsprogs"),
    (
        "/usr/share/keyrings/debian-archive-keyring.gpg",
        "debian-archive-keyring",
    ),
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
];

/// Installs what is missing of the programs that sandboxes and labs run; says what it does on `say`.
///
/// # Errors
/// [`LabError::Missing`] with the command to type if this user may not install packages.
pub fn setup(mut say: impl FnMut(&str)) -> Result<(), LabError> {
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .collect();
    if missing.is_empty() {
        say("every program that sandboxes need is here");
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    let command = format!(
        "apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    let refused = || LabError::Missing {
        programs: missing
            .iter()
            .map(|(program, _)| (*program).to_owned())
            .collect(),
        command: format!("sudo {command}"),
    };
    let prefix: &[&str] = match (is_root(), find("sudo")) {
        (true, _) => &[],
        // Without a terminal to ask for a password on, sudo must not wait for one.
        (false, Some(_)) => &["sudo", "-n"],
        (false, None) => return Err(refused()),
    };
    if find("apt-get").is_none() {
        return Err(refused());
    }
    say(&format!("installing {}", packages.join(", ")));
    let install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"];
    for args in [
        &["apt-get", "update", "-qq"][..],
        &[&install[..], &packages].concat(),
    ] {
        let words = [prefix, args].concat();
        let mut apt = Command::new(words[0]);
        apt.args(&words[1..])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        run(&mut apt).map_err(|error| match error {
            LabError::Failed { .. } if !is_root() => refused(),
            error => error,
        })?;
    }
    match missing.iter().all(|(program, _)| find(program).is_some()) {
        true => Ok(()),
        false => Err(refused()),
    }
}

/// Returns where `program` is: on the search path, or in the directories that only root's path has;
/// a path is looked for as it is.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(extra)
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

fn is_root() -> bool {
    run(Command::new("id").arg("-u")).is_ok_and(|id| id == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_search_path() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-as-this").is_none());
    }
}
