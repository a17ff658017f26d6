//! Runs the workspace's tests. The test runner's summary is the last output.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use xshell::{Shell, cmd};

/// Features that no program of the workspace enables, and whose tests run all the same.
pub(crate) const FEATURES: &str = "transload/wgpu,transload-benches/wgpu,transload-cli/wgpu";

/// Runs unit tests, integration tests and doctests; returns the runner's exit code.
pub(crate) fn run(sh: &Shell, arguments: &[String]) -> Result<ExitCode> {
    let names_packages =
        arguments.iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"));
    // Unlike the shell's own `run`, this tells the runner's exit code.
    let status = Command::from(cmd!(sh, "cargo test --locked"))
        .args((!names_packages).then_some(["--workspace", "--features", FEATURES]).into_iter().flatten())
        .args(arguments)
        .status()
        .context("starting cargo")?;
    // A runner ended by a signal has no exit code.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
