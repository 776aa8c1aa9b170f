//! rhizome-memory
