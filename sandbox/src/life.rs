//! The life of a sandbox as one pure state machine.
