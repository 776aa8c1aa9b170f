//! The `rhizome` command inside a sandbox: it asks the node through the door.
//!
//! What it prints of other agents' memories is their data. It is marked with its author, every
//! line of it is indented behind a bar, and control characters are replaced, so that neither a
//! reader nor a terminal takes it for anything else.

mod args;
mod context;
mod door;
mod help;
mod http;
mod mcp;
mod memory;
mod net;
mod print;
mod runtime;
mod usage;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use args::Args;
use print::Out;
pub(crate) use runtime::mark_clean;

/// Longest text that is read from standard input or a file, in bytes.
const MAX_INPUT: u64 = 4 * 1024 * 1024;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The command line makes no sense. Exit code 2.
    Usage(String),
    /// Help was asked for. Exit code 0.
    Help(&'static str),
    /// Nobody answers at the door. Exit code 3.
    Unreachable { url: String, source: io::Error },
    /// What answers is no node. Exit code 3.
    Protocol { url: String, what: String },
    /// The node said no. Exit code 1.
    Refused {
        code: String,
        message: String,
        causes: Vec<String>,
        hint: Option<String>,
    },
    /// A file or standard input can't be read. Exit code 1.
    Input { name: String, source: io::Error },
    /// Our own output can't be written; quiet if its reader has gone. Exit code 1.
    Output(io::Error),
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs the command.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let mut out = Out::new(io::stdout().lock());
    let result = run(&mut out, words).and_then(|()| Ok(out.flush()?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&mut out, &error),
    }
}

fn run(out: &mut Out<impl Write>, words: Vec<OsString>) -> Result<(), CliError> {
    let mut words = words
        .into_iter()
        .map(|word| {
            word.into_string().map_err(|word| {
                CliError::Usage(format!("`{}` is not UTF-8", word.to_string_lossy()))
            })
        })
        .collect::<Result<Vec<_>, _>>()?
        .into_iter();
    let first = words.next();
    let second = match first.as_deref() {
        Some("memory" | "context" | "net" | "help") => words.next(),
        _ => None,
    };
    let rest = |spec| Args::parse(spec, words);
    match (first.as_deref(), second.as_deref()) {
        (Some("memory"), Some("publish")) => memory::publish(out, &rest(help::PUBLISH)?),
        (Some("memory"), Some("recall")) => memory::recall(out, &rest(help::RECALL)?),
        (Some("memory"), Some("watch")) => memory::watch(out, &rest(help::WATCH)?),
        (Some("memory"), None | Some("-h" | "--help" | "help")) => {
            Err(CliError::Help(help::MEMORY))
        }
        (Some("context"), Some("checkpoint")) => context::checkpoint(out, &rest(help::CHECKPOINT)?),
        (Some("context"), Some("resume")) => context::resume(out, &rest(help::RESUME)?),
        (Some("context"), None | Some("-h" | "--help" | "help")) => {
            Err(CliError::Help(help::CONTEXT))
        }
        (Some("net"), Some("denials")) => net::denials(out, &rest(help::DENIALS)?),
        (Some("net"), None | Some("-h" | "--help" | "help")) => Err(CliError::Help(help::NET)),
        (Some("mcp"), _) => mcp::serve(out, &rest(help::MCP)?),
        (Some("usage"), _) => usage::show(out, &rest(help::USAGE)?),
        (Some("runtime"), _) => runtime::show(out, &rest(help::RUNTIME)?),
        (Some("self"), _) => memory::who_am_i(out, &rest(help::SELF)?),
        (Some("-V" | "--version"), _) => Ok(writeln!(
            out.raw(),
            "rhizome {} (in a sandbox)",
            env!("CARGO_PKG_VERSION")
        )?),
        (None | Some("-h" | "--help" | "help"), _) => Err(CliError::Help(help::TOP)),
        (Some(noun), verb) => {
            let verb = verb.map(|verb| format!(" {verb}")).unwrap_or_default();
            Err(CliError::Usage(format!(
                "there is no `{noun}{verb}`; see `rhizome --help`"
            )))
        }
    }
}

fn report(out: &mut Out<impl Write>, error: &CliError) -> ExitCode {
    let (code, message, causes, hint) = match error {
        CliError::Help(text) => {
            // A reader that has seen enough has gone: fine.
            let _ = out
                .raw()
                .write_all(text.as_bytes())
                .and_then(|()| out.flush());
            return ExitCode::SUCCESS;
        }
        CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            return ExitCode::SUCCESS;
        }
        CliError::Usage(message) => (2, message.clone(), vec![], None),
        CliError::Unreachable { url, source } => (
            3,
            format!("cannot reach the node at `{url}`"),
            vec![source.to_string()],
            Some("the sandbox's node must be up; RHIZOME_URL says where its door is".to_owned()),
        ),
        CliError::Protocol { url, what } => (
            3,
            format!("what answers at `{url}` is no rhizome node"),
            vec![what.clone()],
            None,
        ),
        CliError::Refused {
            code,
            message,
            causes,
            hint,
        } => {
            let code = if code.is_empty() {
                String::new()
            } else {
                format!(" ({code})")
            };
            (1, format!("{message}{code}"), causes.clone(), hint.clone())
        }
        CliError::Input { name, source } => (
            1,
            format!("cannot read {name}"),
            vec![source.to_string()],
            None,
        ),
        CliError::Output(error) => (
            1,
            "cannot write the output".to_owned(),
            vec![error.to_string()],
            None,
        ),
    };
    let mut text = format!("error: {}\n", print::clean(&message));
    for cause in causes {
        text.push_str(&format!("  cause: {}\n", print::clean(&cause)));
    }
    if let Some(hint) = hint {
        text.push_str(&format!("   hint: {}\n", print::clean(&hint)));
    }
    // There is nobody to tell if standard error is closed.
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::from(code)
}

/// Reads all of standard input, or of a file, as text.
fn read_text(name: &str) -> Result<String, CliError> {
    use std::io::Read;
    let mut text = String::new();
    let source: Result<Box<dyn Read>, io::Error> = match name {
        "-" => Ok(Box::new(io::stdin())),
        path => std::fs::File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let read = source.and_then(|source| source.take(MAX_INPUT + 1).read_to_string(&mut text));
    let shown = if name == "-" {
        "standard input".to_owned()
    } else {
        format!("`{name}`")
    };
    match read {
        Ok(len) if len as u64 > MAX_INPUT => Err(CliError::Input {
            name: shown,
            source: io::Error::other(format!("it is over {MAX_INPUT} bytes")),
        }),
        Ok(_) => Ok(text),
        Err(source) => Err(CliError::Input {
            name: shown,
            source,
        }),
    }
}
