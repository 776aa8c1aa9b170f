//! The `rhizome` program: the daemon and its command line.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    rhizome_node::cli::main()
}
