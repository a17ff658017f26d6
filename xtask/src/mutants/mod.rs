//! Deliberate faults, each of which its listed test must catch.

pub(crate) mod list;
mod process;
pub(crate) mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    num::NonZeroUsize,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use xshell::{PushEnv, Shell};

use crate::artifacts::{self, Artifact};
use list::Mutant;
use process::End;
use table::Outcome;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only mutants whose name contains this; does not write docs/mutants.md.
    filter: Option<String>,
    /// Seconds after which a test without a mutant counts as hanging.
    #[arg(long, default_value_t = LIMIT, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Do not write docs/mutants.md.
    #[arg(long)]
    check: bool,
    /// Leave out mutants whose name begins with this; implies `--check`.
    #[arg(long)]
    without: Option<String>,
}

/// Longer than the watchdogs of the tests.
const LIMIT: u64 = 150;

/// The least seconds after which a test counts as hanging with its mutant: else those that it took without, 8 times.
const LEAST_LIMIT: Duration = Duration::from_secs(8);

/// Runs of a test in which its mutant may show itself: a thread may be faster than the check. Nearly all show at the first.
const RUNS: usize = 20;

impl Options {
    /// For every change: without writing a file, and without the mutants of the wgpu backend. Their build takes as long as that of a third
    /// of all crates, and where no Vulkan adapter is, their tests catch nothing.
    pub(crate) fn for_every_change() -> Self {
        Self { filter: None, limit: LIMIT, check: true, without: Some("wgpu/".to_owned()) }
    }

    fn selects(&self, mutant: &Mutant) -> bool {
        self.filter.as_ref().is_none_or(|text| mutant.name.contains(text))
            && self.without.as_ref().is_none_or(|prefix| !mutant.name.starts_with(prefix))
    }
}

/// A test: package, target, path.
type Test<'a> = (&'a str, &'a str, &'a str);

fn test_of(mutant: &Mutant) -> Test<'_> {
    (&mutant.package, &mutant.target, &mutant.test)
}

/// Builds once, then checks that every listed test passes without its mutant and fails with it.
///
/// # Errors
/// If a mutant survives, a test is missing or fails without a mutant, or the build fails.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let root = sh.current_dir();
    let lists = list::read(&root)?;
    let all: Vec<Mutant> =
        lists.into_iter().flat_map(|list| list.mutants).map(|(_, mutant)| mutant).collect();
    let chosen: Vec<Mutant> = all.into_iter().filter(|mutant| options.selects(mutant)).collect();
    ensure!(!chosen.is_empty(), "no mutant's name contains `{}`", options.filter.as_deref().unwrap_or(""));
    let limit = Duration::from_secs(options.limit);
    let built = build(sh, &chosen)?;
    let tests: Vec<Test<'_>> = chosen.iter().map(test_of).collect::<BTreeSet<_>>().into_iter().collect();
    let sound = each(&tests, "without a mutant", |(package, target, path)| {
        let begun = Instant::now();
        let program = program(&built, package, target)?;
        let (end, output) = process::run(program, path, None, limit)
            .with_context(|| format!("{package}, {target}: {path}"))?;
        Ok((end, output, begun.elapsed()))
    })?;
    // A test that fails without a mutant catches nothing; the other mutants still run.
    let mut broken: BTreeMap<Test<'_>, End> = BTreeMap::new();
    let failed = |(_, (end, ..)): &(_, &(End, _, _))| *end != End::Passed;
    for (test, (end, output, _)) in tests.iter().zip(&sound).filter(failed) {
        let (package, target, path) = test;
        eprintln!("{package}, {target}: {path} does not pass without a mutant:\n{output}");
        broken.insert(*test, if *end == End::NoTest { End::NoTest } else { End::Broken });
    }
    let limits: BTreeMap<Test<'_>, Duration> = (tests.iter().zip(&sound))
        .map(|(test, (.., took))| (*test, limit.min(LEAST_LIMIT.max(*took * 8))))
        .collect();
    let outcomes = each(&chosen, "with its mutant", |mutant| {
        let (package, target, path) = test_of(mutant);
        if let Some(end) = broken.get(&test_of(mutant)) {
            return Ok(Outcome::new(mutant, *end, 0.0));
        }
        let begun = Instant::now();
        let program = program(&built, package, target)?;
        let limit = limits.get(&test_of(mutant)).copied().unwrap_or(limit);
        let run = || process::run(program, path, Some(&mutant.name), limit).map(|(end, _)| end);
        let mut end = run();
        for _ in 1..RUNS {
            if !matches!(end, Ok(End::Passed)) {
                break;
            }
            end = run();
        }
        let end = end.with_context(|| format!("{package}, {target}: {path}"))?;
        Ok(Outcome::new(mutant, end, begun.elapsed().as_secs_f64()))
    })?;
    print!("{}", table::text(&outcomes));
    let json = artifacts::target_directory(sh)?.join("mutants.json");
    fs::write(&json, serde_json::to_string_pretty(&outcomes)? + "\n")
        .with_context(|| format!("writing {}", json.display()))?;
    let survivors: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.is_caught()).map(|outcome| outcome.name.as_str()).collect();
    ensure!(survivors.is_empty(), "not caught: {}", survivors.join(", "));
    if options.filter.is_none() && options.without.is_none() && !options.check {
        fs::write(root.join(table::PAGE), table::page(&outcomes))
            .with_context(|| format!("writing {}", table::PAGE))?;
        println!("wrote {}", table::PAGE);
    }
    Ok(())
}

