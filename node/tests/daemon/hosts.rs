//! Daemons on hosts of their own, between which the network can be cut.
use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use rhizome_netsim::lab::{Host, Hosts};

use crate::support::Daemon;

/// Hosts in one network: namespaces where this machine lets us make them, loopback elsewhere.
pub(crate) struct Lan {
    hosts: Hosts,
    /// Why nothing can be cut.
    no_cut: Option<String>,
}

impl Lan {
    pub(crate) fn of(names: &[&str]) -> Self {
        match Hosts::namespaces(names) {
            Err(error) => Self {
                hosts: Hosts::loopback(names),
                no_cut: Some(format!("no network namespaces can be made here: {error}")),
            },
            Ok(hosts) => {
                let mut lan = Self {
                    hosts,
                    no_cut: None,
                };
                let tried = lan.nft(
                    names[0],
                    "add table ip rhizome_probe; delete table ip rhizome_probe",
                );
                lan.no_cut = tried.err();
                lan
            }
        }
    }

    /// Says why the network cannot be cut, if so.
    pub(crate) fn can_cut(&self) -> Result<(), &str> {
        self.no_cut.as_deref().map_or(Ok(()), Err)
    }

    pub(crate) fn start_with_sandboxes(&self, dir: &Path, name: &str) -> Daemon {
        let host = self.host(name);
        let mut command = host.command(Path::new(env!("CARGO_BIN_EXE_rhizome")));
        command
            .arg("--data-dir")
            .arg(dir)
            .args(["up", "--name", name, "--no-mdns", "--bind"])
            .arg(host.bind.to_string())
            .arg("--images-dir")
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("images"))
            .stdin(Stdio::null());
        Daemon::spawn(command, dir)
    }

    /// Drops every packet between two hosts, at both ends.
    pub(crate) fn cut(&self, one: &str, other: &str) {
        for (here, there) in [(one, other), (other, one)] {
            let there = self.host(there).bind.ip();
            self.nft(
                here,
                &format!(
                    "add table ip cut
                     add chain ip cut in {{ type filter hook input priority 0; }}
                     add chain ip cut out {{ type filter hook output priority 0; }}
                     add rule ip cut in ip saddr {there} drop
                     add rule ip cut out ip daddr {there} drop"
                ),
            )
            .unwrap();
        }
    }

    /// Lets packets pass again.
    pub(crate) fn heal(&self, one: &str, other: &str) {
        for here in [one, other] {
            self.nft(here, "delete table ip cut").unwrap();
        }
    }

    fn host(&self, name: &str) -> &Host {
        let mut hosts = self.hosts.iter();
        hosts
            .find(|host| host.name == name)
            .expect("a host is called so")
    }

    fn nft(&self, on: &str, script: &str) -> Result<(), String> {
        let mut command: Command = self.host(on).command(Path::new("nft"));
        let child = command
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("cannot run nft: {error}"))?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // One that does not run does not read either; it says why below.
        let _ = stdin.write_all(script.as_bytes());
        drop(stdin);
        let ended = child.wait_with_output().expect("it can be waited for");
        match ended.status.success() {
            true => Ok(()),
            false => Err(format!(
                "nft cannot change the rules: {}",
                String::from_utf8_lossy(&ended.stderr).trim()
            )),
        }
    }
}
