//! Compares this program with an earlier one: both run in turns, several processes each, and the values of a row in the processes
//! are the two samples. Copies within a process are not independent of each other, processes are: in some, every call of the driver
//! takes 1 µs more, which the reference of the row in the same process shows.

mod report;
mod statistics;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use crate::{
    exit,
    options::Options,
    progress::Progress,
    row_key::{key, may_be_absent},
};

/// Probability, at most, that a comparison of programs that do not differ finds a row that is worse, and that it finds one that is better. Each is corrected
/// by itself, so that it finds either with at most twice this.
const ALPHA: f64 = 0.05;

/// What a run of a program measured.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    simulated: bool,
    hardware: String,
    driver: Option<String>,
    cuda: Option<String>,
    cpu: String,
    date: String,
    rows: Vec<Sample>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Sample {
    id: String,
    unit: String,
    value: f64,
    /// The reference's, in the same process.
    reference_value: Option<f64>,
    reference: Option<String>,
    /// Whether the reference is the library itself. Earlier programs do not tell.
    #[serde(default)]
    own_reference: bool,
    goal: Option<String>,
}

/// The comparison; its fields are the file's schema.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    schema: u32,
    simulated: bool,
    hardware: String,
    driver: Option<String>,
    cuda: Option<String>,
    cpu: String,
    date: String,
    /// Programs with their commits.
    old: String,
    new: String,
    /// The smallest change that counts, as a share.
    least_change: f64,
    /// Rows of one program alone, or not of each of its processes. One whose unit changed is among both.
    gone: Vec<String>,
    added: Vec<String>,
    rows: Vec<ComparedRow>,
}

/// A row of both programs.
#[derive(Clone, Debug, Serialize)]
struct ComparedRow {
    id: String,
    /// The old program's id, if it chose another method.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_id: Option<String>,
    unit: String,
    more_is_better: bool,
    /// The value in each process.
    old: Vec<f64>,
    new: Vec<f64>,
    /// Whether what the references differ by between processes was taken off before they were compared.
    adjusted: bool,
    /// New over old with its interval at 95 %; absent where a value is 0.
    ratio: Option<[f64; 3]>,
    /// Probabilities of what was found if the new program is not worse, or not better, by the least change, each corrected for the number
    /// of rows.
    p_worse: f64,
    p_better: f64,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Worse,
    Better,
    Same,
}

impl Comparison {
    /// Returns whether a row is worse, or missing: what is not measured is not the same.
    fn is_worse(&self) -> bool {
        !self.gone.is_empty() || self.rows.iter().any(|row| row.verdict == Verdict::Worse)
    }
}

