//! Every fuzz target of the workspace, by name.

/// Name, target and seeds.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of each crate that was built in.
const CRATES: &[&[Target]] = &[
    #[cfg(feature = "identity")]
    rhizome_identity::fuzz::TARGETS,
    #[cfg(feature = "memory")]
    rhizome_memory::fuzz::TARGETS,
    #[cfg(feature = "mesh")]
    rhizome_mesh::fuzz::TARGETS,
    #[cfg(feature = "node")]
    rhizome_node::fuzz::TARGETS,
    #[cfg(feature = "guest")]
    rhizome_guest::fuzz::TARGETS,
    #[cfg(feature = "sandbox")]
    rhizome_sandbox::fuzz::TARGETS,
];

/// Returns the targets of all crates that were built in.
pub fn targets() -> Vec<Target> {
    CRATES.concat()
}
