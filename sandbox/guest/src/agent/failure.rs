//! From the system's errors to what the host is told.

use std::{fmt::Display, io};

use rhizome_guest::wire::{Failure, FailureCode};

pub(crate) fn of(code: FailureCode, message: impl Display) -> Failure {
    Failure {
        code,
        message: message.to_string(),
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Of;
        let code = match error.kind() {
            Of::NotFound => FailureCode::NotFound,
            Of::PermissionDenied => FailureCode::PermissionDenied,
            Of::AlreadyExists => FailureCode::AlreadyExists,
            Of::NotADirectory => FailureCode::NotADirectory,
            Of::IsADirectory => FailureCode::IsADirectory,
            Of::DirectoryNotEmpty => FailureCode::NotEmpty,
            Of::ReadOnlyFilesystem => FailureCode::ReadOnly,
            Of::StorageFull | Of::QuotaExceeded => FailureCode::NoSpace,
            Of::InvalidInput | Of::InvalidFilename => FailureCode::Invalid,
            Of::Unsupported => FailureCode::Unsupported,
            _ => FailureCode::Io,
        };
        Self(of(code, error))
    }
}

/// A failure on its way up.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) Failure);

impl Failed {
    pub(crate) fn new(code: FailureCode, message: impl Display) -> Self {
        Self(of(code, message))
    }
}

impl From<rhizome_guest::wire::WireError> for Failed {
    fn from(error: rhizome_guest::wire::WireError) -> Self {
        Self::new(FailureCode::Invalid, error)
    }
}
