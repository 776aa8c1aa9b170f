//! Hosts with addresses of their own on one machine.
//!
//! As root on Linux each host is a network namespace behind one bridge; elsewhere all hosts share
//! the loopback interface and differ by port. A namespace's name carries the lab's process id, so
//! that labs run side by side and [`Hosts::create`] can sweep away what a killed lab left behind.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use super::{LabError, daemon::run};

/// The UDP port of every daemon that has an address of its own.
const PORT: u16 = 4570;

/// One host: a name, an address, and the namespace it lives in if it has one.
#[derive(Debug, Clone)]
pub struct Host {
    /// What the host is called, and the node on it.
    pub name: String,
    /// Where its daemon listens; port 0 where the system shall choose.
    pub bind: SocketAddr,
    namespace: Option<String>,
}

impl Host {
    /// Returns `program` as a command that runs on this host.
    pub fn command(&self, program: &Path) -> Command {
        match &self.namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
        }
    }
}

impl Host {
    /// Cuts this host off from all others: nftables drops what comes and what goes.
    ///
    /// # Errors
    /// [`LabError`] if the host shares its network with others, or nftables is not there.
    pub fn cut(&self) -> Result<(), LabError> {
        let chain = |hook: &str| {
            format!(
                "add chain inet cut {hook} {{ type filter hook {hook} priority 0 ; policy drop ; }}"
            )
        };
        let rules = [
            "add table inet cut".to_owned(),
            chain("input"),
            chain("output"),
            "add rule inet cut input iif lo accept".to_owned(),
            "add rule inet cut output oif lo accept".to_owned(),
        ];
        self.nft(&rules.join("\n"))
    }

    /// Undoes [`Self::cut`].
    ///
    /// # Errors
    /// As [`Self::cut`], also if the host was not cut off.
    pub fn mend(&self) -> Result<(), LabError> {
        self.nft("delete table inet cut")
    }

    /// Gives this host another address instead of `from`, as a laptop gets in another network.
    ///
    /// # Errors
    /// [`LabError`] if the host shares its network with others, or the system refuses.
    pub fn roam(&self, from: IpAddr, to: IpAddr) -> Result<(), LabError> {
        let address = |verb: &str, of: IpAddr| {
            self.within("ip", &["addr", verb, &format!("{of}/24"), "dev", "eth0"])
        };
        address("del", from)?;
        address("add", to)?;
        // The last address took the routes with it.
        self.within("ip", &["route", "replace", "224.0.0.0/4", "dev", "eth0"])
    }

    fn nft(&self, rules: &str) -> Result<(), LabError> {
        self.within("nft", &[rules])
    }

    /// Runs a command that changes this host's own network.
    fn within(&self, program: &str, args: &[&str]) -> Result<(), LabError> {
        if self.namespace.is_none() {
            return Err(LabError::Failed {
                command: format!("{program} {}", args.join(" ")),
                status: "not run".to_owned(),
                stderr: "the host has no network of its own".to_owned(),
            });
        }
        run(self.command(Path::new(program)).args(args)).map(drop)
    }
}

/// A set of hosts that can reach each other; dropped, it takes its namespaces with it.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    bridge: Option<String>,
    /// Why these are not namespaces, where they should have been.
    fallback: Option<String>,
}

impl Hosts {
    /// Makes one host per name: namespaces if this machine lets us, loopback otherwise.
    pub fn create(names: &[&str]) -> Self {
        sweep();
        match Self::namespaces(names) {
            Ok(hosts) => hosts,
            Err(error) => {
                let mut hosts = Self::loopback(names);
                hosts.fallback = Some(error.to_string());
                hosts
            }
        }
    }

    /// Makes hosts that share the loopback interface.
    pub fn loopback(names: &[&str]) -> Self {
        let bind = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let hosts = names.iter().map(|name| Host {
            name: (*name).to_owned(),
            bind,
            namespace: None,
        });
        Self {
            hosts: hosts.collect(),
            bridge: None,
            fallback: None,
        }
    }

