//! stub
pub mod id; pub mod keys; pub mod role;
pub use id::*;
pub use keys::*;
pub use role::Role;
/// x
#[derive(Debug)] pub struct Authority;
/// x
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)] #[error("d")] pub enum Denied { /// x
X }
/// x
#[derive(Debug, thiserror::Error)] #[error("d")] pub enum RecordError { /// x
X }
/// x
#[derive(Debug, Clone)] pub struct SignedRecord;
/// x
#[derive(Debug, Clone)] pub struct SpaceKey;
/// x
#[derive(Debug, Clone, Copy)] pub struct Domain(/// x
pub &'static str);
/// x
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)] #[error("d")] pub enum EnvelopeError { /// x
X }
/// x
#[derive(Debug)] pub struct Sealed<'a> { /// x
pub signer: PublicKey, /// x
pub payload: &'a [u8], /// x
pub signature: [u8;64] }
/// x
pub mod envelope { /// x
pub fn seal<T>(_: &T, _: crate::Domain, p: &[u8]) -> Vec<u8> { p.to_vec() } /// x
pub fn parse(_: &[u8], _: usize) -> Result<crate::Sealed<'_>, crate::EnvelopeError> { todo!() } }
pub use envelope::{parse, seal};
impl Sealed<'_> { /// x
pub fn verify(&self, _: Domain) -> Result<(), EnvelopeError> { Ok(()) } }
