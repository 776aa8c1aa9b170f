//! The simulator: many nodes in virtual time, faults included, the same run from the same seed.
//!
//! Every node runs the cores of production ([`Replication`](rhizome_mesh::proto::replication),
//! [`AddressBook`](rhizome_mesh::proto::address_book), [`Admission`](rhizome_memory::Admission),
//! the authority log) over a store whose writes take time and are lost in a crash until synced.
//! Connections lose, repeat and reorder frames; partitions, crashes and dead relays end them;
//! members may be hostile. What must hold is checked all through ([`Invariant`]).
//!
//! A run is made by hand, as below, or from a file ([`scenario`]), which `rhizome-netsim` runs.
//!
//! ```
//! use std::time::Duration;
//! use rhizome_netsim::sim::Netsim;
//!
//! let mut net = Netsim::seeded(7).peers(4).build();
//! net.publish(0);
//! net.run_until(Duration::from_secs(60), Netsim::all_acked_everywhere);
//! assert!(net.all_acked_everywhere(), "{}", net.replay());
//! ```

mod arena;
mod dice;
mod events;
mod founding;
mod hostile;
mod invariants;
mod links;
mod network;
mod node;
pub mod run;
pub mod scenario;
mod store;
mod views;

pub use self::{
    dice::seed_from_env_or,
    hostile::{Hostility, UnknownHostility},
    invariants::{Invariant, Violation},
    network::{Builder, Netsim},
    views::Seen,
};
