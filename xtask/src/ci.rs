//! Everything that a change must pass, ordered by how fast it fails; the tests come last.

use std::{env, process::ExitCode, sync::LazyLock, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::{
    artifacts, bench, codegen, cross, doc, downstream, golden, mutants, package, record, skips,
    test::{self, FEATURES},
    tidy,
};

/// Runs every check, then the tests, and returns their exit code.
pub(crate) fn run(sh: &Shell) -> Result<ExitCode> {
    step("format");
    cmd!(sh, "cargo fmt --all -- --check").quiet().run()?;
    step("generated files");
    codegen::run(sh, true)?;
    record::render::run(sh, true)?;
    step("tidy");
    tidy::check(sh)?;
    step("clippy, every target, warnings denied");
    cmd!(sh, "cargo clippy --workspace --features {FEATURES} --all-targets --locked -- -D warnings")
        .quiet()
        .run()?;
    step("clippy, Vulkan without CUDA");
    cmd!(sh, "cargo clippy --package transload-backend-wgpu --locked -- -D warnings").quiet().run()?;
    step("documentation, warnings and dead links denied");
    doc::run(sh)?;
    step("packages of the crates that are meant for others");
    package::run(sh)?;
    step("downstream projects outside the tree");
    downstream::run(sh, downstream::Ways::One)?;
    step("other platforms, libraries and programs");
    cross::run(sh, &cross::Options::for_every_change())?;
    step("deliberate faults, each caught by its test");
    mutants::run(sh, &mutants::Options::for_every_change())?;
    step("quick benchmark and a check of its results");
    let measured = bench::run(sh, &bench::Options::quick())?;
    if measured != ExitCode::SUCCESS {
        return Ok(measured);
    }
    if cfg!(target_os = "linux") {
        step("instructions of a small copy and of warm allocations, limited");
        let program = ["--package", "transload-benches", "--bin", "transload-instructions"];
        cmd!(sh, "cargo run --quiet --release --locked {program...}").quiet().run()?;
    }
    if cfg!(target_os = "linux") {
        step("driver calls, allocations, choices and virtual times, compared with a file");
        golden::run(sh, &golden::Options::for_every_change())?;
    }
    // Most crates are built for that already: with the marked steps of the deliberate faults in them, none of which is omitted.
    let _built = mutants::environment(sh)?;
    step("microbenchmarks, each run once");
    // With the profile and features of the tests, which need the same crates: built in seconds.
    cmd!(sh, "cargo test --quiet --locked --workspace --features {FEATURES} --bench criterion")
        .quiet()
        .run()?;
    if cfg!(target_os = "linux") {
        step("benchmark of Vulkan and OpenGL, by adapters that run on the processor");
        software_adapters(sh)?;
    }
    step("tests and doctests");
    let (code, skipped) = test::run(sh, &[])?;
    // A machine without adapters skips more.
    if code == ExitCode::SUCCESS && needs_vulkan() {
        skips::check(&skipped, include_str!("../skips.txt"))?;
    }
    Ok(code)
}

/// Returns whether tests of Vulkan must not be skipped; `.ci/run` sets the variable.
fn needs_vulkan() -> bool {
    env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_some()
}

/// Runs the program that was built for the microbenchmarks.
fn software_adapters(sh: &Shell) -> Result<()> {
    let arguments = ["test", "--no-run", "--workspace", "--features", FEATURES, "--bench", "criterion"];
    let built = artifacts::build(sh, &arguments)?;
    let program = built.iter().find(|it| it.kind == "bin" && it.target == "transload-bench");
    let program = &program.context("cargo built no transload-bench")?.path;
    let json = artifacts::target_directory(sh)?.join("software-adapters.json");
    cmd!(sh, "{program} --quick --only wgpu --software-adapters --json {json}").quiet().run()?;
    let results: Value = serde_json::from_str(&sh.read_file(&json)?)?;
    let rows = results["rows"].as_array().map_or(0, Vec::len);
    ensure!(rows > 0 || !needs_vulkan(), "no adapter of Vulkan or OpenGL was measured");
    Ok(())
}

/// Prints a step's name and the minutes and seconds since the first.
fn step(name: &str) {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = BEGUN.elapsed().as_secs();
    println!("\n== {name} ({}:{:02})", seconds / 60, seconds % 60);
}

#[cfg(test)]
mod tests {
    use std::fs;

    #[test]
    fn workflow_writes_a_summary_and_has_no_token_to_write_with() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../.github/workflows/ci.yml");
        let workflow = fs::read_to_string(path).unwrap();
        // Of the whole workflow: what it does not name is not granted.
        assert!(workflow.contains("\npermissions:\n  contents: read\n\n"), "{workflow}");
        assert!(!workflow.contains(": write"), "{workflow}");
        assert!(workflow.contains("--summary \"$GITHUB_STEP_SUMMARY\""), "{workflow}");
    }
}
