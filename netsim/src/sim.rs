//! The simulator: many nodes in virtual time, faults included, the same run from the same seed.
//!
//! Every node runs the cores of production ([`Replication`](rhizome_mesh::proto::replication),
//! [`AddressBook`](rhizome_mesh::proto::address_book), [`Admission`](rhizome_memory::Admission),
//! the authority log) over a store whose writes take time and are lost in a crash until synced.
//! Connections lose, repeat and reorder frames; partitions and crashes end them.
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

mod dice;
mod events;
mod founding;
mod hostile;
mod links;
mod network;
mod node;
mod shared;
mod store;

pub use self::{
    dice::seed_from_env_or,
    hostile::Hostility,
    network::{Builder, Netsim},
};
