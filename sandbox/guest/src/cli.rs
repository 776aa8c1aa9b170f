use std::{ffi::OsString, process::ExitCode};
pub(crate) fn main(_args: Vec<OsString>) -> ExitCode {
    ExitCode::from(2)
}
