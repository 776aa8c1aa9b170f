//! One author's fragments in one space.
