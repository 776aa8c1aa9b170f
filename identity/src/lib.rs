//! Who a node is, who may do what in a mesh, and how others check it.
//!
//! A mesh has one root of trust. What its root, its admins and its members decide are signed
//! [`Record`]s of one authority log, and [`resolve`] turns any set of them into the same
//! [`Authority`], whatever the order of arrival. Nothing here opens sockets or reads clocks; the
//! only files touched are key files whose path the caller names ([`keyfile`]).
//!
//! - [`id`], [`role`]: ids and the ladder of roles
//! - [`keys`], [`keyfile`], [`words`]: secret keys, in memory, on disk and on paper
//! - [`envelope`], [`cbor`]: COSE_Sign1 over deterministic CBOR, single and batch verification
//! - [`epoch`]: space keys, body encryption, wraps to a node
//! - [`record`], [`authority`], [`issue`]: the authority log, its resolution, and making records
//! - [`invite`]: the string a newcomer is handed, and its redemption
//! - [`node_info`], [`relay_url`]: a node's signed address-book entry, and the relays it names
//!
//! Byte layouts: `docs/wire.md`, sections 1 to 3.
#![forbid(unsafe_code)]

pub mod authority;
pub mod cbor;
pub mod envelope;
pub mod epoch;
#[doc(hidden)]
pub mod fuzz;
pub mod id;
pub mod invite;
pub mod issue;
pub mod keyfile;
pub mod keys;
pub mod node_info;
pub mod record;
pub mod relay_url;
pub mod role;
pub mod words;

pub use authority::{
    AgentInfo, Authority, Denied, Frozen, HeldKeys, Inserted, InviteState, MAX_CERT_DEPTH, Member,
    Pin, Proof, Reach, RecordLog, Revocation, SpaceInfo, SpaceLookupError, VoidReason, resolve,
};
pub use envelope::{Domain, EnvelopeError, Sealed, parse, seal, verify_batch};
pub use epoch::{
    BodyError, SpaceKey, WrapError, WrappedKey, open_body, seal_body, unwrap_key, wrap_key,
};
pub use id::{AgentId, Hash, InviteId, MeshId, NodeId, ParseIdError, PublicKey, RecordId, SpaceId};
pub use invite::{Invite, InviteEndpoint, InviteError, RedeemError, check_redeem};
pub use issue::{InviteParams, IssueError};
pub use keyfile::KeyFileError;
pub use keys::{AgentKey, NodeKey, RootKey, SecretKey};
pub use node_info::{NodeInfo, NodeInfoError};
pub use record::{
    FRAGMENT_DOMAIN, ForkProof, Forked, MAX_FRAGMENT_ENVELOPE, Record, RecordBody, RecordError,
    SignedRecord, Verbs,
};
pub use relay_url::is_relay_url;
pub use role::Role;
