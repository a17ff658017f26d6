//! Merges results of several runs into one validated record under docs/benchmarks.

mod index;
pub(crate) mod render;
mod schema;
mod test_run;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use xshell::Shell;

use self::schema::check_file_name;
pub(crate) use self::schema::{Record, Row, TestCount};
use crate::bench::results::{self, ResultRow, Results};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The record: docs/benchmarks/DATE-HARDWARE-WHAT.json.
    #[arg(long)]
    out: PathBuf,
    /// The hardware. Like the following options, required if the files do not say it or disagree.
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
    /// Tests run on the same machine: tests.json of benches/on_gpu.sh.
    #[arg(long)]
    tests: Option<PathBuf>,
    /// Rows of other programs on the same machine, one JSON object a line: pytorch.json of benches/on_gpu.sh.
    #[arg(long = "beside")]
    beside: Vec<PathBuf>,
    /// A note for readers; may be repeated.
    #[arg(long = "note")]
    notes: Vec<String>,
    /// Results files of the benchmark. If several contain a row, all are kept.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Merges, validates and writes.
pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let here = std::env::current_dir()?;
    let out = here.join(&options.out);
    ensure!(
        out.parent() == Some(&sh.current_dir().join("docs/benchmarks")),
        "a record must be in docs/benchmarks, not {}",
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

fn merge(options: &Options, runs: Vec<Results>, tests: Vec<TestCount>) -> Result<Record> {
    let fact = |name: &str, given: &Option<String>, of: fn(&Results) -> Option<String>| -> Result<String> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let mut said = BTreeSet::new();
        for run in &runs {
            let value =
                of(run).with_context(|| format!("a file does not contain `{name}`: give --{name}"))?;
            said.insert(value);
        }
        ensure!(said.len() <= 1, "the files disagree on `{name}` ({said:?}): give --{name}");
        said.pop_first().with_context(|| format!("no file contains `{name}`: give --{name}"))
    };
    for run in &runs {
        ensure!(run.failures.is_empty(), "a file lacks what failed: {}", run.failures.join("; "));
    }
    let choices = of_all_runs(&runs, |run| &run.choices);
    let rejections = of_all_runs(&runs, |run| &run.rejections);
    let break_points = of_all_runs(&runs, |run| &run.break_points);
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
        break_points,
        tests,
        notes: options.notes.clone(),
    })
}

/// Returns the items of all runs, sorted and without duplicates.
fn of_all_runs<T: Clone + Ord>(runs: &[Results], said: fn(&Results) -> &Vec<T>) -> Vec<T> {
    runs.iter().flat_map(said).cloned().collect::<BTreeSet<T>>().into_iter().collect()
}

/// Returns the rows of all runs. A row that a later run measured again is kept as `id#2`, to show whether runs agree.
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
    ensure!(row.verified || row.bytes == 0, "row `{}` moved bytes that were not verified", row.id);
    Ok(row)
}

fn record_row(row: ResultRow, run: usize) -> Row {
    let ResultRow { id, path, method, value, unit, reference, reference_value, own_reference, .. } = row;
    let ResultRow { ratio, goal, met, p10, p50, p90, simulated, .. } = row;
    let id = if run == 1 { id } else { format!("{id}#{run}") };
    let (p10, p50, p90) = (Some(p10), Some(p50), Some(p90));
    Row {
        id,
        path,
        method,
        value,
        unit,
        reference,
        reference_value,
        own_reference,
        ratio,
        goal,
        met,
        p10,
        p50,
        p90,
        simulated,
    }
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
    fn merged_record_is_valid_and_round_trips() {
        let record = sample();
        record.validate().unwrap();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        assert!(text.contains("\"simulated\":true"));
        // What a row was measured beside is in its path.
        assert_eq!(record.rows[0].path, crate::bench::results::sample().rows[0].path);
    }

    #[test]
    fn rows_of_a_second_run_are_kept() {
        let rows =
            merge_rows(vec![crate::bench::results::sample(), crate::bench::results::sample()]).unwrap();
        assert_eq!(rows.len(), 4);
        assert!(rows[2].id.ends_with("#2"));
    }

    #[test]
    fn choices_are_kept_once_unless_runs_differ() {
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
    fn unverified_bytes_are_refused() {
        let mut run = crate::bench::results::sample();
        run.rows[0].verified = false;
        assert!(merge_rows(vec![run]).unwrap_err().to_string().contains("not verified"));
    }

    #[test]
    fn run_of_which_a_part_failed_is_refused() {
        let mut run = crate::bench::results::sample();
        run.failures.push("many, up: out of memory".to_owned());
        let error = merge(&options(), vec![run], Vec::new()).unwrap_err().to_string();
        assert!(error.contains("many, up: out of memory"), "{error}");
    }

    #[test]
    fn files_that_disagree_need_an_option() {
        let mut other = crate::bench::results::sample();
        other.hardware = "another".to_owned();
        let runs = vec![crate::bench::results::sample(), other];
        let mut options = options();
        let error = merge(&options, runs.clone(), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("--hardware"), "{error}");
        options.hardware = Some("two machines".to_owned());
        assert_eq!(merge(&options, runs, Vec::new()).unwrap().hardware, "two machines");
    }
}
