//! Memories and contexts as automerge documents.
