//! todo
pub(super) const MAX_NAME: usize = 200;
