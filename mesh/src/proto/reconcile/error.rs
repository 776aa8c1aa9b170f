//! What can be wrong with a message.

/// Why bytes are not a reconciliation message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The bytes end in the middle of something.
    #[error("the message ends too early")]
    Truncated,
    /// A range is empty, or starts before the one before it ends.
    #[error("ranges are not in ascending order")]
    Unordered,
    /// A bound is longer than an id or has a needless zero at its end.
    #[error("a bound of a range is malformed")]
    BadBound,
    /// A kind of part that this version does not know.
    #[error("unknown kind of part {0}")]
    UnknownKind(u8),
    /// More ids in one part than allowed.
    #[error("a part lists {0} ids; at most {max} are allowed", max = super::codec::MAX_PART_IDS)]
    TooManyIds(u64),
    /// A number is malformed.
    #[error("a number is malformed")]
    BadNumber,
}
