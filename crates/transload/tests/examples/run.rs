//! The examples by name, and how they are run.

use std::{
    env,
    error::Error,
    io,
    path::Path,
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use transload_cuda_sim::{SimDevice, harness};

#[path = "../../../profiler/tests/trace/fields.rs"]
#[allow(clippy::unwrap_used, clippy::panic, reason = "shared with the tests of traces")]
mod fields;
#[path = "../../../profiler/tests/trace/packets.rs"]
#[allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "shared with the tests of traces")]
mod packets;

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
const LIMIT: Duration = Duration::from_secs(60);

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

/// The example that is run once more while it records a trace.
const TRACED: &str = "06_kv_cache";

/// Runs those whose names contain one of `filters`, or all, and reports in the manner of Rust's test runner.
fn run_all(filters: &[String]) -> ExitCode {
    let names = EXAMPLES.iter().map(|(name, _)| (*name, false));
    let traced = cfg!(feature = "profiler").then_some((TRACED, true));
    let runs: Vec<_> = names.chain(traced).collect();
    let chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let (mut passed, mut failed) = (0, 0);
    for (name, is_traced) in runs.iter().filter(|(name, _)| chosen(name)) {
        let (ok, text) = run_apart(name, *is_traced).unwrap_or_else(|error| (false, error.to_string()));
        let traced = if *is_traced { ", traced" } else { "" };
        println!("test {name}{traced} ... {}", if ok { "ok" } else { "FAILED" });
        if !ok || env::args().any(|argument| argument == "--show-output" || argument == "--nocapture") {
            println!("{text}");
        }
        if ok { passed += 1 } else { failed += 1 }
    }
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    let others = runs.len() - passed - failed;
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {others} filtered out"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one in a process of its own. Returns whether it succeeded, and what it printed.
fn run_apart(name: &str, is_traced: bool) -> io::Result<(bool, String)> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--run", name]);
    // No calibration of this machine's user.
    command.env("XDG_CACHE_HOME", if cfg!(windows) { r"C:\nonexistent" } else { "/nonexistent" });
    if !harness::is_real() {
        command.arg("--simulate");
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trace.pftrace");
    if is_traced {
        command.env("TRANSLOAD_TRACE", &file);
    }
    let output = command.output()?;
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    if is_traced && output.status.success() {
        return Ok(check_trace(&file).map_or_else(|what| (false, what), |()| (true, text)));
    }
    let lacks_device = cfg!(feature = "wgpu")
        && env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_some()
        && text.contains("no third device");
    Ok((output.status.success() && !lacks_device, text))
}

/// Checks that a trace is whole, and that what it says of moves and kernels is there.
fn check_trace(file: &Path) -> Result<(), String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let trace = packets::read(&bytes).ok_or("the trace is cut")?;
    let drawn = trace.drawn();
    let named = |name: &str| drawn.iter().filter(|slice| slice.name == name).count();
    // 60 steps, each a kernel, and more moves than there are sequences.
    let (kernels, submissions) = (named("kernel"), named("submit"));
    let transfers = drawn.iter().filter(|slice| slice.row.contains(" → ")).count();
    if kernels < 60 || submissions < 10 || transfers < submissions {
        return Err(format!(
            "{kernels} kernels, {submissions} submissions, {transfers} transfers: {drawn:#?}"
        ));
    }
    if drawn.iter().any(|slice| slice.row == "main (2)") {
        return Err(format!("what one thread did one after another is on several rows: {drawn:#?}"));
    }
    let end = trace.events().find(|(_, event)| event.kind == 3).ok_or("the trace has no end")?.1;
    let missing = end.arguments.iter().filter(|(name, value)| {
        ["slices not drawn", "records lost", "unfinished"].contains(&&name[..]) && value != "0"
    });
    match missing.count() {
        0 => Ok(()),
        _ => Err(format!("{:?}", end.arguments)),
    }
}
