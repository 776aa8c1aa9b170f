//! The fence between what peers send and the documents.
