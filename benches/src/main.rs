//! `transload-bench`: parses options, loads a driver, measures, prints a table and writes the results file.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use transload_benches::{
    against, allocations::Counting, exit, options::Options, planted, processors, suite, table,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    // Before any thread starts: they all inherit it.
    if let Some(processors) = options.processors {
        processors::confine(processors.into())?;
    }
    if let Some(old) = &options.against {
        return against::run(&options, old);
    }
    if let Some(fault) = &options.planted {
        planted::plant(fault.parse().map_err(anyhow::Error::msg)?);
    }
    let device = match device(&options)? {
        #[cfg(any(target_os = "linux", windows))]
        Found::Device(ordinal) => Some(ordinal),
        Found::NotWanted => None,
        #[cfg(any(target_os = "linux", windows))]
        Found::Absent(reason) if options.hardware => {
            anyhow::bail!("these rows need a CUDA device: {reason}")
        }
        #[cfg(any(target_os = "linux", windows))]
        Found::Absent(reason) => return rerun_simulated(&reason),
    };
    let results = suite::run(&options, device)?;
    print!("{}", table::text(&results));
    if let Some(path) = &options.json {
        results.write(path)?;
    }
    let missed: Vec<&str> =
        results.rows().iter().filter(|row| row.met == Some(false)).map(|row| row.id.as_str()).collect();
    if !missed.is_empty() {
        eprintln!("goals missed: {}", missed.join(", "));
    }
    for failure in &results.methods().failures {
        eprintln!("FAILED: {failure}");
    }
    // Rows that only allocate, lease or launch have no bytes to compare.
    let is_wrong = |row: &&transload_benches::row::Row| !row.verified && row.bytes > 0;
    let wrong: Vec<&str> = results.rows().iter().filter(is_wrong).map(|row| row.id.as_str()).collect();
    if !wrong.is_empty() {
        eprintln!("WRONG BYTES in: {}", wrong.join(", "));
        return Ok(ExitCode::from(exit::WRONG));
    }
    if !results.methods().failures.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::MISSED) })
}

/// The device of the CUDA rows.
enum Found {
    #[cfg(any(target_os = "linux", windows))]
    Device(u32),
    NotWanted,
    #[cfg(any(target_os = "linux", windows))]
    Absent(String),
}

#[cfg(any(target_os = "linux", windows))]
fn device(options: &Options) -> Result<Found> {
    use transload_benches::cuda;

    if !options.wants_device() {
        return Ok(Found::NotWanted);
    }
    if options.simulate {
        return cuda::simulate(options.seed).map(Found::Device);
    }
    Ok(cuda::absence().map_or(Found::Device(0), Found::Absent))
}

#[cfg(not(any(target_os = "linux", windows)))]
fn device(options: &Options) -> Result<Found> {
    if options.simulate || !options.only.is_empty() && options.wants_device() {
        anyhow::bail!("there is no CUDA on this platform");
    }
    Ok(Found::NotWanted)
}

/// Runs the program again with the software driver: this process is bound to a driver that cannot be used.
#[cfg(any(target_os = "linux", windows))]
fn rerun_simulated(reason: &str) -> Result<ExitCode> {
    use std::{env, process::Command};

    use anyhow::Context as _;

    eprintln!("{reason}\nThe CUDA rows come from the software driver and are marked `simulated`.");
    let program = env::current_exe().context("this program's own file")?;
    let status = Command::new(program).args(env::args_os().skip(1)).arg("--simulate").status();
    let code = status.context("starting this program again with --simulate")?.code();
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
