//! Idempotency keys: a request that makes something may be sent again, and makes it once.
//!
//! A request with a key is written down before it is worked on, and its answer before it is told, both
//! synced. So whoever has seen an answer gets it again, also from the next daemon, and work of which
//! nobody knows whether it was finished is never begun a second time: its key is answered with an
//! error that says so. Keys are each caller's own, and bounded in number, size and time.

mod layer;
mod store;

pub(crate) use self::{
    layer::{Keyed, layer},
    store::{IdempotencyError, Keys},
};
