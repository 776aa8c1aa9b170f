//! rhizome-mesh
