//! rhizome-sandbox
