//! Runs test programs one by one with a time limit and counts their results.

use std::{
    env, fmt,
    fs::{self, File},
    ops::AddAssign,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use xshell::Shell;

use super::emulator::Emulator;
use crate::artifacts::{self, Artifact};

/// Time limit in seconds, longer than any takes on a slow machine. The tests have their own watchdogs.
const SECONDS: &str = "900";

/// Test counts over programs. A skipped test also counts as passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) programs: u64,
    passed: u64,
    pub(super) failed: u64,
    skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.programs += other.programs;
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(f, "{passed} passed")?;
        if *skipped > 0 {
            write!(f, " ({skipped} of them skipped)")?;
        }
        write!(f, ", {failed} failed")
    }
}

/// Builds every test program selected by cargo's `arguments`.
pub(super) fn build(sh: &Shell, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let arguments = [&["test", "--no-run", "--quiet", "--lib", "--bins", "--tests"], arguments].concat();
    let mut tests = artifacts::build(sh, &arguments)?;
    tests.retain(|artifact| artifact.is_test);
    tests.sort_by(|one, other| (&one.package, &one.target).cmp(&(&other.package, &other.target)));
    Ok(tests)
}

/// How often a program runs at most. Wine 8.0 does not start a program of a test once in some hundred times.
const RUNS: usize = 3;

/// Wine's error where a new process ended before it ran. Windows has it nowhere in the starting of programs.
const NOT_STARTED: &str = "Os { code: 1359,";

/// Runs a test program in its package's folder, as cargo does, and prints its output if it failed. Runs it again where the
/// emulator failed instead.
pub(super) fn run(emulator: &Emulator, test: &Artifact) -> Result<Counts> {
    for _ in 1..RUNS {
        let (counts, text) = run_once(emulator, test)?;
        if counts.failed == 0 || !text.contains(NOT_STARTED) {
            return Ok(counts);
        }
        println!("cross: {}--{}: Wine did not start a program, so it runs again", test.package, test.target);
    }
    Ok(run_once(emulator, test)?.0)
}

/// Returns the counts and what the program printed.
fn run_once(emulator: &Emulator, test: &Artifact) -> Result<(Counts, String)> {
    let mut command = Command::new("timeout");
    command.arg(SECONDS).arg(&emulator.runner).arg(&test.path).arg("--show-output");
    // Not pipes: background processes of Wine that the program starts keep them open after its end.
    let paths = ["output", "errors"].map(|extension| test.path.with_extension(extension));
    let create =
        |path: &Path| File::create(path).with_context(|| format!("creating {}", test.path.display()));
    let status = command
        .current_dir(&test.folder)
        .envs(emulator.environment.iter().map(|(name, value)| (name, value)))
        // For tests that build something.
        .env("CARGO", env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .env("CARGO_BUILD_TARGET", emulator.target)
        .stdin(Stdio::null())
        .stdout(create(&paths[0])?)
        .stderr(create(&paths[1])?)
        .status()
        .with_context(|| format!("starting {}", emulator.runner.display()))?;
    let read = |path: &Path| {
        fs::read(path).with_context(|| format!("reading the output of {}", test.path.display()))
    };
    let (output, errors) = (read(&paths[0])?, read(&paths[1])?);
    let text = String::from_utf8_lossy(&output).into_owned();
    let mut counts = count(&text);
    if !status.success() {
        counts.failed = counts.failed.max(1);
        println!("{text}{}", String::from_utf8_lossy(&errors));
        println!("{status}");
    }
    println!("cross: {}--{}: {counts}", test.package, test.target);
    Ok((counts, text))
}

/// Counts results from the harness's summary and the lines of skipped tests. A program without the harness counts as one
/// test.
fn count(text: &str) -> Counts {
    let skipped = text.lines().filter(|line| line.starts_with("skipped: ")).count() as u64;
    let Some(result) = text.lines().rev().find_map(|line| line.strip_prefix("test result: ")) else {
        return Counts { programs: 1, passed: 1, failed: 0, skipped };
    };
    let number = |what: &str| {
        let before = result.split("; ").find_map(|part| part.strip_suffix(what))?;
        before.rsplit(' ').next()?.parse().ok()
    };
    let (passed, failed) = (number(" passed").unwrap_or(0), number(" failed").unwrap_or(0));
    Counts { programs: 1, passed, failed, skipped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_output_is_counted() {
        let text = "running 4 tests\ntest a ... ok\n\n---- a stdout ----\nskipped: no device\n\n\
                    test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s\n";
        assert_eq!(count(text), Counts { programs: 1, passed: 3, failed: 1, skipped: 1 });
        assert_eq!(
            count("skipped: only on Linux\n"),
            Counts { programs: 1, passed: 1, failed: 0, skipped: 1 }
        );
    }
}
