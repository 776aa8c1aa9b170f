//! The network boundary of a guest: its packets end here, and what may leave is decided here.
