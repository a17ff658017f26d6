//! The command `transload`, implemented in this crate's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    transload_cli::main()
}
