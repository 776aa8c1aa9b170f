//! rhizome-identity
