//! Results on record: merges results of runs into one checked file under docs/benchmarks.

pub(crate) mod render;
mod test_run;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use xshell::Shell;

use crate::{
    bench::results::{self, Choice, Rejection, ResultRow, Results},
    date,
};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The record: docs/benchmarks/DATE-HARDWARE-WHAT.json.
    #[arg(long)]
    out: PathBuf,
    /// Where the files do not say or disagree: the hardware.
    #[arg(long)]
    hardware: Option<String>,
    /// The driver's version.
    #[arg(long)]
    driver: Option<String>,
    /// The CUDA version of the driver.
    #[arg(long)]
    cuda: Option<String>,
    /// The processor.
    #[arg(long)]
    cpu: Option<String>,
    /// The day of the measurement, YYYY-MM-DD.
    #[arg(long)]
    date: Option<String>,
    /// The commit that was measured.
    #[arg(long)]
    commit: Option<String>,
    /// What was run.
    #[arg(long)]
    command: Option<String>,
    /// Tests executed on the same machine: the file tests.json that benches/on_gpu.sh leaves.
    #[arg(long)]
    tests: Option<PathBuf>,
    /// Rows of other programs on the same machine, a JSON object a line: the file pytorch.json that benches/on_gpu.sh leaves.
    #[arg(long = "beside")]
    beside: Vec<PathBuf>,
    /// What a reader must know; may be given several times.
    #[arg(long = "note")]
    notes: Vec<String>,
    /// Results that the benchmark wrote. Of a row measured by several runs each is kept.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// A record as it is committed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) hardware: String,
    pub(crate) driver: String,
    pub(crate) cuda: String,
    pub(crate) cpu: String,
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) command: String,
    pub(crate) rows: Vec<Row>,
    /// What automatic choice took; two lines of one path and size where the runs took different ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) choices: Vec<Choice>,
    /// Which methods could not be taken, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rejections: Vec<Rejection>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tests: Vec<TestCount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

/// A row of a record. The last five are null where nothing was compared or promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) reference: Option<String>,
    pub(crate) reference_value: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) goal: Option<String>,
    pub(crate) met: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p10: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p50: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p90: Option<f64>,
    /// Present and true where the software driver played the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) simulated: bool,
}

/// What a test program did on the machine of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestCount {
    pub(crate) binary: String,
    pub(crate) executed: u64,
    pub(crate) skipped: u64,
    pub(crate) failed: u64,
    /// Why tests were skipped, or why the whole program was left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) skip_reasons: Vec<String>,
}

impl TestCount {
    fn validate(&self) -> Result<()> {
        ensure!(self.failed == 0, "{} of its tests failed", self.failed);
        let reasons = self.skip_reasons.iter().filter(|reason| !reason.trim().is_empty()).count() as u64;
        ensure!(
            reasons >= self.skipped,
            "{} of its tests were skipped, with a reason given for {reasons}",
            self.skipped
        );
        ensure!(self.executed > 0 || reasons > 0, "it executed nothing and says no reason");
        Ok(())
    }
}

/// Merges, checks, writes.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let here = std::env::current_dir()?;
    let out = here.join(&options.out);
    ensure!(
        out.parent() == Some(&sh.current_dir().join("docs/benchmarks")),
        "a record lies in docs/benchmarks, not in {}",
        out.display()
    );
    check_file_name(&out)?;
    let runs: Vec<Results> =
        options.files.iter().map(|file| Results::read(&here.join(file))).collect::<Result<_>>()?;
    let tests =
        options.tests.as_ref().map_or_else(|| Ok(Vec::new()), |file| test_run::read(&here.join(file)))?;
    let mut record = merge(options, runs, tests)?;
    for file in &options.beside {
        for row in results::read_lines(&here.join(file))? {
            record.rows.push(record_row(checked(row)?, 1));
        }
    }
    record.validate()?;
    fs::write(&out, serde_json::to_string_pretty(&record)? + "\n")
        .with_context(|| format!("writing {}", out.display()))?;
    println!("wrote {} with {} rows; now run `cargo xtask render`", out.display(), record.rows.len());
    Ok(())
}

