//! `rhizome sandbox forward`: ports of a sandbox on this machine.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use super::{Context, Failure, path_of};
use crate::{api::exec_routes::FORWARD_PROTOCOL, cli::client::Client};

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 100;
/// How long to wait when the system has no room for one more connection.
const RETRY: Duration = Duration::from_millis(100);

/// Which ports.
#[derive(Debug, Args)]
pub(crate) struct Forward {
    /// Name, id or unique prefix of one
    sandbox: String,
    /// A port of the sandbox, with the one here before it if it differs: 8000, 18000:8000,
    /// 0:8000 for any that is free, 0.0.0.0:80:8000 for other machines too
    #[arg(required = true, value_parser = Ports::parse, value_name = "[LOCAL:]PORT")]
    ports: Vec<Ports>,
}

/// A port here and one there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    here: SocketAddr,
    there: u16,
}

impl Ports {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not [[ADDRESS:]LOCAL:]PORT");
        let (rest, there) = text.rsplit_once(':').unwrap_or(("", text));
        let there: u16 = there.parse().map_err(|_| wrong())?;
        if there == 0 {
            return Err(wrong());
        }
        let here = match rest.rsplit_once(':') {
            _ if rest.is_empty() => SocketAddr::from((Ipv4Addr::LOCALHOST, there)),
            None => {
                let port: u16 = rest.parse().map_err(|_| wrong())?;
                SocketAddr::from((Ipv4Addr::LOCALHOST, port))
            }
            Some((address, port)) => {
                let address: IpAddr = address
                    .trim_matches(['[', ']'])
                    .parse()
                    .map_err(|_| wrong())?;
                SocketAddr::from((address, port.parse().map_err(|_| wrong())?))
            }
        };
        Ok(Self { here, there })
    }
}

pub(crate) async fn run(context: &Context, args: Forward) -> Result<(), Failure> {
    // A sandbox that is not there is an error now, not at the first connection.
    let _: serde_json::Value = context.client.get(&path_of(&args.sandbox)).await?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut listening = JoinSet::new();
    for ports in args.ports {
        let listener = TcpListener::bind(ports.here)
            .await
            .map_err(|source| Failure::File {
                path: ports.here.to_string().into(),
                source,
            })?;
        let here = listener.local_addr()?;
        if context.ui.is_json() {
            context.ui.object(&serde_json::json!({
                "local": here.to_string(), "sandbox": args.sandbox, "port": ports.there
            }))?;
        } else {
            context
                .ui
                .line(&format!("{here} -> {}:{}", args.sandbox, ports.there))?;
        }
        let path = format!("{}/forward?port={}", path_of(&args.sandbox), ports.there);
        let client = context.client.clone();
        listening.spawn(listen(listener, client, path, Arc::clone(&room)));
    }
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = listening.join_next() => Ok(()),
    }
}

async fn listen(listener: TcpListener, client: Client, path: String, room: Arc<Semaphore>) {
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((socket, _)) => {
                let (client, path) = (client.clone(), path.clone());
                tokio::spawn(async move {
                    if let Err(failure) = carry(socket, &client, &path).await {
                        failure.print();
                    }
                    drop(permit);
                });
            }
            // Out of descriptors: accepting at once would only spin.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn carry(mut socket: TcpStream, client: &Client, path: &str) -> Result<(), Failure> {
    let _ = socket.set_nodelay(true);
    let nothing = serde_json::json!({});
    let mut guest = client.upgrade(path, FORWARD_PROTOCOL, &nothing).await?;
    // Either end may cut it; then both see that, and there is nothing to say.
    let _ = copy_bidirectional(&mut socket, &mut guest).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_the_same_unless_told() {
        let ports = |text| Ports::parse(text).map(|ports| (ports.here.to_string(), ports.there));
        assert_eq!(ports("80"), Ok(("127.0.0.1:80".into(), 80)));
        assert_eq!(ports("8080:80"), Ok(("127.0.0.1:8080".into(), 80)));
        assert_eq!(ports("0:80"), Ok(("127.0.0.1:0".into(), 80)));
        assert_eq!(ports("0.0.0.0:1:80"), Ok(("0.0.0.0:1".into(), 80)));
        assert_eq!(ports("[::1]:1:80"), Ok(("[::1]:1".into(), 80)));
        for text in ["", "0", "x", "80:", "80:0", "a:1:80", "70000"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
