//! What a sandbox can be resumed from.
