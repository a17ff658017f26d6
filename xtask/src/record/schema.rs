//! The schema of a committed record and its validation.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    bench::results::{BreakPoint, Choice, Rejection},
    date,
};

/// A committed record.
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
    /// Methods chosen automatically; several for one path and size if the runs differed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) choices: Vec<Choice>,
    /// Rejected methods with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rejections: Vec<Rejection>,
    /// Sizes from which another method is chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) break_points: Vec<BreakPoint>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tests: Vec<TestCount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

/// A row of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// Source and destination, or the group, and the method, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) path: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) method: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) reference: Option<String>,
    pub(crate) reference_value: Option<f64>,
    /// Whether the reference is the library itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) own_reference: bool,
    pub(crate) ratio: Option<f64>,
    pub(crate) goal: Option<String>,
    pub(crate) met: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p10: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p50: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p90: Option<f64>,
    /// Whether the software driver played the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) simulated: bool,
}

/// Counts of one test program on the record's machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestCount {
    pub(crate) binary: String,
    pub(crate) executed: u64,
    pub(crate) skipped: u64,
    pub(crate) failed: u64,
    /// Why tests were skipped, or why the program was not run.
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
        ensure!(self.executed > 0 || reasons > 0, "it executed nothing and gives no reason");
        Ok(())
    }
}

impl Record {
    /// Reads and validates a record.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        check_file_name(path)?;
        let record: Self =
            serde_json::from_str(&text).with_context(|| format!("{} is no record", path.display()))?;
        record.validate().with_context(|| format!("{} is not a valid record", path.display()))?;
        Ok(record)
    }

    /// Validates the contents.
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
            "`commit` is `{commit}`: it was measured with local changes; commit, and measure again"
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
                // A ratio may be the median of paired ratios, which differs slightly from the ratio of medians.
                let is_near = (ratio - expected).abs() <= 0.05 * expected.abs();
                ensure!(is_near, "`ratio` is {ratio}, but value over reference is {expected:.4}");
            }
            (None, _) => {}
        }
        Ok(())
    }
}

pub(super) fn check_file_name(path: &Path) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // DATE-HARDWARE-WHAT.json: ten bytes of date, then two more parts.
    let parts = name.get(10..).and_then(|rest| rest.strip_suffix(".json")).unwrap_or_default();
    let is_named =
        date::begins_with_date(&name) && parts.split('-').filter(|part| !part.is_empty()).count() >= 2;
    ensure!(is_named, "`{name}` is not named YYYY-MM-DD-HARDWARE-WHAT.json");
    Ok(())
}

#[cfg(test)]
#[path = "../../../benches/tests/it/schema.rs"]
mod published;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn committed_records_have_the_published_schema() {
        let none = Vec::<String>::new();
        assert_eq!(published::faults("record", &serde_json::to_value(sample()).unwrap()), none);
        let results = serde_json::to_value(crate::bench::results::sample()).unwrap();
        assert_eq!(published::faults("results", &results), none);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "json")) {
            let record = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            assert_eq!(published::faults("record", &record), none, "{}", file.display());
        }
    }

    #[test]
    fn invalid_record_names_the_fault() {
        type Spoil = fn(&mut Record);
        let broken: [(Spoil, &str); 10] = [
            (|record| record.date = "yesterday".to_owned(), "date"),
            (|record| record.commit = "HEAD".to_owned(), "commit"),
            (|record| record.commit += "-modified", "local changes"),
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
    fn record_is_named_by_date_hardware_and_subject() {
        assert!(check_file_name(Path::new("docs/benchmarks/2026-11-20-h200-copies.json")).is_ok());
        for name in
            ["h200-copies.json", "2026-11-20.json", "2026-11-20-h200.json", "2026-11-20-h200-copies.txt"]
        {
            assert!(check_file_name(Path::new(name)).is_err(), "{name}");
        }
    }
}
