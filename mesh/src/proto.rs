//! The cores of the mesh: pure, without sockets, clocks or disks.

pub mod address_book;
pub mod replication;
