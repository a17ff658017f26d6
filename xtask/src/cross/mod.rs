//! The workspace on platforms other than this machine's: checked for each, and its tests run where something here can run
//! the platform's programs. Nothing of it says anything about hardware.

mod emulator;
mod exports;
mod programs;
mod wine;

use std::fmt;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use xshell::{Shell, cmd};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// One platform; all of them where not given.
    platform: Option<Platform>,
    /// Check only: run no tests.
    #[arg(long)]
    check: bool,
    /// Further arguments for `cargo test`, such as `--package transload-core`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// What every change is tested on elsewhere: the driver beneath cust, what stands on it, what is linked with it, and the floor.
/// Emulated, the tests of streams alone take as long as all of these.
const OFTEN: [&str; 6] = ["core", "cuda-sim", "cuda-sys", "memory", "cli", "probe"];

impl Options {
    /// For every change: all platforms, and of the tests those that differ most between platforms.
    pub(crate) fn for_every_change() -> Self {
        let arguments = OFTEN.iter().map(|name| format!("--package=transload-{name}")).collect();
        Self { platform: None, check: false, arguments }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Platform {
    /// Linux on aarch64; tests under qemu-user.
    Aarch64,
    /// Windows on x86-64, of both kinds; tests of the GNU kind under Wine.
    Windows,
    /// macOS on aarch64: checked, never run.
    Macos,
}

impl Platform {
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Aarch64 => &["aarch64-unknown-linux-gnu"],
            Self::Windows => &["x86_64-pc-windows-gnu", "x86_64-pc-windows-msvc"],
            Self::Macos => &["aarch64-apple-darwin"],
        }
    }
}

/// What became of one part of the work.
enum Outcome {
    Checked,
    Skipped(String),
    Failed(String),
    Ran { version: String, counts: programs::Counts },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checked => f.write_str("checked"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
            Self::Failed(what) => write!(f, "FAILED: {what}"),
            Self::Ran { version, counts } => {
                write!(f, "tests under {version}, in {} programs: {counts}", counts.programs)
            }
        }
    }
}

impl Outcome {
    fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_)) || matches!(self, Self::Ran { counts, .. } if counts.failed > 0)
    }
}

/// Does what can be done here for each platform, then says what was and what was not. What is missing is no failure.
///
/// Fails, after all of it, where something that was done found a fault.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let platforms = options.platform.as_ref().map_or(Platform::value_variants(), std::slice::from_ref);
    let mut outcomes = Vec::new();
    for platform in platforms {
        for target in platform.targets() {
            let checked = check(sh, target);
            let has_compiler = !matches!(checked, Outcome::Skipped(_));
            outcomes.push((*target, checked));
            if has_compiler && !options.check {
                outcomes.extend(test(sh, target, &options.arguments)?.map(|outcome| (*target, outcome)));
            }
        }
    }
    println!();
    for (target, outcome) in &outcomes {
        println!("cross: {target}: {outcome}");
    }
    match outcomes.iter().filter(|(_, outcome)| outcome.is_failure()).count() {
        0 => Ok(()),
        failed => bail!("{failed} of the above failed"),
    }
}

/// Clippy, which has the compiler check everything that does not depend on a linker.
fn check(sh: &Shell, target: &'static str) -> Outcome {
    if let Err(reason) = have(sh, target) {
        return Outcome::Skipped(format!("{reason:#}"));
    }
    println!("cross: {target}: clippy, every target, warnings denied");
    let clippy = cmd!(sh, "cargo clippy --workspace --all-targets --locked --target {target} -- -D warnings");
    match clippy.quiet().run() {
        Ok(()) => Outcome::Checked,
        Err(_) => Outcome::Failed("the check".to_owned()),
    }
}

/// Sees to it that the standard library for a platform is installed, and the sources of what only that platform needs.
fn have(sh: &Shell, target: &str) -> Result<()> {
    let library = cmd!(sh, "rustc --print target-libdir --target {target}").quiet().read()?;
    if !std::path::Path::new(&library).is_dir() {
        let add = cmd!(sh, "rustup target add {target}").quiet();
        add.run().context("the standard library is missing and cannot be installed")?;
    }
    let fetch = cmd!(sh, "cargo fetch --quiet --locked --target {target}").quiet();
    fetch.run().context("dependencies are missing and cannot be downloaded")
}

/// Every test that is a program of its own; `None` for platforms whose programs nothing here runs. Examples in the
/// documentation are left to the machine's own platform.
fn test(sh: &Shell, target: &'static str, arguments: &[String]) -> Result<Option<Outcome>> {
    let emulator = match emulator::find(sh, target) {
        Ok(emulator::Found::Nothing) => return Ok(None),
        Ok(emulator::Found::Missing(what)) => return Ok(Some(Outcome::Skipped(what))),
        Ok(emulator::Found::Ready(emulator)) => emulator,
        // As where Wine cannot set up its folder.
        Err(error) => return Ok(Some(Outcome::Skipped(format!("no tests; {error:#}")))),
    };
    println!("cross: {target}: tests under {}", emulator.version);
    let names_packages = arguments.iter().any(|one| one.starts_with("-p") || one.starts_with("--package"));
    let mut all: Vec<&str> = vec!["--target", target];
    all.extend((!names_packages).then_some("--workspace"));
    all.extend(arguments.iter().map(String::as_str));
    // For all that is built below.
    let _environment: Vec<_> =
        emulator.environment.iter().map(|(name, value)| sh.push_env(name, value)).collect();
    let Ok(tests) = programs::build(sh, &all) else {
        return Ok(Some(Outcome::Failed("building the tests".to_owned())));
    };
    let _session = emulator.session();
    let mut total = programs::Counts::default();
    for test in &tests {
        match emulator.left_out {
            Some((name, reason)) if test.target.starts_with(name) => {
                println!("cross: {}--{}: skipped: {reason}", test.package, test.target);
            }
            _ => total += programs::run(&emulator, test)?,
        }
    }
    if target.contains("windows") {
        match exports::check(sh, target) {
            Ok(()) => println!("cross: {target}: a C library exports and needs nothing of the driver's"),
            Err(error) => return Ok(Some(Outcome::Failed(format!("a C library: {error:#}")))),
        }
    }
    Ok(Some(Outcome::Ran { version: emulator.version.clone(), counts: total }))
}
