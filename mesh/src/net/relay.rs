//! Relays: any member that others can reach carries packets for those who have no direct path.
//!
//! A relay is iroh's: WebSocket over HTTP, a handshake that proves the client's node key, and
//! datagrams by node id. What it carries is QUIC, encrypted from end to end; it sees who sends
//! how much to whom (`docs/threat-model.md`). Only members use it, and whoever proves that it
//! holds an open invite, for as long as a join takes (`docs/adr/0043-members-relay-for-members.md`).
//!
//! - [`server`]: the listener of a node that serves, and its bounds
//! - [`access`]: who may use it, asked again when the membership changes
//! - [`guest`]: the proof of a newcomer
//!
//! Which relays a node uses is decided in [`crate::proto::relays`], and carried out by the address
//! book, which hears who serves.

mod access;
pub(crate) mod guest;
mod server;

use std::net::{IpAddr, SocketAddr};

pub(crate) use self::server::RelayServer;

/// A relay that this node serves for its mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// The TCP address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The URL at which others reach it, behind a forwarded port or a proxy that speaks TLS;
    /// otherwise it is made from `listen` and the node's addresses.
    pub url: Option<String>,
}

/// What a relay that listens tells others.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// The URL that was configured.
    pub(crate) url: Option<String>,
}

impl Served {
    /// Returns the URL to announce on a node that is reached at `addrs`, the best first.
    pub(crate) fn url(&self, addrs: &[SocketAddr]) -> Option<String> {
        if let Some(url) = &self.url {
            return Some(url.clone());
        }
        let ip = if self.listen.ip().is_unspecified() {
            let ips = || addrs.iter().map(SocketAddr::ip).filter(|ip| self.hears(ip));
            ips()
                .find(|ip| !ip.is_loopback())
                .or_else(|| ips().next())?
        } else {
            self.listen.ip()
        };
        Some(format!(
            "http://{}/",
            SocketAddr::new(ip, self.listen.port())
        ))
    }

    /// A socket bound to the unspecified address of IPv6 hears both families.
    fn hears(&self, ip: &IpAddr) -> bool {
        self.listen.is_ipv6() || ip.is_ipv4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_announced_url_is_the_best_that_is_known() {
        let addrs: Vec<SocketAddr> = ["127.0.0.1:1", "[fd00::1]:1", "10.0.0.2:1"]
            .map(|addr| addr.parse().unwrap())
            .to_vec();
        let served = |listen: &str, url: Option<&str>| {
            let listen = listen.parse().unwrap();
            let url = url.map(str::to_owned);
            Served { listen, url }.url(&addrs)
        };
        assert_eq!(served("0.0.0.0:7", None).unwrap(), "http://10.0.0.2:7/");
        assert_eq!(served("[::]:7", None).unwrap(), "http://[fd00::1]:7/");
        assert_eq!(served("127.0.0.1:7", None).unwrap(), "http://127.0.0.1:7/");
        let url = "https://relay.example.org/";
        assert_eq!(served("0.0.0.0:7", Some(url)).unwrap(), url);
        let nowhere = Served {
            listen: "0.0.0.0:7".parse().unwrap(),
            url: None,
        };
        assert_eq!(nowhere.url(&[]), None);
    }
}
