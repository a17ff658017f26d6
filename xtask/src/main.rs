//! Tasks of this workspace. `cargo xtask help` lists them.

mod artifacts;
mod bench;
mod bundle;
mod ci;
mod codegen;
mod cross;
mod date;
mod doc;
mod downstream;
mod golden;
mod mutants;
mod package;
mod record;
mod skips;
mod summary;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xshell::Shell;

#[derive(Parser)]
#[command(name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every test and doctest of the workspace; further arguments go to `cargo test`.
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure copies of increasing size against raw driver calls; prints a table, writes JSON and an HTML report. Needs no GPU.
    Bench(bench::Options),
    /// Compare driver calls, allocations, choices and virtual times on the software driver with benches/golden.txt.
    Golden(golden::Options),
    /// Render the documentation with warnings denied; fails on dead links.
    Doc,
    /// Build and run small downstream projects outside the tree, with each linker, as programs and as C libraries.
    Downstream,
    /// Package every crate that is meant for others, build it from its package, and check what that contains.
    Package,
    /// Collect stripped programs and tests in target/bundle, to run on a machine without Rust.
    Bundle,
    /// Merge results of the benchmark into one record under docs/benchmarks.
    Record(Box<record::Options>),
    /// Render each docs/benchmarks/*.json into a page, and their index.
    Render {
        /// Change nothing; fail if a committed page is stale.
        #[arg(long)]
        check: bool,
    },
    /// Check project rules: module headers, dependencies between crates, generated files and others.
    Tidy {
        /// Change nothing; by default generated files are updated first.
        #[arg(long)]
        check: bool,
    },
    /// Generate the list of driver functions that cust calls from cust_raw's source.
    Codegen {
        /// Change nothing; fail if the committed file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Check for other platforms, and run their tests if an emulator is installed.
    Cross(cross::Options),
    /// Omit marked steps of the code, one at a time, and check that the test listed for each fails.
    Mutants(mutants::Options),
    /// Run everything that a change must pass, the tests last.
    Ci,
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> Result<ExitCode> {
    let sh = Shell::new()?;
    if let Some(root) = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent() {
        sh.change_dir(root);
    }
    match command {
        Command::Test { arguments } => return Ok(test::run(&sh, &arguments)?.0),
        Command::Bench(options) => return bench::run(&sh, &options),
        Command::Golden(options) => golden::run(&sh, &options)?,
        Command::Doc => doc::run(&sh)?,
        Command::Downstream => downstream::run(&sh, downstream::Ways::All)?,
        Command::Package => package::run(&sh)?,
        Command::Bundle => bundle::run(&sh)?,
        Command::Record(options) => record::run(&sh, &options)?,
        Command::Render { check } => record::render::run(&sh, check)?,
        Command::Tidy { check } => tidy::run(&sh, check)?,
        Command::Codegen { check } => codegen::run(&sh, check)?,
        Command::Cross(options) => cross::run(&sh, &options)?,
        Command::Mutants(options) => mutants::run(&sh, &options)?,
        Command::Ci => return ci::run(&sh),
    }
    Ok(ExitCode::SUCCESS)
}
