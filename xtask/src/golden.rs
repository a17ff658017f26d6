//! Compares what operations do on the software driver with a committed file.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use xshell::Shell;

use crate::artifacts;

const PACKAGE: &str = "transload-benches";
const PROGRAM: &str = "transload-golden";
/// The committed file, from the workspace's root.
const FILE: &str = "benches/golden.txt";

/// Runs the program, and compares what it prints with the committed file, or rewrites that.
///
/// # Errors
/// If they differ: the difference is printed before. If the program fails.
pub(crate) fn run(sh: &Shell, update: bool) -> Result<()> {
    // Like the benchmark, which needs the same crates.
    let arguments = ["build", "--quiet", "--release", "--package", PACKAGE, "--bin", PROGRAM];
    let built = artifacts::build(sh, &arguments)?;
    let program = built.into_iter().find(|artifact| artifact.target == PROGRAM);
    let program = program.with_context(|| format!("cargo built no program {PROGRAM}"))?;
    let output = Command::new(&program.path).output().with_context(|| format!("starting {PROGRAM}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{PROGRAM} failed: {}\n{errors}", output.status);
    let committed = sh.current_dir().join(FILE);
    if update {
        return fs::write(&committed, output.stdout).with_context(|| format!("writing {FILE}"));
    }
    let now = artifacts::target_directory(sh)?.join("golden.txt");
    fs::write(&now, output.stdout).with_context(|| format!("writing {}", now.display()))?;
    // The heading of a hunk is the operation's name.
    let mut diff = Command::new("git");
    diff.args(["--no-pager", "diff", "--no-index", "--unified=1"]).args([&committed, &now]);
    let status = diff.status().context("starting git")?;
    match status.code() {
        Some(0) => {
            println!("what operations do is as {FILE} says");
            Ok(())
        }
        Some(1) => bail!(
            "operations do other things than {FILE} says; if that is meant, `cargo xtask golden --update`"
        ),
        _ => bail!("comparing {FILE} failed: {status}"),
    }
}
