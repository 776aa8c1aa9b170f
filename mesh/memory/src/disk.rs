//! Files, as the store sees them.
