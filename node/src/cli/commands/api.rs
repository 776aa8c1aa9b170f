//! `rhizome api openapi`.

use clap::Subcommand;

use super::{Context, Failure};
use crate::api::openapi;

/// What to do with the API.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Print the OpenAPI document of the API, as `GET /v1/openapi.json` answers it
    #[command(after_help = "Example:\n  rhizome api openapi > openapi.json")]
    Openapi,
}

pub(crate) fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Openapi => context.ui.line(openapi::text().trim_end()),
    }
}