impl Record {
    /// Reads a record and checks it.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        check_file_name(path)?;
        let record: Self =
            serde_json::from_str(&text).with_context(|| format!("{} is no record", path.display()))?;
        record.validate().with_context(|| format!("{} is not a valid record", path.display()))?;
        Ok(record)
    }

    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<()> {
        let Self { hardware, driver, cuda, cpu, date, commit, command, rows, .. } = self;
        let texts =
            [("hardware", hardware), ("driver", driver), ("cuda", cuda), ("cpu", cpu), ("command", command)];
        for (name, text) in texts {
            ensure!(!text.trim().is_empty(), "`{name}` is empty");
        }
        ensure!(date::begins_with_date(date), "`date` is `{date}`, not YYYY-MM-DD");
        ensure!(
            !commit.ends_with("-modified"),
            "`commit` is `{commit}`: files differed from the commit, so it is not what was measured; commit, and measure again"
        );
        let is_hash = (7..=40).contains(&commit.len()) && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(is_hash, "`commit` is `{commit}`, not a commit's hash");
        ensure!(!rows.is_empty() || !self.tests.is_empty(), "neither rows nor tests");
        let mut ids = BTreeSet::new();
        for row in rows {
            ensure!(ids.insert(&row.id), "row `{}` appears twice", row.id);
            row.validate().with_context(|| format!("row `{}`", row.id))?;
        }
        for count in &self.tests {
            count.validate().with_context(|| format!("tests `{}`", count.binary))?;
        }
        Ok(())
    }
}

impl Row {
    fn validate(&self) -> Result<()> {
        ensure!(!self.id.is_empty() && !self.unit.is_empty(), "`id` or `unit` is empty");
        ensure!(self.value.is_finite(), "`value` is not a number");
        ensure!(
            self.reference.is_some() == self.reference_value.is_some(),
            "`reference` and `reference_value` go together"
        );
        ensure!(self.goal.is_some() == self.met.is_some(), "`goal` and `met` go together");
        match (self.ratio, self.reference_value) {
            (Some(_), None) => bail!("`ratio` without a reference"),
            (Some(ratio), Some(reference)) => {
                let expected = self.value / reference;
                // A ratio may be the median of ratios taken in pairs, which is not quite the ratio of medians.
                let is_near = (ratio - expected).abs() <= 0.05 * expected.abs();
                ensure!(is_near, "`ratio` is {ratio}, but value over reference is {expected:.4}");
            }
            (None, _) => {}
        }
        Ok(())
    }
}

fn check_file_name(path: &Path) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // DATE-HARDWARE-WHAT.json: ten bytes of date, then two more parts.
    let parts = name.get(10..).and_then(|rest| rest.strip_suffix(".json")).unwrap_or_default();
    let is_named =
        date::begins_with_date(&name) && parts.split('-').filter(|part| !part.is_empty()).count() >= 2;
    ensure!(is_named, "`{name}` is not named YYYY-MM-DD-HARDWARE-WHAT.json");
    Ok(())
}

fn merge(options: &Options, runs: Vec<Results>, tests: Vec<TestCount>) -> Result<Record> {
    let fact = |name: &str, given: &Option<String>, of: fn(&Results) -> Option<String>| -> Result<String> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let mut said = BTreeSet::new();
        for run in &runs {
            let value = of(run).with_context(|| format!("a file does not say `{name}`: give --{name}"))?;
            said.insert(value);
        }
        ensure!(said.len() <= 1, "the files disagree on `{name}` ({said:?}): give --{name}");
        said.pop_first().with_context(|| format!("nothing says `{name}`: give --{name}"))
    };
    let choices = of_all_runs(&runs, |run| &run.choices);
    let rejections = of_all_runs(&runs, |run| &run.rejections);
    Ok(Record {
        hardware: fact("hardware", &options.hardware, |run| Some(run.hardware.clone()))?,
        driver: fact("driver", &options.driver, |run| run.driver.clone())?,
        cuda: fact("cuda", &options.cuda, |run| run.cuda.clone())?,
        cpu: fact("cpu", &options.cpu, |run| Some(run.cpu.clone()))?,
        date: fact("date", &options.date, |run| run.date.get(..10).map(str::to_owned))?,
        commit: fact("commit", &options.commit, |run| run.commit.clone())?,
        command: fact("command", &options.command, |run| Some(run.command.clone()))?,
        rows: merge_rows(runs)?,
        choices,
        rejections,
        tests,
        notes: options.notes.clone(),
    })
}

/// What the runs say, each thing once, in order of its path and size.
fn of_all_runs<T: Clone + Ord>(runs: &[Results], said: fn(&Results) -> &Vec<T>) -> Vec<T> {
    runs.iter().flat_map(said).cloned().collect::<BTreeSet<T>>().into_iter().collect()
}

/// The rows of all runs. What a later run measured again is kept as `id#2`, so that a reader sees whether runs agree.
fn merge_rows(runs: Vec<Results>) -> Result<Vec<Row>> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut rows = Vec::new();
    for run in runs {
        let mut in_this_run = BTreeSet::new();
        for row in run.rows {
            ensure!(in_this_run.insert(row.id.clone()), "one run has row `{}` twice", row.id);
            let row = checked(row)?;
            let count = seen.entry(row.id.clone()).or_default();
            *count += 1;
            rows.push(record_row(row, *count));
        }
    }
    Ok(rows)
}

