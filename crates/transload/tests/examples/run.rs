//! The examples by name, and how they are run.

use std::{
    env,
    error::Error,
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use transload_cuda_sim::{SimDevice, harness};

#[path = "../../examples/02_async_tokio.rs"]
mod async_tokio;
#[path = "../../examples/07_beside_others.rs"]
mod beside_others;
#[path = "../../examples/01_first_copy.rs"]
mod first_copy;
#[path = "../../examples/06_kv_cache.rs"]
mod kv_cache;
#[path = "../../examples/05_streams_graphs.rs"]
mod streams_graphs;
#[path = "../../examples/08_tiny_framework.rs"]
mod tiny_framework;
#[path = "../../examples/03_typed_views.rs"]
mod typed_views;
#[path = "../../examples/04_unified_roles.rs"]
mod unified_roles;

/// How long an example's objects may outlive it.
const LIMIT: Duration = Duration::from_secs(20);

type Outcome = Result<(), Box<dyn Error>>;
type Example = fn() -> Outcome;

const EXAMPLES: &[(&str, Example)] = &[
    ("01_first_copy", || Ok(first_copy::main()?)),
    ("02_async_tokio", || async_tokio::main()),
    ("03_typed_views", || Ok(typed_views::main()?)),
    ("04_unified_roles", || Ok(unified_roles::main()?)),
    ("05_streams_graphs", || Ok(streams_graphs::main()?)),
    ("06_kv_cache", || Ok(kv_cache::main()?)),
    ("07_beside_others", || beside_others::main()),
    ("08_tiny_framework", || Ok(tiny_framework::main()?)),
];

pub(crate) fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).peekable();
    match arguments.peek().map(String::as_str) {
        Some("--list") => EXAMPLES.iter().for_each(|(name, _)| println!("{name}: test")),
        Some("--run") => {
            let Some((_, example)) =
                EXAMPLES.iter().find(|(name, _)| Some(*name) == env::args().nth(2).as_deref())
            else {
                eprintln!("no such example; --list lists them");
                return ExitCode::FAILURE;
            };
            if let Err(error) = run(*example) {
                eprintln!("Error: {error:?}");
                return ExitCode::FAILURE;
            }
        }
        _ => return run_all(&arguments.filter(|argument| !argument.starts_with('-')).collect::<Vec<_>>()),
    }
    ExitCode::SUCCESS
}

/// Runs one. On the software driver nothing may be left or have raced afterwards.
fn run(example: Example) -> Outcome {
    let simulated = env::args().any(|argument| argument == "--simulate");
    // The first device is this one, not the example's own.
    let checked = simulated.then(|| -> Result<_, Box<dyn Error>> {
        transload_cuda_sim::install()?;
        Ok(SimDevice::builder().record_accesses(true).build())
    });
    let checked = checked.transpose()?;
    example()?;
    let Some(device) = checked else { return Ok(()) };
    // Threads of the library may still drop what the last tasks held.
    let end = Instant::now() + LIMIT;
    while !device.live_objects().is_empty() && Instant::now() < end {
        thread::yield_now();
    }
    let (races, left) = (device.races(), device.live_objects());
    match races.first() {
        Some(race) => Err(format!("{} races: {race}", races.len()).into()),
        None if !left.is_empty() => Err(format!("not freed: {left}").into()),
        None => Ok(()),
    }
}

/// Runs those whose names contain one of `filters`, or all, and reports in the manner of Rust's test runner.
fn run_all(filters: &[String]) -> ExitCode {
    let chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let (mut passed, mut failed) = (0, 0);
    for (name, _) in EXAMPLES.iter().filter(|(name, _)| chosen(name)) {
        let output = env::current_exe().and_then(|program| {
            let mut command = Command::new(program);
            command.args(["--run", name]);
            // No calibration of this machine's user.
            command.env("XDG_CACHE_HOME", if cfg!(windows) { r"C:\nonexistent" } else { "/nonexistent" });
            if !harness::is_real() {
                command.arg("--simulate");
            }
            command.output()
        });
        let (ok, text) = match &output {
            Ok(output) => (
                output.status.success(),
                [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat(),
            ),
            Err(error) => (false, error.to_string()),
        };
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        if !ok || env::args().any(|argument| argument == "--show-output" || argument == "--nocapture") {
            println!("{text}");
        }
        if ok { passed += 1 } else { failed += 1 }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    let others = EXAMPLES.len() - passed - failed;
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {others} filtered out"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
