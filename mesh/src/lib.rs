//! The mesh: how nodes find each other, who gets in, and how what they hold becomes the same.
//!
//! - [`proto`]: the cores, without sockets and clocks; what runs in the simulator runs here
//! - [`net`]: the shell that drives them over one iroh endpoint
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzz;
pub mod net;
pub mod proto;
