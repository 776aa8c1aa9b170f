//! Segment files and their index.