/// Has cargo build with `--cfg mutants`, in a separate target folder, while the result lives.
///
/// # Errors
/// Those of cargo's metadata.
pub(crate) fn environment(sh: &Shell) -> Result<[PushEnv<'_>; 2]> {
    let target = artifacts::target_directory(sh)?.join("mutants");
    let flags = sh.var("RUSTFLAGS").unwrap_or_default();
    let flags = sh.push_env("RUSTFLAGS", format!("{flags} --cfg mutants").trim());
    Ok([flags, sh.push_env("CARGO_TARGET_DIR", target)])
}

/// Builds the listed test programs with `--cfg mutants` in a separate target folder.
fn build(sh: &Shell, mutants: &[Mutant]) -> Result<Vec<Artifact>> {
    let _environment = environment(sh)?;
    let packages: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.package.as_str()).collect();
    let targets: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.target.as_str()).collect();
    let features = features(&artifacts::metadata(sh)?, &packages);
    let mut arguments = vec!["test", "--no-run", "--features", &features];
    arguments.extend(packages.iter().flat_map(|package| ["--package", package]));
    for target in targets {
        arguments.extend(if target == "lib" { vec!["--lib"] } else { vec!["--test", target] });
    }
    eprintln!("building the tests of {} packages with --cfg mutants", packages.len());
    artifacts::build(sh, &arguments)
}

/// Returns all features of the packages but the one that adds wgpu, which is large, as in a build of the whole workspace, where the
/// programs enable them.
fn features(metadata: &Value, packages: &BTreeSet<&str>) -> String {
    let mut all = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().filter(|name| packages.contains(name)).unwrap_or_default();
        let features = package["features"].as_object().filter(|_| !name.is_empty());
        let others =
            features.into_iter().flatten().map(|(feature, _)| feature).filter(|feature| *feature != "wgpu");
        all.extend(others.map(|feature| format!("{name}/{feature}")));
    }
    all.join(",")
}

fn program<'a>(built: &'a [Artifact], package: &str, target: &str) -> Result<&'a Artifact> {
    let is_it = |artifact: &&Artifact| {
        artifact.is_test
            && artifact.package == package
            && if target == "lib" {
                artifact.kind == "lib"
            } else {
                artifact.target == target && artifact.kind == "test"
            }
    };
    built.iter().find(is_it).with_context(|| format!("package {package} has no test target `{target}`"))
}

/// Runs `work` for each item with a progress bar; returns the results in the order of the items. Uses four threads a
/// processor, since hanging tests use none.
fn each<T: Sync, R: Send>(items: &[T], what: &str, work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let bar = ProgressBar::new(items.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let threads = 4 * thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).insert(index, result);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}
