//! The benchmark's results file, one for each run.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::record::{Record, Row};

/// Version of the file's schema.
const SCHEMA: u32 = 1;

/// Results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) schema: u32,
    /// Whether any row comes from the software driver.
    pub(crate) simulated: bool,
    pub(crate) hardware: String,
    pub(crate) driver: Option<String>,
    pub(crate) cuda: Option<String>,
    pub(crate) cpu: String,
    pub(crate) date: String,
    pub(crate) commit: Option<String>,
    pub(crate) command: String,
    pub(crate) rows: Vec<ResultRow>,
    /// Methods that were chosen automatically, by path and size.
    #[serde(default)]
    pub(crate) choices: Vec<Choice>,
    /// Methods that were rejected, with the reason.
    #[serde(default)]
    pub(crate) rejections: Vec<Rejection>,
    /// Sizes from which another method is chosen. Absent from files of earlier versions.
    #[serde(default)]
    pub(crate) break_points: Vec<BreakPoint>,
    /// Parts and transfers that failed, whose rows are missing. Absent from files of earlier versions.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
}

/// The method chosen if all are allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Choice {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) method: String,
}

/// A rejected method.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rejection {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) method: String,
    pub(crate) reason: String,
}

/// The smallest size from which another method is chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BreakPoint {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResultRow {
    pub(crate) id: String,
    /// Absent if it is of none, and from files of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    pub(crate) path: String,
    pub(crate) method: String,
    pub(crate) bytes: u64,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) p10: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) reference: Option<String>,
    pub(crate) reference_value: Option<f64>,
    /// Whether the reference is the library itself. Absent from files of earlier versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) own_reference: bool,
    pub(crate) ratio: Option<f64>,
    pub(crate) goal: Option<String>,
    pub(crate) met: Option<bool>,
    pub(crate) simulated: bool,
    /// Whether the destination's bytes were compared with the source's.
    pub(crate) verified: bool,
}

/// Reads rows of another program on the same machine: one JSON object a line, as in pytorch.json of benches/on_gpu.sh.
/// Objects without an id are headers.
pub(crate) fn read_lines(path: &Path) -> Result<Vec<ResultRow>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse_lines(&text).with_context(|| format!("{} is not a file of rows", path.display()))
}

fn parse_lines(text: &str) -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let value: serde_json::Value = serde_json::from_str(line)?;
        if value.get("id").is_some() {
            rows.push(serde_json::from_value(value)?);
        }
    }
    ensure!(!rows.is_empty(), "there are no rows");
    Ok(rows)
}

impl Results {
    /// Reads a results file or a committed record.
    pub(crate) fn read_or_record(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        match serde_json::from_str::<Record>(&text) {
            Ok(record) => Ok(Self::from(record)),
            Err(no_record) => Self::parse(&text).with_context(|| {
                format!("{} is neither a results file nor a record ({no_record})", path.display())
            }),
        }
    }

    /// Reads and validates a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a results file", path.display()))
    }

    /// Joins runs on one machine. Of a row that several measured the last one counts, with the outcome that `confirmed` gives its goal.
    pub(crate) fn joined(runs: Vec<Self>, confirmed: &[ResultRow]) -> Option<Self> {
        let joined = runs.into_iter().reduce(|mut all, run| {
            all.rows.retain(|row| run.rows.iter().all(|again| again.id != row.id));
            let is_new = |path: &str, bytes: u64| {
                !run.choices.iter().any(|again| again.path == path && again.bytes == bytes)
            };
            all.choices.retain(|choice| is_new(&choice.path, choice.bytes));
            all.rejections.retain(|rejection| is_new(&rejection.path, rejection.bytes));
            all.break_points.retain(|point| run.break_points.iter().all(|again| again.path != point.path));
            all.rows.extend(run.rows);
            all.choices.extend(run.choices);
            all.rejections.extend(run.rejections);
            all.break_points.extend(run.break_points);
            all.failures.extend(run.failures);
            all.simulated |= run.simulated;
            all
        });
        joined.map(|mut all| {
            for row in &mut all.rows {
                if let Some(known) = confirmed.iter().find(|known| known.id == row.id) {
                    row.clone_from(known);
                }
            }
            all
        })
    }

    /// Returns what failed, and the rows whose bytes were not compared or were wrong.
    pub(crate) fn failed(&self) -> Vec<String> {
        let unverified = self.rows.iter().filter(|row| row.bytes > 0 && !row.verified);
        let unverified = unverified.map(|row| format!("{}: its bytes were wrong or not compared", row.id));
        self.failures.iter().cloned().chain(unverified).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        let results: Self = serde_json::from_str(text)?;
        ensure!(results.schema == SCHEMA, "schema {} is not {SCHEMA}", results.schema);
        ensure!(!results.rows.is_empty(), "there are no rows");
        let any = results.rows.iter().any(|row| row.simulated);
        ensure!(results.simulated == any, "`simulated` is {}, but the rows say {any}", results.simulated);
        Ok(results)
    }
}