/// Runs both programs, prints what changed, and writes the files that the options name.
///
/// # Errors
/// If a program fails, or the two have no row in common.
pub fn run(options: &Options, old: &Path) -> Result<ExitCode> {
    let (old, new) = (program(old)?, env::current_exe().context("this program's own file")?);
    let arguments = arguments(options);
    let planted = options.planted.iter().flat_map(|planted| ["--planted".to_owned(), planted.clone()]);
    let for_new: Vec<String> = arguments.iter().cloned().chain(planted).collect();
    let folder = env::temp_dir().join(format!("transload-against-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let json = folder.join("run.json");
    let outcome = in_turns(options, |is_new| match is_new {
        true => measure(&new, &for_new, &json),
        false => measure(&old, &arguments, &json),
    });
    let _left_behind = fs::remove_dir_all(&folder);
    let [old_runs, new_runs] = outcome?;
    let names = [described(&old), described(&new)];
    let comparison = compare(options, names, &old_runs, &new_runs)?;
    print!("{}", comparison.text());
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&comparison)? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.summary {
        report::append(path, &comparison.markdown())?;
    }
    Ok(if comparison.is_worse() { ExitCode::from(exit::WORSE) } else { ExitCode::SUCCESS })
}

/// Returns the program of a bundle, or the file itself.
fn program(path: &Path) -> Result<PathBuf> {
    let name = format!("transload-bench{}", env::consts::EXE_SUFFIX);
    let program = if path.is_dir() { path.join(name) } else { path.to_owned() };
    let absent = || format!("there is no program {}; name one, or a folder that has it", program.display());
    let found = program.canonicalize().with_context(absent)?;
    ensure!(found.is_file(), "{}: it is no file", absent());
    Ok(found)
}

/// Returns a program with the commit in its bundle's manifest.
fn described(program: &Path) -> String {
    let manifest = fs::read_to_string(program.with_file_name("manifest.json")).unwrap_or_default();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap_or_default();
    let modified = if manifest["modified"] == true { ", with changes" } else { "" };
    let commit = manifest["commit"].as_str().map(|commit| format!(" (commit {commit}{modified})"));
    format!("{}{}", program.display(), commit.unwrap_or_default())
}

/// Returns the options of both programs' runs.
fn arguments(options: &Options) -> Vec<String> {
    let mut arguments = vec!["--seed".to_owned(), options.seed.to_string()];
    for (is_given, name) in
        [(options.quick, "--quick"), (options.simulate, "--simulate"), (options.hardware, "--hardware")]
    {
        arguments.extend(is_given.then(|| name.to_owned()));
    }
    #[cfg(feature = "wgpu")]
    arguments.extend(options.software_adapters.then(|| "--software-adapters".to_owned()));
    for group in options.only.iter().filter_map(|group| group.to_possible_value()) {
        arguments.extend(["--only".to_owned(), group.get_name().to_owned()]);
    }
    arguments.extend(options.parts.iter().flat_map(|part| ["--parts".to_owned(), part.clone()]));
    arguments.extend(options.processors.iter().flat_map(|n| ["--processors".to_owned(), n.to_string()]));
    arguments.extend(options.repetitions.iter().flat_map(|n| ["--repetitions".to_owned(), n.to_string()]));
    arguments
}

/// Runs a program once. Missed goals are not looked at.
fn measure(program: &Path, arguments: &[String], json: &Path) -> Result<Run> {
    let name = program.display();
    let output = Command::new(program).args(arguments).arg("--json").arg(json).output();
    let output = output.with_context(|| format!("starting {name}"))?;
    let is_measured = output.status.success() || output.status.code() == Some(exit::MISSED.into());
    ensure!(is_measured, "{name} failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(json).with_context(|| format!("{name} wrote no results"))?;
    fs::remove_file(json).context("removing the results of one run")?;
    serde_json::from_str(&text).with_context(|| format!("the results of {name}"))
}

/// Runs both in turns, as old, new, new, old, so that what drifts evenly affects both. Runs as many more processes than the options ask
/// for as show a change of one of so many rows even if one process is slow.
fn in_turns(options: &Options, mut measure: impl FnMut(bool) -> Result<Run>) -> Result<[Vec<Run>; 2]> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let progress = Progress::new(0);
    let mut processes = options.processes as usize;
    while old.len() < processes {
        let is_new_first = old.len() % 2 == 1;
        for is_new in [is_new_first, !is_new_first] {
            let runs = if is_new { &mut new } else { &mut old };
            progress.expect(1);
            let of = if is_new { "new" } else { "old" };
            progress.next(&format!("process {} of {processes}, {of} program", runs.len() + 1));
            runs.push(measure(is_new)?);
        }
        // Those of the present program, which tells whose a reference is.
        let rows = new.first().into_iter().flat_map(|run: &Run| &run.rows);
        let rows = rows.filter(|row| is_compared(row, options)).map(|row| 1 + usize::from(row.own_reference));
        let rows: usize = rows.sum();
        while statistics::with_one_astray(processes) * rows as f64 > ALPHA {
            processes += 1;
        }
    }
    eprintln!("measured in {:.1} s", progress.finish());
    Ok([old, new])
}

/// Returns whether a row is compared: not what the driver does, and not a repetition.
fn is_compared(row: &Sample, options: &Options) -> bool {
    let is_wanted = options.rows.is_empty() || options.rows.iter().any(|text| row.id.contains(text.as_str()));
    let what = row.id.rsplit('/').next().unwrap_or_default();
    let is_reference =
        row.id.starts_with("reference/") || what.starts_with("raw") || what.ends_with("memcpy");
    is_wanted && !is_reference && !row.id.contains('#')
}

fn compare(
    options: &Options,
    [old_name, new_name]: [String; 2],
    old: &[Run],
    new: &[Run],
) -> Result<Comparison> {
    let all = old.iter().chain(new).flat_map(|run| &run.rows);
    let own: BTreeSet<&str> = all.filter(|row| row.own_reference).map(|row| row.id.as_str()).collect();
    let (before, after) = (values(old, options, &own), values(new, options, &own));
    let first = new.first().context("nothing was measured")?;
    let is_gone = |(key, of): &(&String, &Values<'_>)| {
        !may_be_absent(&of.id) && after.get(*key).is_none_or(|of| of.samples.len() < new.len())
    };
    let gone: BTreeMap<&String, &Values<'_>> = before.iter().filter(is_gone).collect();
    let was_complete = |key: &String| before.get(key).is_some_and(|of| of.samples.len() == old.len());
    let is_added = |(key, _): &(&String, &Values<'_>)| !gone.contains_key(*key) && !was_complete(key);
    let added: Vec<_> = after.iter().filter(is_added).map(|(_, of)| of.id.clone()).collect();
    let gone: Vec<_> = gone.into_values().map(|of| of.id.clone()).collect();
    let least = options.least_change / 100.0;
    let mut rows = Vec::new();
    let complete = after.iter().filter(|(_, of)| of.samples.len() == new.len());
    for (key, Values { id, row, samples: new }) in complete {
        let Some(then) = before.get(key).filter(|of| of.samples.len() == old.len()) else { continue };
        let old = &then.samples;
        let more_is_better = is_more_better(row);
        let measured = [old, new].map(|values| values.iter().map(|(value, _)| *value).collect::<Vec<_>>());
        let adjusted = statistics::without_reference([old.as_slice(), new]);
        let is_adjusted = adjusted.is_some();
        let [old, new] = &adjusted.unwrap_or_else(|| measured.clone());
        // As if the other one were worse by the least change.
        let beyond =
            |values: &[f64], factor: f64| values.iter().map(|value| value * factor).collect::<Vec<_>>();
        let factor = if more_is_better { 1.0 - least } else { 1.0 + least };
        let [worse, better] = [(new, old), (old, new)].map(|(one, other)| {
            let other = beyond(other, factor);
            if more_is_better { statistics::exceeds(&other, one) } else { statistics::exceeds(one, &other) }
        });
        let ratio = statistics::ratio(new, old);
        let [old, new] = measured;
        rows.push(ComparedRow {
            id: id.clone(),
            old_id: Some(then.id.clone()).filter(|then| then != id),
            unit: row.unit.clone(),
            more_is_better,
            adjusted: is_adjusted,
            ratio,
            old,
            new,
            p_worse: worse,
            p_better: better,
            verdict: Verdict::Same,
        });
    }
    ensure!(!rows.is_empty(), "the two programs have no row in common");
    let worse = statistics::corrected(&rows.iter().map(|row| row.p_worse).collect::<Vec<_>>());
    let better = statistics::corrected(&rows.iter().map(|row| row.p_better).collect::<Vec<_>>());
    for (row, (worse, better)) in rows.iter_mut().zip(worse.into_iter().zip(better)) {
        (row.p_worse, row.p_better) = (worse, better);
        row.verdict = match (worse <= ALPHA, better <= ALPHA) {
            (true, _) => Verdict::Worse,
            (_, true) => Verdict::Better,
            _ => Verdict::Same,
        };
    }
    rows.sort_by(|a, b| {
        a.verdict.cmp(&b.verdict).then(a.p_worse.min(a.p_better).total_cmp(&b.p_worse.min(b.p_better)))
    });
    Ok(Comparison {
        schema: 1,
        simulated: old.iter().chain(new).any(|run| run.simulated),
        hardware: first.hardware.clone(),
        driver: first.driver.clone(),
        cuda: first.cuda.clone(),
        cpu: first.cpu.clone(),
        date: first.date.clone(),
        old: old_name,
        new: new_name,
        least_change: least,
        gone,
        added,
        rows,
    })
}

/// A row with its id, and its value and its reference's in each process that has it.
struct Values<'a> {
    id: String,
    row: &'a Sample,
    samples: Vec<(f64, Option<f64>)>,
}

/// Returns the values of each row, by what it measures. A change that slows down a row and its reference must not be taken for the
/// process's: a reference that is the library itself is no measure of the process, but compared as a row of its own.
fn values<'a>(
    runs: &'a [Run],
    options: &Options,
    own_references: &BTreeSet<&str>,
) -> BTreeMap<String, Values<'a>> {
    let mut found: BTreeMap<String, Values<'_>> = BTreeMap::new();
    let mut add = |id: String, row: &'a Sample, value| {
        // Values of two units are not compared.
        let key = format!("{} in {}", key(&id), row.unit);
        found.entry(key).or_insert_with(|| Values { id, row, samples: Vec::new() }).samples.push(value);
    };
    for row in runs.iter().flat_map(|run| &run.rows).filter(|row| is_compared(row, options)) {
        let is_own = own_references.contains(row.id.as_str());
        add(row.id.clone(), row, (row.value, row.reference_value.filter(|_| !is_own)));
        if let (true, Some(reference), Some(value)) = (is_own, &row.reference, row.reference_value) {
            add(format!("{}: {reference}", row.id), row, (value, None));
        }
    }
    found
}

fn is_more_better(row: &Sample) -> bool {
    match row.goal.as_deref() {
        Some(goal) if goal.contains(">=") => true,
        Some(goal) if goal.contains("<=") => false,
        _ => row.unit.ends_with("/s") || row.unit == "share",
    }
}

#[cfg(test)]
mod tests;
