//! rhizome
