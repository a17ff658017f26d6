//! Starting programs of the tests, also where a program does not start by itself because it is another processor's. Other
//! crates' tests include this file.

use std::{
    env,
    ffi::{OsStr, OsString},
    process::Command,
};

/// What runs the programs of the tests, for example `qemu-aarch64`. Where the variable is not set they run by themselves.
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

/// A command that starts this program once more.
#[allow(dead_code, reason = "not every test that includes this file does so")]
pub(crate) fn this_program() -> Command {
    program(env::current_exe().unwrap())
}
