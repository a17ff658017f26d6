//! Reads tests.json, which benches/on_gpu.sh writes after running the bundled tests.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::TestCount;

/// The file. Its other fields are for people.
#[derive(Deserialize)]
struct TestRun {
    driver: String,
    binaries: Vec<Binary>,
    /// Programs that the machine cannot run.
    #[serde(default)]
    left_out: Vec<LeftOut>,
}

#[derive(Deserialize)]
struct Binary {
    name: String,
    status: i32,
    finished: bool,
    executed: u64,
    skipped: u64,
    failed: u64,
    ignored: u64,
    skip_reasons: Vec<String>,
}

#[derive(Deserialize)]
struct LeftOut {
    name: String,
    reason: String,
}

/// Returns the counts of each program, then those not run.
///
/// Fails for a run that is no evidence: a failure, a skip without a reason, a program that did not finish, or the software
/// driver.
pub(crate) fn read(path: &Path) -> Result<Vec<TestCount>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is not evidence for a record", path.display()))
}

fn parse(text: &str) -> Result<Vec<TestCount>> {
    let run: TestRun = serde_json::from_str(text)?;
    ensure!(run.driver == "real", "the driver was `{}`, not the machine's", run.driver);
    ensure!(!run.binaries.is_empty(), "no program was run");
    let mut counts = Vec::new();
    for Binary { name, status, finished, executed, skipped, failed, ignored, skip_reasons } in run.binaries {
        ensure!(finished, "{name} did not finish (status {status})");
        ensure!(failed == 0, "{failed} tests of {name} failed");
        ensure!(status == 0, "{name} ended with status {status}");
        ensure!(ignored == 0, "{ignored} tests of {name} were ignored, without a reason");
        let reasons = skip_reasons.iter().filter(|reason| !reason.trim().is_empty()).count() as u64;
        ensure!(reasons >= skipped, "{skipped} tests of {name} were skipped, {reasons} with a reason");
        counts.push(TestCount { binary: name, executed, skipped, failed, skip_reasons });
    }
    for LeftOut { name, reason } in run.left_out {
        ensure!(!reason.trim().is_empty(), "{name} was left out without a reason");
        counts.push(TestCount { binary: name, skip_reasons: vec![reason], ..TestCount::default() });
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"driver": "real", "total": {"executed": 11},
        "binaries": [{"name": "transload--it", "status": 0, "finished": true, "seconds": 3, "executed": 11,
            "passed": 11, "skipped": 1, "failed": 0, "ignored": 0, "skip_reasons": ["needs 2 devices, this machine has 1"],
            "failures": []}],
        "left_out": [{"name": "transload--peers", "reason": "needs 2 devices, this machine has 1"}]}"#;

    #[test]
    fn script_output_is_read_with_its_reasons() {
        let counts = parse(RUN).unwrap();
        assert_eq!((counts[0].executed, counts[0].skipped, counts[0].failed), (11, 1, 0));
        assert_eq!(counts[1].binary, "transload--peers");
        assert_eq!(counts[1].skip_reasons, ["needs 2 devices, this machine has 1"]);
    }

    #[test]
    fn run_without_evidence_is_refused() {
        for (was, is, said) in [
            ("\"failed\": 0", "\"failed\": 1", "failed"),
            ("\"skipped\": 1", "\"skipped\": 2", "2 tests of transload--it were skipped, 1 with a reason"),
            ("[\"needs 2 devices, this machine has 1\"]", "[\" \"]", "0 with a reason"),
            ("\"ignored\": 0", "\"ignored\": 1", "ignored"),
            ("\"finished\": true", "\"finished\": false", "did not finish"),
            ("\"status\": 0", "\"status\": 124", "status 124"),
            ("\"real\"", "\"simulated\"", "simulated"),
            ("\"reason\": \"needs 2 devices, this machine has 1\"", "\"reason\": \"\"", "left out"),
        ] {
            assert!(RUN.contains(was), "{was}");
            let error = parse(&RUN.replace(was, is)).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