impl From<Record> for Results {
    /// A record has no bytes of a row, and no path and method of one of an earlier version, except in its id; unverified rows are refused when it is made.
    fn from(record: Record) -> Self {
        let row = |row: Row| ResultRow {
            id: row.id,
            part: String::new(),
            path: row.path,
            method: row.method,
            bytes: 0,
            value: row.value,
            unit: row.unit,
            p10: row.p10.unwrap_or(row.value),
            p50: row.p50.unwrap_or(row.value),
            p90: row.p90.unwrap_or(row.value),
            reference: row.reference,
            reference_value: row.reference_value,
            own_reference: row.own_reference,
            ratio: row.ratio,
            goal: row.goal,
            met: row.met,
            simulated: row.simulated,
            verified: true,
        };
        Self {
            schema: SCHEMA,
            simulated: record.rows.iter().any(|row| row.simulated),
            hardware: record.hardware,
            driver: Some(record.driver),
            cuda: Some(record.cuda),
            cpu: record.cpu,
            date: record.date,
            commit: Some(record.commit),
            command: record.command,
            rows: record.rows.into_iter().map(row).collect(),
            choices: record.choices,
            rejections: record.rejections,
            break_points: record.break_points,
            failures: Vec::new(),
        }
    }
}

/// Returns a run on hardware: two methods of two sizes, of which the faster is chosen, and a copy with a met goal.
#[cfg(test)]
pub(crate) fn hardware_sample() -> Results {
    let path = "cpu.pageable-to-cuda:0.device";
    let mut results = sample();
    let like = results.rows.remove(0);
    let row = |id: &str, bytes: u64, value: f64, unit: &str| ResultRow {
        id: format!("{id}/{bytes}"),
        bytes,
        value,
        unit: unit.to_owned(),
        p10: value * 0.95,
        p50: value,
        p90: value * 1.05,
        reference: None,
        reference_value: None,
        own_reference: false,
        ratio: None,
        goal: None,
        met: None,
        simulated: false,
        ..like.clone()
    };
    let (direct, staged) = (format!("methods/{path}/DirectCopy"), format!("methods/{path}/HostStaged"));
    results.rows = vec![
        row(&direct, 4096, 8.0, "us"),
        row(&staged, 4096, 10.0, "us"),
        row(&direct, 1 << 20, 12.0, "GB/s"),
        row(&staged, 1 << 20, 18.0, "GB/s"),
        ResultRow {
            reference: Some("raw driver".to_owned()),
            reference_value: Some(12.0),
            ratio: Some(1.5),
            goal: Some("rate >= 1 x reference".to_owned()),
            met: Some(true),
            ..row(&format!("{path}/HostStaged"), 1 << 20, 18.0, "GB/s")
        },
    ];
    let choice = |bytes, method: &str| Choice { path: path.to_owned(), bytes, method: method.to_owned() };
    results.choices = vec![choice(4096, "DirectCopy"), choice(1 << 20, "HostStaged")];
    results.rejections[0].path = path.to_owned();
    results.simulated = false;
    results
}

