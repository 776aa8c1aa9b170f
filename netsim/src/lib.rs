//! The simulator and the labs of Rhizome.
//!
//! [`lab`] runs real daemons on hosts of their own.
pub mod lab;
