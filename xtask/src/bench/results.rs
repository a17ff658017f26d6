//! The benchmark's results file, one for each run.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

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

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResultRow {
    pub(crate) id: String,
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
    /// Reads and validates a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a results file", path.display()))
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

#[cfg(test)]
pub(crate) fn sample() -> Results {
    let row = |bytes: u64, value: f64, simulated: bool| ResultRow {
        id: format!("cpu.pinned-to-cuda:0.device/DirectCopy/{bytes}"),
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
        for name in ["choices", "rejections"] {
            value.as_object_mut().unwrap().remove(name).unwrap();
        }
        let results = Results::parse(&value.to_string()).unwrap();
        assert!(results.choices.is_empty() && results.rejections.is_empty());
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
