//! Builds and runs the benchmark, draws its page, and checks its results.

mod check;
mod compare;
pub(crate) mod format;
mod goals;
mod page;
mod paths;
mod promises;
pub(crate) mod results;
#[path = "../../../benches/src/row_key.rs"]
mod row_key;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use xshell::Shell;

use self::results::Results;
use crate::{artifacts, summary};

const PACKAGE: &str = "transload-benches";
const PROGRAM: &str = "transload-bench";

#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// Fewer sizes and repetitions.
    #[arg(long)]
    quick: bool,
    /// JSON file of the results; by default in the page's folder.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Folder of the page, report.html; by default target/bench.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Measure what is promised of speed on a CUDA device, which it needs, with its driver of Vulkan: prints the goals as one table, and fails where one is missed
    /// twice or has no row.
    #[arg(long, conflicts_with_all = ["json", "quick", "arguments"])]
    gpu: bool,
    /// Add the changes since an earlier run to the page: a results file or a record.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
    /// Measure nothing: draw the page of a results file or of a record.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["quick", "json", "gpu", "arguments"])]
    from: Option<PathBuf>,
    /// Append the verdict, and the changes, to this file as Markdown.
    #[arg(long, value_name = "PATH")]
    summary: Option<PathBuf>,
    /// Further arguments of the benchmark.
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Options {
    /// Fewer sizes and repetitions, results in the default folder.
    pub(crate) fn quick() -> Self {
        Self { quick: true, ..Self::default() }
    }
}

/// The benchmark's exit code if a goal was missed.
const MISSED: u8 = 4;

/// Builds, runs, draws and checks; returns the benchmark's exit code.
///
/// # Errors
/// If building or running fails, or if the results are implausible.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<ExitCode> {
    // Paths on the command line are relative to the user's directory, not to the workspace.
    let here = std::env::current_dir()?;
    let out = match &options.out {
        Some(out) => here.join(out),
        None => artifacts::target_directory(sh)?.join("bench"),
    };
    let json = options.json.as_ref().map_or_else(|| out.join("results.json"), |json| here.join(json));
    for folder in [Some(out.as_path()), json.parent()].into_iter().flatten() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    // Read before anything is measured: it may be in the place of the results.
    let earlier =
        options.compare.as_ref().map(|file| Results::read_or_record(&here.join(file))).transpose()?;
    let draw = |results: &Results| {
        if let Some(path) = &options.summary {
            summary::append(&here.join(path), &page::summary(results, earlier.as_ref()))?;
        }
        draw(results, earlier.as_ref(), &out)
    };
    if let Some(file) = &options.from {
        let results = Results::read_or_record(&here.join(file))?;
        draw(&results)?;
        return Ok(outcome(&results));
    }
    let program = build(sh, options.gpu)?;
    let quick = options.quick.then_some("--quick");
    let measure = |json: &Path, arguments: &[&str]| -> Result<ExitStatus> {
        // Results of an earlier run must not be mistaken for this one's.
        if json.exists() {
            fs::remove_file(json).with_context(|| format!("removing {}", json.display()))?;
        }
        let mut command = Command::new(&program);
        command.args(quick).arg("--json").arg(json).args(arguments).current_dir(sh.current_dir());
        command.status().with_context(|| format!("starting {PROGRAM}"))
    };
    if options.gpu {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        return gpu(&out, processors, draw, measure);
    }
    let arguments: Vec<&str> = options.arguments.iter().map(String::as_str).collect();
    let status = measure(&json, &arguments)?;
    // A run that missed a goal has results too.
    if json.exists() {
        let results = Results::read(&json)?;
        println!("\nresults: {}", json.display());
        draw(&results)?;
        check::check(&results, options.arguments.is_empty())?;
    }
    if !status.success() {
        eprintln!("{PROGRAM} failed: {status} (`--help` lists the exit codes)");
    }
    // A program ended by a signal has no exit code.
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Returns the exit code that tells what a results file has: something that failed, or a missed goal.
fn outcome(results: &Results) -> ExitCode {
    let failed = results.failed();
    failed.iter().for_each(|failure| eprintln!("FAILED: {failure}"));
    if !failed.is_empty() {
        return ExitCode::FAILURE;
    }
    let is_missed = results.rows.iter().any(goals::is_missed);
    if is_missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS }
}

