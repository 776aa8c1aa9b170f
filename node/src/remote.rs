//! Other nodes: what they may ask of this one, and what this one asks of them.
//!
//! Nodes speak the daemon's own HTTP API to each other, each request on a control stream of the
//! mesh that proves who asks. [`grants`] says, purely, what a route takes; [`serve`] lets through
//! what a peer may; [`on`] passes a request of the owner on to another node; [`ask`] puts a
//! question of our own. [`record`] is what a sandbox that sleeps leaves in the memory of its space,
//! [`hold`] keeps its snapshot on other nodes, [`repair`] makes up for those that go, [`claims`] says who may, [`wake`] goes
//! on from it anywhere, [`streaming`] before all of it has arrived, and [`alarm`] does so when what it waits for comes. Nothing here
//! coordinates: the asker chooses, the target accepts or refuses.

pub(crate) mod alarm;
pub(crate) mod arriving;
pub(crate) mod ask;
pub(crate) mod asleep;
pub(crate) mod claims;
pub(crate) mod everywhere;
pub(crate) mod facts;
pub(crate) mod grants;
pub(crate) mod hold;
pub(crate) mod images;
pub(crate) mod keys;
pub(crate) mod notes;
pub(crate) mod on;
pub(crate) mod packs;
pub(crate) mod placement;
pub(crate) mod proxy;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod repair;
pub(crate) mod routes;
pub(crate) mod serve;
pub(crate) mod streaming;
pub(crate) mod sweep;
pub(crate) mod wake;
