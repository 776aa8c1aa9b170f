//! The address book: where every member was last known to be, kept for good.
//!
//! Each member signs its own entry ([`NodeInfo`]); the newest wins, whoever passes it on. Entries
//! travel in the sync session, so a node knows how to reach a member that it was never introduced
//! to, also after the introducer has died. [`AddressBook`](crate::proto::address_book::AddressBook) decides when to dial.

mod file;
mod relays;
mod task;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use rhizome_identity::{NodeId, NodeInfo, NodeKey};
use rhizome_memory::now_ms;
use tokio::{sync::mpsc, time::Instant};
use tracing::trace;

use crate::net::{MeshConfig, StartError, endpoint::Net, peers::Peers, relay::Served};

use self::{file::Saved, relays::Seen};

/// The file below the data directory.
const FILE: &str = "peers.book";
/// News that wait for the book; senders wait when it is full.
const QUEUE: usize = 256;
/// Entries of nodes that are no members yet: their Grant may be on its way.
const MAX_STRANGERS: usize = 64;
/// The most addresses of one entry.
const MAX_ADDRS: usize = 16;

#[derive(Debug)]
enum News {
    Learn(Option<NodeId>, Vec<Bytes>),
    Up(NodeId),
    Down(NodeId),
    Members(BTreeSet<NodeId>),
}

#[derive(Debug, Clone)]
struct Entry {
    info: NodeInfo,
    bytes: Bytes,
}

#[derive(Debug)]
struct Own {
    /// Rises with every new entry, whatever the clock does while we run.
    seq_ms: u64,
    addrs: Vec<SocketAddr>,
    relay: Option<String>,
    via: Vec<String>,
    bytes: Bytes,
}

#[derive(Debug)]
struct Shared {
    net: Net,
    key: NodeKey,
    name: String,
    advertise: Vec<SocketAddr>,
    /// The relay that this node serves.
    served: Option<Served>,
    relays: Seen,
    own: Mutex<Own>,
    entries: Mutex<BTreeMap<NodeId, Entry>>,
    news: mpsc::Sender<News>,
}

/// A handle to the address book.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    shared: Arc<Shared>,
}

/// The task that owns the file and the dialling.
pub(crate) struct BookTask {
    book: Book,
    news: mpsc::Receiver<News>,
    path: PathBuf,
    last_seen: BTreeMap<NodeId, u64>,
    members: BTreeSet<NodeId>,
    strangers: BTreeMap<NodeId, Entry>,
    dirty_since: Option<Instant>,
}

