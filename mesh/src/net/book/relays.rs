//! The relays of the mesh: handed to the endpoint as the book learns of them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use iroh::Watcher as _;
use rhizome_identity::NodeId;
use tokio::time::Instant;
use tracing::debug;

use crate::{
    net::endpoint::Net,
    proto::relays::{Input, Output, Relays},
};

/// Relays that are tried for a peer beside those through which it says it can be reached: it may
/// have moved to one of them since.
const TRIED: usize = 3;

/// What the rest of the book sees of the relays.
#[derive(Debug, Default)]
pub(super) struct Seen {
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    /// Through which others reach us.
    home: Option<String>,
    /// In use, the home first.
    in_use: Vec<String>,
    servers: BTreeMap<String, NodeId>,
}

impl Seen {
    /// Returns the relay through which others reach us, once we are connected with it.
    pub(super) fn home(&self) -> Option<String> {
        self.lock().home.clone()
    }

    /// Returns the relays to try for a peer that says that it can be reached `via` some.
    pub(super) fn towards(&self, via: &[String]) -> Vec<String> {
        let mut urls = via.to_vec();
        let more = self
            .lock()
            .in_use
            .iter()
            .take(TRIED)
            .cloned()
            .collect::<Vec<_>>();
        urls.extend(more.into_iter().filter(|url| !via.contains(url)));
        urls
    }

    /// Returns the member that serves the relay at `url`.
    pub(super) fn server_of(&self, url: &str) -> Option<NodeId> {
        self.lock().servers.get(url).copied()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // It is replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries out what the core decides.
#[derive(Debug)]
pub(super) struct Keeper {
    core: Relays,
    net: Net,
    started: Instant,
    home: Option<(String, bool)>,
}

impl Keeper {
    pub(super) fn new(net: Net) -> Self {
        Self {
            core: Relays::new(net.me()),
            net,
            started: Instant::now(),
            home: None,
        }
    }

    /// Tells the core what `node` says of itself.
    pub(super) async fn announced(
        &mut self,
        seen: &Seen,
        node: NodeId,
        relay: Option<String>,
    ) -> bool {
        let input = match relay {
            Some(url) => Input::Serves(node, url),
            None => Input::Ends(node),
        };
        self.tell(seen, input).await
    }

    /// Tells the core; returns whether what [`Seen`] says has changed.
    pub(super) async fn tell(&mut self, seen: &Seen, input: Input) -> bool {
        let outputs = self.core.handle(self.started.elapsed(), input);
        self.carry_out(seen, outputs).await
    }

    /// Does what is due.
    pub(super) async fn due(&mut self, seen: &Seen) -> bool {
        let outputs = self.core.handle_timeout(self.started.elapsed());
        self.carry_out(seen, outputs).await
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = self.core.next_deadline()?;
        Some(self.started + due)
    }

    /// Waits until the endpoint says something new of its home relay.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing: the next call compares anew.
    pub(super) async fn home_changed(&self) -> Option<(String, bool)> {
        let mut status = self.net.endpoint.home_relay_status();
        loop {
            let home = status.get().first().map(|relay| {
                let connected = relay.is_connected();
                (relay.url().to_string(), connected)
            });
            if home != self.home {
                return home;
            }
            if status.updated().await.is_err() {
                // The endpoint is closed.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes in what [`Self::home_changed`] returned.
    pub(super) async fn home_is(&mut self, seen: &Seen, home: Option<(String, bool)>) -> bool {
        debug!(?home, "home relay");
        self.home.clone_from(&home);
        self.tell(seen, Input::Home(home)).await
    }

    async fn carry_out(&mut self, seen: &Seen, outputs: Vec<Output>) -> bool {
        for output in outputs {
            match output {
                Output::Use(url) => {
                    debug!(url, "relay taken into use");
                    self.net.use_relay(&url, None).await;
                }
                Output::Leave(url) => {
                    debug!(url, "relay left");
                    self.net.leave_relay(&url).await;
                }
            }
        }
        let home = self.home.clone().filter(|(_, connected)| *connected);
        let home = home.map(|(url, _)| url);
        let mut in_use: Vec<String> = self.core.in_use().map(str::to_owned).collect();
        in_use.sort_by_key(|url| Some(url) != home.as_ref());
        let servers = self.core.servers();
        let servers = servers.map(|(url, node)| (url.to_owned(), node)).collect();
        let mut state = seen.lock();
        let changed = state.home != home || state.in_use != in_use;
        *state = State {
            home,
            in_use,
            servers,
        };
        changed
    }
}
