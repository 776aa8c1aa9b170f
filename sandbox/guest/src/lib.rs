//! rhizome-guest
