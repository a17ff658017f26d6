//! Runs the workspace's tests. The test runner's summary is the last output.

use std::{
    collections::BTreeSet,
    io::{self, BufReader, IsTerminal as _},
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result};
use xshell::{Shell, cmd};

use crate::skips::{self, Skip};

/// Features that no program of the workspace enables, and whose tests run all the same.
pub(crate) const FEATURES: &str = "transload/wgpu,transload-benches/wgpu,transload-cli/wgpu";

/// Runs unit tests, integration tests and doctests; returns the runner's exit code, and what was skipped.
pub(crate) fn run(sh: &Shell, arguments: &[String]) -> Result<(ExitCode, BTreeSet<Skip>)> {
    let names_packages =
        arguments.iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"));
    let color = if io::stdout().is_terminal() { "--color=always" } else { "--color=auto" };
    let separator = (!arguments.iter().any(|argument| argument == "--")).then_some("--");
    // Unlike the shell's own `run`, this tells the runner's exit code.
    let mut runner = Command::from(cmd!(sh, "cargo test --locked"))
        .args((!names_packages).then_some(["--workspace", "--features", FEATURES]).into_iter().flatten())
        .args(arguments)
        .args(separator)
        .args(["--show-output", color])
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let output = runner.stdout.take().context("cargo has no output")?;
    let skipped =
        skips::forward(BufReader::new(output), &mut io::stdout()).context("reading what tests say")?;
    let status = runner.wait().context("waiting for cargo")?;
    // A runner ended by a signal has no exit code.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok((ExitCode::from(code), skipped))
}
