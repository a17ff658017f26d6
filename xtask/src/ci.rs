//! Everything that a change must pass, in the order of what fails fastest; the tests come last.

use std::process::ExitCode;

use anyhow::Result;
use xshell::{Shell, cmd};

use crate::{bench, codegen, cross, doc, downstream, mutants, record, test, tidy};

/// Runs every check, then the tests, whose exit code is the answer.
pub(crate) fn run(sh: &Shell) -> Result<ExitCode> {
    step("format");
    cmd!(sh, "cargo fmt --all -- --check").quiet().run()?;
    step("generated files");
    codegen::run(sh, true)?;
    record::render::run(sh, true)?;
    step("tidy");
    tidy::check(sh)?;
    step("clippy, every target, warnings denied");
    cmd!(sh, "cargo clippy --workspace --all-targets --locked -- -D warnings").quiet().run()?;
    step("documentation, warnings and dead links denied");
    doc::run(sh)?;
    step("projects outside the tree");
    downstream::run(sh)?;
    step("other platforms, as far as this machine has what they need");
    cross::run(sh, &cross::Options::for_every_change())?;
    step("deliberate faults, each found by its test");
    mutants::run(sh, &mutants::Options::for_every_change())?;
    step("benchmark, quick, and what must hold of its results");
    let measured = bench::run(sh, &bench::Options::quick())?;
    if measured != ExitCode::SUCCESS {
        return Ok(measured);
    }
    step("tests and doctests");
    test::run(sh, &[])
}

fn step(name: &str) {
    println!("\n== {name}");
}
