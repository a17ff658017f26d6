//! Runs the workspace's tests. What the test runner prints last is the last output: its summary.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use xshell::Shell;

/// Runs unit tests, integration tests and doctests; answers with the runner's own exit code.
pub(crate) fn run(sh: &Shell, arguments: &[String]) -> Result<ExitCode> {
    let names_packages =
        arguments.iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"));
    let status = Command::new("cargo")
        .args(["test", "--locked"])
        .args((!names_packages).then_some("--workspace"))
        .args(arguments)
        .current_dir(sh.current_dir())
        .status()
        .context("starting cargo")?;
    // A runner that a signal ended has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