    /// Makes each host a network namespace with an address of its own.
    ///
    /// # Errors
    /// [`LabError`] if this process may not make namespaces; nothing is left behind.
    pub fn namespaces(names: &[&str]) -> Result<Self, LabError> {
        let id = std::process::id();
        let bridge = format!("rzb{id}");
        // From here on a failure drops `lab`, which undoes what has been made.
        let mut lab = Self {
            hosts: Vec::new(),
            bridge: Some(bridge.clone()),
            fallback: None,
        };
        let subnet = u8::try_from(id % 250).expect("a remainder of 250 fits a byte");
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["link", "set", &bridge, "up"])?;
        for (index, name) in (1_u8..).zip(names) {
            let namespace = format!("rz{id}-{name}");
            let (outside, inside) = (format!("rz{id}.{index}"), format!("rz{id}i{index}"));
            let address = Ipv4Addr::new(10, 77, subnet, index);
            ip(&["netns", "add", &namespace])?;
            lab.hosts.push(Host {
                name: (*name).to_owned(),
                bind: SocketAddr::new(IpAddr::V4(address), PORT),
                namespace: Some(namespace.clone()),
            });
            ip(&[
                "link", "add", &outside, "type", "veth", "peer", "name", &inside,
            ])?;
            ip(&["link", "set", &outside, "master", &bridge, "up"])?;
            ip(&["link", "set", &inside, "netns", &namespace])?;
            let within = |args: &[&str]| ip(&[&["-n", &namespace], args].concat());
            within(&["link", "set", &inside, "name", "eth0"])?;
            within(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            within(&["link", "set", "eth0", "up"])?;
            within(&["link", "set", "lo", "up"])?;
            // A host on a real network has a default route; discovery by multicast needs one.
            within(&["route", "add", "224.0.0.0/4", "dev", "eth0"])?;
        }
        Ok(lab)
    }

    /// Returns the hosts in the order of their names' list.
    pub fn iter(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter()
    }

    /// Says in a few words what the hosts are made of, and why if that is the lesser choice.
    pub fn describe(&self) -> String {
        match (&self.bridge, &self.fallback) {
            (Some(_), _) => format!("{} network namespaces", self.hosts.len()),
            (None, None) => "the loopback interface".to_owned(),
            (None, Some(why)) => {
                format!("the loopback interface, as namespaces cannot be made here ({why})")
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Nothing useful can be done about a failure here; the next lab sweeps again.
        for namespace in self
            .hosts
            .iter()
            .filter_map(|host| host.namespace.as_deref())
        {
            let _ = ip(&["netns", "del", namespace]);
        }
        if let Some(bridge) = &self.bridge {
            let _ = ip(&["link", "del", bridge]);
        }
    }
}

/// Removes the namespaces and bridges of labs whose process is gone.
fn sweep() {
    let is_gone = |id: &str| {
        id.parse::<u32>()
            .is_ok_and(|id| !Path::new(&format!("/proc/{id}")).exists())
    };
    let Ok(namespaces) = ip(&["netns", "list"]) else {
        return;
    };
    for name in namespaces
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        if name
            .strip_prefix("rz")
            .and_then(|rest| rest.split_once('-'))
            .is_some_and(|(id, _)| is_gone(id))
        {
            let _ = ip(&["netns", "del", name]);
        }
    }
    let Ok(links) = ip(&["-brief", "link", "show", "type", "bridge"]) else {
        return;
    };
    for name in links
        .lines()
        .filter_map(|line| line.split_whitespace().next())
    {
        if name.strip_prefix("rzb").is_some_and(is_gone) {
            let _ = ip(&["link", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<String, LabError> {
    run(Command::new("ip").args(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_run_commands_as_they_are() {
        let hosts = Hosts::loopback(&["a", "b"]);
        let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let host = hosts.iter().next().expect("two hosts were made");
        assert_eq!(host.command(Path::new("true")).get_program(), "true");
    }

    #[test]
    fn namespaces_reach_each_other_and_go_away() {
        let hosts = match Hosts::namespaces(&["a", "b"]) {
            Ok(hosts) => hosts,
            Err(error) => {
                eprintln!("skipped: namespaces_reach_each_other_and_go_away: {error}");
                return;
            }
        };
        let [a, b] = [0, 1].map(|index| {
            hosts
                .iter()
                .nth(index)
                .expect("two hosts were made")
                .clone()
        });
        assert_ne!(a.bind.ip(), b.bind.ip());
        let route =
            run(a
                .command(Path::new("ip"))
                .args(["route", "get", &b.bind.ip().to_string()]));
        assert!(route.expect("b is on a's network").contains("eth0"));
        let namespace = a.namespace.clone().expect("a is a namespace");
        drop(hosts);
        assert!(
            !ip(&["netns", "list"])
                .expect("namespaces can be listed")
                .contains(&namespace)
        );
    }
}