fn checked(row: ResultRow) -> Result<ResultRow> {
    ensure!(row.verified || row.bytes == 0, "row `{}` moved bytes that nobody verified", row.id);
    Ok(row)
}

fn record_row(row: ResultRow, run: usize) -> Row {
    let ResultRow { id, value, unit, reference, reference_value, ratio, goal, met, simulated, .. } = row;
    let id = if run == 1 { id } else { format!("{id}#{run}") };
    let (p10, p50, p90) = (Some(row.p10), Some(row.p50), Some(row.p90));
    Row { id, value, unit, reference, reference_value, ratio, goal, met, p10, p50, p90, simulated }
}

#[cfg(test)]
pub(crate) fn sample() -> Record {
    let options = tests::options();
    let mut record = merge(&options, vec![crate::bench::results::sample()], Vec::new()).unwrap();
    record.tests =
        vec![TestCount { binary: "transload--it".to_owned(), executed: 12, ..TestCount::default() }];
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn options() -> Options {
        Options {
            out: PathBuf::new(),
            hardware: None,
            driver: None,
            cuda: None,
            cpu: None,
            date: None,
            commit: None,
            command: None,
            tests: None,
            beside: Vec::new(),
            notes: Vec::new(),
            files: Vec::new(),
        }
    }

    #[test]
    fn a_merged_record_is_valid_and_survives_writing() {
        let record = sample();
        record.validate().unwrap();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        assert!(text.contains("\"simulated\":true"));
    }

    #[test]
    fn a_second_run_is_kept_beside_the_first() {
        let rows =
            merge_rows(vec![crate::bench::results::sample(), crate::bench::results::sample()]).unwrap();
        assert_eq!(rows.len(), 4);
        assert!(rows[2].id.ends_with("#2"));
    }

    #[test]
    fn what_was_chosen_and_rejected_is_kept_once_and_a_run_that_chose_otherwise_shows() {
        let mut other = crate::bench::results::sample();
        other.choices[0].method = "ZeroCopy".to_owned();
        let record = merge(&options(), vec![crate::bench::results::sample(), other], Vec::new()).unwrap();
        let chosen: Vec<&str> = record.choices.iter().map(|choice| choice.method.as_str()).collect();
        assert_eq!(chosen, ["DirectCopy", "ZeroCopy"]);
        assert_eq!(record.rejections, crate::bench::results::sample().rejections);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn bytes_that_nobody_verified_do_not_enter_the_record() {
        let mut run = crate::bench::results::sample();
        run.rows[0].verified = false;
        assert!(merge_rows(vec![run]).unwrap_err().to_string().contains("nobody verified"));
    }

    #[test]
    fn files_that_disagree_need_a_word_from_the_user() {
        let mut other = crate::bench::results::sample();
        other.hardware = "another".to_owned();
        let runs = vec![crate::bench::results::sample(), other];
        let mut options = options();
        let error = merge(&options, runs.clone(), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("--hardware"), "{error}");
        options.hardware = Some("two machines".to_owned());
        assert_eq!(merge(&options, runs, Vec::new()).unwrap().hardware, "two machines");
    }

    #[test]
    fn an_invalid_record_says_what_is_wrong() {
        type Spoil = fn(&mut Record);
        let broken: [(Spoil, &str); 10] = [
            (|record| record.date = "yesterday".to_owned(), "date"),
            (|record| record.commit = "HEAD".to_owned(), "commit"),
            (|record| record.commit += "-modified", "files differed"),
            (|record| record.tests[0].failed = 1, "failed"),
            (|record| record.tests[0].skipped = 1, "skipped"),
            (|record| record.driver.clear(), "driver"),
            (|record| record.rows[0].ratio = Some(0.9), "ratio"),
            (|record| record.rows[0].met = None, "met"),
            (|record| record.rows[0].reference = None, "reference"),
            (|record| record.rows[1].id = record.rows[0].id.clone(), "twice"),
        ];
        for (spoil, word) in broken {
            let mut record = sample();
            spoil(&mut record);
            let error = format!("{:#}", record.validate().unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_record_is_named_by_date_hardware_and_subject() {
        assert!(check_file_name(Path::new("docs/benchmarks/2026-11-20-h200-copies.json")).is_ok());
        for name in
            ["h200-copies.json", "2026-11-20.json", "2026-11-20-h200.json", "2026-11-20-h200-copies.txt"]
        {
            assert!(check_file_name(Path::new(name)).is_err(), "{name}");
        }
    }
}