impl Book {
    /// Reads the book and signs our own first entry.
    pub(crate) fn open(
        config: &MeshConfig,
        key: &NodeKey,
        net: Net,
        peers: &Peers,
        served: Option<Served>,
    ) -> Result<(Self, BookTask), StartError> {
        let path = config.data_dir.join(FILE);
        let saved = file::load(&path).map_err(|source| StartError::Data {
            path: path.clone(),
            source,
        })?;
        let mut entries = BTreeMap::new();
        let mut last_seen = BTreeMap::new();
        for Saved {
            node,
            info,
            last_seen_ms,
        } in saved
        {
            if let Some(at) = last_seen_ms {
                last_seen.insert(node, at);
                peers.remember(node, at);
            }
            if let Some(entry) = Entry::parse(info.into()).filter(|entry| entry.info.node == node) {
                let via = entry.info.via.iter().map(String::as_str);
                net.set_addrs(&node, &entry.info.addrs, via);
                entries.insert(node, entry);
            }
        }
        let (news_in, news) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            own: Mutex::new(Own {
                seq_ms: 0,
                addrs: Vec::new(),
                relay: None,
                via: Vec::new(),
                bytes: Bytes::new(),
            }),
            net,
            key: NodeKey::from_seed(*key.secret_bytes()),
            name: config.node_name.clone(),
            advertise: config.advertise.clone(),
            served,
            relays: Seen::default(),
            entries: Mutex::new(entries),
            news: news_in,
        });
        let book = Self { shared };
        book.refresh_own();
        let task = BookTask {
            book: book.clone(),
            news,
            path,
            last_seen,
            members: BTreeSet::new(),
            strangers: BTreeMap::new(),
            dirty_since: None,
        };
        Ok((book, task))
    }

    /// Returns our own signed entry.
    pub(crate) fn own_info(&self) -> Bytes {
        self.own().bytes.clone()
    }

    /// Returns the addresses at which others can dial us.
    pub(crate) fn own_addrs(&self) -> Vec<SocketAddr> {
        self.refresh_own();
        self.own().addrs.clone()
    }

    /// Returns the URLs of the relays through which others reach us: the one that we serve, and
    /// the one that we use.
    pub(crate) fn own_relays(&self) -> Vec<String> {
        self.refresh_own();
        let own = self.own();
        let mut urls: Vec<String> = own.relay.iter().chain(&own.via).cloned().collect();
        urls.dedup();
        urls
    }

    /// Returns the URL of the relay that we serve.
    pub(crate) fn own_relay(&self) -> Option<String> {
        self.refresh_own();
        self.own().relay.clone()
    }

    /// Returns the relay through which others reach us now.
    pub(crate) fn home_relay(&self) -> Option<String> {
        self.shared.relays.home()
    }

    /// Returns the member that serves the relay at `url`, if one says so.
    pub(crate) fn server_of(&self, url: &str) -> Option<NodeId> {
        self.shared.relays.server_of(url)
    }

    /// Returns the signed entries of all members that are known, and our own.
    pub(crate) fn infos(&self) -> Vec<Bytes> {
        let entries = self.entries();
        let others = entries.values().map(|entry| entry.bytes.clone());
        others.chain([self.own_info()]).collect()
    }

    /// Returns what `node` last said of itself.
    pub(crate) fn info(&self, node: &NodeId) -> Option<NodeInfo> {
        self.entries().get(node).map(|entry| entry.info.clone())
    }

    /// Takes in signed entries that `from` passed on.
    pub(crate) async fn learn(&self, from: Option<NodeId>, infos: Vec<Bytes>) {
        self.tell(News::Learn(from, infos)).await;
    }

    /// A session with `peer` began.
    pub(crate) async fn up(&self, peer: NodeId) {
        self.tell(News::Up(peer)).await;
    }

    /// The session with `peer` ended.
    pub(crate) async fn down(&self, peer: NodeId) {
        self.tell(News::Down(peer)).await;
    }

    /// The other members of the mesh are `members` now.
    pub(crate) async fn members(&self, members: BTreeSet<NodeId>) {
        self.tell(News::Members(members)).await;
    }

    async fn tell(&self, news: News) {
        if self.shared.news.send(news).await.is_err() {
            trace!("the address book has stopped");
        }
    }

    /// Tells the endpoint where `info`'s node may be reached.
    fn point(&self, info: &NodeInfo) {
        let relays = self.shared.relays.towards(&info.via);
        let relays = relays.iter().map(String::as_str);
        self.shared.net.set_addrs(&info.node, &info.addrs, relays);
    }

    /// Signs a new own entry when our addresses or relays have changed; returns whether they have.
    fn refresh_own(&self) -> bool {
        let shared = &self.shared;
        let mut addrs = shared.advertise.clone();
        for addr in shared.net.local_addrs() {
            if !addrs.contains(&addr) {
                addrs.push(addr);
            }
        }
        addrs.truncate(MAX_ADDRS);
        let served = shared.served.as_ref();
        let relay = served.and_then(|served| served.url(&addrs));
        let via: Vec<String> = shared.relays.home().into_iter().collect();
        let mut own = self.own();
        let same = own.addrs == addrs && own.relay == relay && own.via == via;
        if same && !own.bytes.is_empty() {
            return false;
        }
        let info = NodeInfo {
            node: shared.key.id(),
            name: shared.name.clone(),
            addrs,
            seq_ms: now_ms().max(own.seq_ms + 1),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            relay,
            via,
        };
        own.seq_ms = info.seq_ms;
        match info.sign(&shared.key) {
            Ok(bytes) => own.bytes = bytes.into(),
            // The name is checked where it is configured, so this is our own mistake.
            Err(error) => tracing::error!(%error, "cannot sign the own address-book entry"),
        }
        (own.addrs, own.relay, own.via) = (info.addrs, info.relay, info.via);
        true
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.shared
            .own
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<NodeId, Entry>> {
        self.shared
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn parse(bytes: Bytes) -> Option<Self> {
        match NodeInfo::parse(&bytes) {
            Ok(info) => Some(Self { info, bytes }),
            Err(error) => {
                trace!(%error, "not an address-book entry");
                None
            }
        }
    }
}
/// Reads an address book whose checksum holds, for [`crate::fuzz`].
pub(crate) fn probe(body: &[u8]) {
    let Some(entries) = file::parse(&file::framed(body)) else {
        return;
    };
    let again = minicbor::to_vec(&entries).expect("memory takes every byte");
    let read = file::parse(&file::framed(&again));
    assert_eq!(read, Some(entries));
    assert_eq!(file::parse(body), None, "an address book inside another");
}

/// Returns bodies of address books, for [`crate::fuzz`].
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let entry = |n: u8, seen: Option<u64>| file::Saved {
        node: NodeId::from_bytes([n; 32]),
        info: vec![n; 40],
        last_seen_ms: seen,
    };
    let books = [vec![], vec![entry(1, None), entry(2, Some(77))]];
    books
        .map(|book| minicbor::to_vec(book).expect("memory takes every byte"))
        .to_vec()
}
