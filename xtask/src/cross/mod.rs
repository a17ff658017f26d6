//! Checks the workspace for other platforms, and runs its tests if an emulator is installed. The results say nothing about
//! hardware.

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
    /// The platform; by default all.
    platform: Option<Platform>,
    /// Check only; run no tests.
    #[arg(long)]
    check: bool,
    /// A target to leave out.
    #[arg(long)]
    without: Option<String>,
    #[arg(skip)]
    for_every_change: bool,
    /// Further arguments for `cargo test`, such as `--package transload-core`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Options {
    /// For every change: libraries and programs, no tests, which take a third of all of CI; no check for Linux on aarch64, all of whose code
    /// is also that of Linux here or of macOS on aarch64; and one of the two Windows targets, which hardly differ here.
    pub(crate) fn for_every_change() -> Self {
        let without = Some("x86_64-pc-windows-msvc".to_owned());
        Self { platform: None, check: true, without, for_every_change: true, arguments: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Platform {
    /// Linux on aarch64; tests under qemu-user.
    Aarch64,
    /// Windows on x86-64, GNU and MSVC; tests of the GNU build under Wine.
    Windows,
    /// macOS on aarch64; checked only.
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

/// The result of one step.
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

/// Checks and tests each platform as far as tools are installed, then prints what was done and what was skipped.
///
/// Fails at the end if a check or a test failed. A missing tool is not a failure.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let platforms = options.platform.as_ref().map_or(Platform::value_variants(), std::slice::from_ref);
    let mut outcomes = Vec::new();
    let is_left_out = |platform: &&Platform| options.for_every_change && **platform == Platform::Aarch64;
    for platform in platforms.iter().filter(|platform| !is_left_out(platform)) {
        let is_wanted = |target: &&&str| options.without.as_deref() != Some(**target);
        for target in platform.targets().iter().filter(is_wanted) {
            let checked = check(sh, target, options.for_every_change);
            let has_compiler = !matches!(checked, Outcome::Skipped(_));
            outcomes.push((*target, checked));
            if has_compiler && !options.check {
                outcomes.extend(test(sh, target, options)?.map(|outcome| (*target, outcome)));
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

/// Runs clippy, which checks everything that needs no linker. Of the wgpu backend, whose build takes a minute, and
/// what the facade and the program have for it, only the libraries, where they use other APIs than here.
fn check(sh: &Shell, target: &'static str, for_every_change: bool) -> Outcome {
    if let Err(reason) = prepare(sh, target) {
        return Outcome::Skipped(format!("{reason:#}"));
    }
    let kinds: &[&str] = if for_every_change { &["--lib", "--bins"] } else { &["--all-targets"] };
    println!("cross: {target}: clippy, {}, warnings denied", kinds.join(" "));
    let clippy = cmd!(
        sh,
        "cargo clippy --workspace --exclude transload-backend-wgpu {kinds...} --locked --target {target} -- -D warnings"
    );
    let packages =
        ["transload-backend-wgpu", "transload", "transload-cli"].map(|name| format!("--package={name}"));
    let wgpu = cmd!(
        sh,
        "cargo clippy {packages...} --features transload/wgpu,transload-cli/wgpu --lib --locked --target {target} -- -D warnings"
    );
    let checked = clippy.quiet().run().and_then(|()| match target.contains("linux") {
        true => Ok(()),
        false => wgpu.quiet().run(),
    });
    match checked {
        Ok(()) => Outcome::Checked,
        Err(_) => Outcome::Failed("the check".to_owned()),
    }
}

/// Installs the standard library of a platform and downloads its dependencies, if missing.
fn prepare(sh: &Shell, target: &str) -> Result<()> {
    let library = cmd!(sh, "rustc --print target-libdir --target {target}").quiet().read()?;
    if !std::path::Path::new(&library).is_dir() {
        let add = cmd!(sh, "rustup target add {target}").quiet();
        add.run().context("the standard library is missing and cannot be installed")?;
    }
    let fetch = cmd!(sh, "cargo fetch --quiet --locked --target {target}").quiet();
    fetch.run().context("dependencies are missing and cannot be downloaded")
}

/// Runs every test program; `None` if no emulator exists for the platform. Doctests run on the machine's own platform only.
fn test(sh: &Shell, target: &'static str, options: &Options) -> Result<Option<Outcome>> {
    let arguments = &options.arguments;
    let emulator = match emulator::find(sh, target) {
        Ok(emulator::Found::Nothing) => return Ok(None),
        Ok(emulator::Found::Missing(what)) => return Ok(Some(Outcome::Skipped(what))),
        Ok(emulator::Found::Ready(emulator)) => emulator,
        // For example, Wine cannot set up its folder.
        Err(error) => return Ok(Some(Outcome::Skipped(format!("no tests; {error:#}")))),
    };
    println!("cross: {target}: tests under {}", emulator.version);
    let names_packages = arguments.iter().any(|one| one.starts_with("-p") || one.starts_with("--package"));
    let mut all: Vec<&str> = vec!["--target", target];
    all.extend((!names_packages).then_some("--workspace"));
    all.extend(arguments.iter().map(String::as_str));
    // For the builds below.
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
    if target.contains("windows") && !options.for_every_change {
        match exports::check(sh, target) {
            Ok(()) => println!("cross: {target}: a C library neither exports nor needs the driver's symbols"),
            Err(error) => return Ok(Some(Outcome::Failed(format!("a C library: {error:#}")))),
        }
    }
    Ok(Some(Outcome::Ran { version: emulator.version.clone(), counts: total }))
}
