//! rhizome-netsim