/// Measures what is promised of speed, prints it, and draws the page of all runs.
fn gpu(
    out: &Path,
    processors: usize,
    draw: impl Fn(&Results) -> Result<()>,
    measure: impl Fn(&Path, &[&str]) -> Result<ExitStatus>,
) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut runs: Vec<Results> = Vec::new();
    for arguments in goals::RUNS.into_iter().filter(|run| goals::can_run(run, processors)) {
        let found = goals::confirmed(|parts| {
            let json = out.join(format!("gpu-{}.json", runs.len() + 1));
            let arguments = goals::limited(arguments, parts);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let status = measure(&json, &[&["--hardware"], arguments.as_slice()].concat())?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let results = Results::read(&json).with_context(|| format!("{PROGRAM} failed: {status}"))?;
            // What failed has no rows, and its goals count as missed.
            let has_said_why = !results.failures.is_empty();
            ensure!(has_said_why || matches!(code, Some(0 | MISSED)), "{PROGRAM} failed: {status}");
            check::check(&results, false)?;
            runs.push(results.clone());
            Ok(results)
        });
        match found {
            Err(error) if goals::is_apart(arguments) => eprintln!("its goals count as missed: {error:#}"),
            found => rows.extend(found?),
        }
    }
    let Some(mut results) = Results::joined(runs, &rows) else { return Ok(ExitCode::FAILURE) };
    let skipped = promises::skipped(&results, processors);
    let absent = promises::absent(&rows, &skipped);
    print!("\n{}", goals::table(&rows, &absent, &skipped));
    let failed = results.failed();
    failed.iter().for_each(|failure| eprintln!("FAILED: {failure}"));
    results.failures.extend(absent.iter().map(|id| format!("no row has the goal of {id}")));
    draw(&results)?;
    let is_missed = !failed.is_empty() || !absent.is_empty() || rows.iter().any(goals::is_missed);
    Ok(if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn build(sh: &Shell, with_vulkan: bool) -> Result<PathBuf> {
    eprintln!("building {PROGRAM} (release)");
    let mut arguments = vec!["build", "--release", "--package", PACKAGE, "--bin", PROGRAM];
    if with_vulkan {
        arguments.extend(["--features", "transload-benches/wgpu"]);
    }
    artifacts::build(sh, &arguments)?
        .into_iter()
        .find(|artifact| artifact.target == PROGRAM)
        .map(|artifact| artifact.path)
        .with_context(|| format!("package {PACKAGE} built no program {PROGRAM}"))
}

fn draw(results: &Results, earlier: Option<&Results>, out: &Path) -> Result<()> {
    let page = out.join("report.html");
    fs::write(&page, page::html(results, earlier)).with_context(|| format!("writing {}", page.display()))?;
    println!("page:    {}", page.display());
    if results.simulated {
        println!(
            "Rows marked `simulated` come from the software driver: they say nothing about any hardware."
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn file_with_a_failure_or_a_missed_goal_has_an_exit_code() {
        let of = |change: fn(&mut Results)| {
            let mut results = results::hardware_sample();
            change(&mut results);
            outcome(&results)
        };
        assert_eq!(of(|_| ()), ExitCode::SUCCESS);
        assert_eq!(of(|results| results.rows[0].met = Some(false)), ExitCode::from(MISSED));
        assert_eq!(of(|results| results.failures.push("many, up: lost".to_owned())), ExitCode::FAILURE);
        assert_eq!(of(|results| results.rows[0].verified = false), ExitCode::FAILURE);
    }

    #[test]
    fn gpu_fails_where_a_goal_is_missed_twice_or_has_no_row() {
        let mut kept = results::hardware_sample();
        let all = promises::all_met(&kept.rows[0]);
        kept.rows.extend(all);
        // Measures each run once, or twice where something is missed, and draws them all.
        let of = |change: &dyn Fn(&mut Results, usize)| {
            let (out, measured, drawn) = (tempfile::tempdir().unwrap(), Cell::new(0), Cell::new(0));
            let measure = |json: &Path, arguments: &[&str]| {
                assert_eq!(arguments[..2], ["--hardware", "--only"]);
                let mut results = kept.clone();
                change(&mut results, measured.get());
                measured.set(measured.get() + 1);
                fs::write(json, serde_json::to_string(&results)?)?;
                Ok(ExitStatus::default())
            };
            let draw = |results: &Results| {
                drawn.set(results.rows.len());
                Ok(())
            };
            (gpu(out.path(), 8, draw, measure).unwrap(), measured.get(), drawn.get())
        };
        let (runs, rows) = (goals::RUNS.len(), kept.rows.len());
        assert_eq!(of(&|_, _| ()), (ExitCode::SUCCESS, runs, rows));
        let miss = |results: &mut Results| results.rows[rows - 1].met = Some(false);
        assert_eq!(
            of(&|results, run| if run == 0 {
                miss(results)
            }),
            (ExitCode::SUCCESS, runs + 1, rows)
        );
        assert_eq!(of(&|results, _| miss(results)), (ExitCode::FAILURE, 2 * runs, rows));
        let lose = |results: &mut Results, _| drop(results.rows.pop());
        assert_eq!(of(&lose), (ExitCode::FAILURE, runs, rows - 1));
        let fail = |results: &mut Results, _| results.failures.push("many, unaligned: lost".to_owned());
        assert_eq!(of(&fail), (ExitCode::FAILURE, runs, rows));
    }
}
