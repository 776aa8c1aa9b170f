//! The simulator and the labs of Rhizome.
//!
//! - [`sim`]: many nodes in virtual time on the cores of production, from one seed
//! - [`lab`]: real daemons on hosts of their own
#![forbid(unsafe_code)]

pub mod lab;
pub mod sim;
