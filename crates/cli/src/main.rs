//! The command `transload`; all of it is in the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    transload_cli::main()
}
