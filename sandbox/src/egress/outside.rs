//! What lies beyond the boundary: names and addresses as the node itself reaches them.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::Semaphore,
    time::timeout,
};

use super::name::DomainName;

/// Lookups of all sandboxes that may be under way: each keeps a thread for as long as it takes.
const MAX_LOOKUPS: usize = 32;
/// Time for a lookup, the wait for its turn included.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);
/// Time for a connection to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Addresses of a name that are looked at.
pub(super) const MAX_ADDRESSES: usize = 16;

/// Why a name has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupError {
    /// There is no such name.
    Unknown,
    /// Nobody could say.
    Failed,
}

/// The world outside, as a boundary sees it. The policy has decided before anything here is asked.
pub trait Outside: fmt::Debug + Send + Sync + 'static {
    /// Returns the IPv4 addresses of a name.
    fn lookup<'a>(
        &'a self,
        name: &'a DomainName,
    ) -> BoxFuture<'a, Result<Vec<Ipv4Addr>, LookupError>>;

    /// Connects to an address.
    fn connect(&self, to: SocketAddrV4) -> BoxFuture<'_, io::Result<TcpStream>>;

    /// Whether the address is one of this machine's.
    fn is_own(&self, address: Ipv4Addr) -> bool;
}

/// The host's resolver and network.
#[derive(Debug)]
pub struct HostNetwork {
    lookups: Semaphore,
}

impl Default for HostNetwork {
    fn default() -> Self {
        Self {
            lookups: Semaphore::new(MAX_LOOKUPS),
        }
    }
}

impl Outside for HostNetwork {
    fn lookup<'a>(
        &'a self,
        name: &'a DomainName,
    ) -> BoxFuture<'a, Result<Vec<Ipv4Addr>, LookupError>> {
        let look_up = async move {
            let _turn = self
                .lookups
                .acquire()
                .await
                .map_err(|_| LookupError::Failed)?;
            let found = lookup_host((name.as_str(), 0)).await.map_err(|error| {
                // The resolver's codes come as words only.
                if error.to_string().contains("emporary") {
                    LookupError::Failed
                } else {
                    LookupError::Unknown
                }
            })?;
            let mut addresses: Vec<Ipv4Addr> = Vec::new();
            for address in found {
                if let IpAddr::V4(address) = address.ip()
                    && !addresses.contains(&address)
                    && addresses.len() < MAX_ADDRESSES
                {
                    addresses.push(address);
                }
            }
            Ok(addresses)
        };
        Box::pin(async move {
            let looked_up = timeout(LOOKUP_LIMIT, look_up).await;
            looked_up.unwrap_or(Err(LookupError::Failed))
        })
    }

    fn connect(&self, to: SocketAddrV4) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            match timeout(CONNECT_LIMIT, TcpStream::connect(SocketAddr::V4(to))).await {
                Ok(connected) => {
                    let stream = connected?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                }
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }

    fn is_own(&self, address: Ipv4Addr) -> bool {
        // The kernel picks the address itself as the source of a way to it, if it is one of ours.
        // Nothing is sent.
        let source = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect((address, 9))?;
            socket.local_addr()
        });
        source.is_ok_and(|source| source.ip() == IpAddr::V4(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_addresses_are_known() {
        let host = HostNetwork::default();
        assert!(host.is_own(Ipv4Addr::LOCALHOST));
        assert!(!host.is_own(Ipv4Addr::new(192, 0, 2, 1)));
        assert!(!host.is_own(Ipv4Addr::BROADCAST));
    }

    #[tokio::test]
    async fn the_hosts_resolver_is_asked() {
        let host = HostNetwork::default();
        let found = host.lookup(&"localhost".parse().unwrap()).await;
        assert_eq!(found, Ok(vec![Ipv4Addr::LOCALHOST]));
    }
}