#[cfg(test)]
pub(crate) fn sample() -> Results {
    let row = |bytes: u64, value: f64, simulated: bool| ResultRow {
        id: format!("cpu.pinned-to-cuda:0.device/DirectCopy/{bytes}"),
        part: String::new(),
        path: "cpu.pinned → cuda:0.device".to_owned(),
        method: "DirectCopy".to_owned(),
        bytes,
        value,
        unit: "GB/s".to_owned(),
        p10: value * 0.5,
        p50: value,
        p90: value * 2.0,
        reference: Some("raw".to_owned()),
        reference_value: Some(value * 2.0),
        own_reference: false,
        ratio: Some(0.5),
        goal: Some("≥ 0.97".to_owned()),
        met: Some(false),
        simulated,
        verified: true,
    };
    Results {
        schema: SCHEMA,
        simulated: true,
        hardware: "a <machine>".to_owned(),
        driver: Some("580.1".to_owned()),
        cuda: Some("13.0".to_owned()),
        cpu: "a processor".to_owned(),
        date: "2026-11-20".to_owned(),
        commit: Some("0eefb92".to_owned()),
        command: "transload-bench --quick".to_owned(),
        rows: vec![row(4096, 0.5, true), row(1 << 20, 38.0, true)],
        choices: vec![Choice {
            path: "cpu.pinned-to-cuda:0.device".to_owned(),
            bytes: 4096,
            method: "DirectCopy".to_owned(),
        }],
        rejections: vec![Rejection {
            path: "cpu.pinned-to-cuda:0.device".to_owned(),
            bytes: 4096,
            method: "PeerToPeer".to_owned(),
            reason: "one side is the host".to_owned(),
        }],
        break_points: Vec::new(),
        failures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_hides_simulated_rows_is_refused() {
        let mut results = sample();
        results.simulated = false;
        let error = Results::parse(&serde_json::to_string(&results).unwrap()).unwrap_err();
        assert!(error.to_string().contains("simulated"), "{error}");
    }

    #[test]
    fn file_round_trips() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(Results::parse(&text).unwrap().rows.len(), 2);
    }

    #[test]
    fn file_without_choices_is_read() {
        let mut value = serde_json::to_value(sample()).unwrap();
        for name in ["choices", "rejections", "break_points", "failures"] {
            value.as_object_mut().unwrap().remove(name).unwrap();
        }
        let results = Results::parse(&value.to_string()).unwrap();
        assert!(
            results.choices.is_empty() && results.rejections.is_empty() && results.break_points.is_empty()
        );
    }

    #[test]
    fn joined_runs_keep_the_last_of_a_row_and_confirmed_outcomes() {
        let (first, mut second) = (hardware_sample(), hardware_sample());
        second.rows.truncate(1);
        second.rows[0].value = 7.0;
        second.choices.truncate(1);
        let mut confirmed = first.rows.last().unwrap().clone();
        confirmed.met = Some(false);
        let joined = Results::joined(vec![first.clone(), second], &[confirmed]).unwrap();
        assert_eq!((joined.rows.len(), joined.choices.len()), (first.rows.len(), first.choices.len()));
        assert!(joined.rows.iter().any(|row| row.id == first.rows[0].id && row.value == 7.0));
        assert_eq!(joined.rows.iter().filter(|row| row.met == Some(false)).count(), 1);
    }

    #[test]
    fn record_is_read_as_results() {
        let record = crate::record::sample();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), serde_json::to_string(&record).unwrap()).unwrap();
        let results = Results::read_or_record(file.path()).unwrap();
        assert_eq!((results.rows.len(), results.simulated), (record.rows.len(), true));
        fs::write(file.path(), "{}").unwrap();
        assert!(Results::read_or_record(file.path()).unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn lines_with_an_id_are_rows_and_others_are_headers() {
        let row = serde_json::to_string(&sample().rows[0]).unwrap();
        let rows = parse_lines(&format!("{{\"what\": \"a header\"}}\n{row}\n")).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(parse_lines("{\"what\": \"a header\"}").is_err());
        assert!(parse_lines("{\"id\": \"half a row\"}").is_err());
    }

    #[test]
    fn other_schema_is_refused() {
        let text = serde_json::to_string(&sample()).unwrap().replace("\"schema\":1", "\"schema\":2");
        assert!(Results::parse(&text).unwrap_err().to_string().contains("schema 2"));
    }
}
