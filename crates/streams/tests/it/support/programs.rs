//! Starts test programs, through a runner if they are built for another processor. Other crates' tests include this file.

use std::{
    env,
    ffi::{OsStr, OsString},
    process::Command,
};

/// Runner of test programs, for example `qemu-aarch64`. If the variable is not set, they run directly.
fn runner() -> Option<OsString> {
    env::var_os("TRANSLOAD_TEST_RUNNER").filter(|runner| !runner.is_empty())
}

/// A command that starts `program`.
pub(crate) fn program(program: impl AsRef<OsStr>) -> Command {
    let Some(runner) = runner() else { return Command::new(program) };
    let mut command = Command::new(runner);
    command.arg(program);
    command
}

/// A command that starts this program again.
#[allow(dead_code, reason = "not every test that includes this file does so")]
pub(crate) fn this_program() -> Command {
    program(env::current_exe().unwrap())
}
