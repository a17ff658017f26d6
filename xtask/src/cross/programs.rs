//! Runs programs of tests one by one, each for a limited time, and counts what they say.

use std::{
    env, fmt,
    ops::AddAssign,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use xshell::Shell;

use super::emulator::Emulator;
use crate::artifacts::{self, Artifact};

/// Longer than any of them takes on a slow machine. They have watchdogs of their own.
const SECONDS: &str = "900";

/// Tests counted over programs. One that skips itself and says so has passed, too.
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

/// Builds every program of tests that cargo's `arguments` name.
pub(super) fn build(sh: &Shell, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let arguments = [&["test", "--no-run", "--quiet", "--lib", "--bins", "--tests"], arguments].concat();
    let mut tests = artifacts::build(sh, &arguments)?;
    tests.retain(|artifact| artifact.is_test);
    tests.sort_by(|one, other| (&one.package, &one.target).cmp(&(&other.package, &other.target)));
    Ok(tests)
}

/// Runs one with `runner`, in its package's folder as cargo does, and prints what it said where that is of interest.
pub(super) fn run(emulator: &Emulator, test: &Artifact) -> Result<Counts> {
    let mut command = Command::new("timeout");
    command.arg(SECONDS).arg(&emulator.runner).arg(&test.path).arg("--show-output");
    let output = command
        .current_dir(&test.folder)
        .envs(emulator.environment.iter().map(|(name, value)| (name, value)))
        // What tests that build something build it with, and for what.
        .env("CARGO", env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .env("CARGO_BUILD_TARGET", emulator.target)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", emulator.runner.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut counts = count(&text);
    if !output.status.success() {
        counts.failed = counts.failed.max(1);
        println!("{text}{}", String::from_utf8_lossy(&output.stderr));
        println!("{}", output.status);
    }
    println!("cross: {}--{}: {counts}", test.package, test.target);
    Ok(counts)
}

/// What a program says of its tests: the harness's line, and a line for each skipped one. A program without the harness
/// counts as one test.
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
    fn what_the_harness_says_is_counted() {
        let text = "running 4 tests\ntest a ... ok\n\n---- a stdout ----\nskipped: no device\n\n\
                    test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s\n";
        assert_eq!(count(text), Counts { programs: 1, passed: 3, failed: 1, skipped: 1 });
        assert_eq!(
            count("skipped: only on Linux\n"),
            Counts { programs: 1, passed: 1, failed: 0, skipped: 1 }
        );
    }
}
