//! Checks that hold for every run of the benchmark on any machine, whatever it measured.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use super::results::{ResultRow, Results};

/// Prefix of the ids of rows that try every method on a path.
const METHODS: &str = "methods/";
/// Paths on which an unrestricted run has such rows.
const PATHS: [&str; 7] = [
    "cpu.pinned-to-cuda:0.device",
    "cuda:0.device-to-cpu.pinned",
    "cpu.pageable-to-cuda:0.device",
    "cuda:0.device-to-cpu.pageable",
    "cpu.mapped-to-cuda:0.device",
    "cuda:0.device-to-cpu.mapped",
    "cuda:0.device-to-cuda:0.device",
];

/// Checks a run. `is_whole` says that no argument restricted it to some rows.
///
/// # Errors
/// Lists every fault: bytes that were not compared, values that are not finite, rows of the software driver that are not
/// marked, methods that neither ran nor were rejected with a reason, and missing rows.
pub(crate) fn check(results: &Results, is_whole: bool) -> Result<()> {
    let mut wrong = Vec::new();
    let mut ids = BTreeSet::new();
    for row in &results.rows {
        check_row(results, row, &mut wrong);
        if !ids.insert(row.id.as_str()) {
            wrong.push(format!("{} appears twice", row.id));
        }
    }
    if is_whole {
        let has = |path: &str| ids.iter().any(|id| id.starts_with(&format!("{METHODS}{path}/")));
        wrong.extend(
            PATHS.iter().filter(|path| !has(path)).map(|path| format!("no method has rows on {path}")),
        );
    }
    for choice in &results.choices {
        let id = format!("{METHODS}{}/{}/{}", choice.path, choice.method, choice.bytes);
        if !ids.contains(id.as_str()) {
            wrong.push(format!(
                "{} was chosen for {} bytes {} and has no row",
                choice.method, choice.bytes, choice.path
            ));
        }
    }
    // Where a method works, so does automatic choice.
    let points: BTreeSet<_> = ids.iter().filter_map(|id| point(id)).collect();
    let chosen: BTreeSet<_> = results.choices.iter().map(|it| (it.path.as_str(), it.bytes)).collect();
    wrong.extend(points.difference(&chosen).map(|(path, bytes)| {
        format!("no method was chosen for {bytes} bytes {path}, for which methods have rows")
    }));
    for rejection in &results.rejections {
        let id = format!("{METHODS}{}/{}/{}", rejection.path, rejection.method, rejection.bytes);
        if rejection.reason.is_empty() || ids.contains(id.as_str()) {
            wrong.push(format!("{id} was rejected without a reason, or rejected and measured"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{} faults in the results:\n  {}", wrong.len(), wrong.join("\n  "))
}

/// Returns path and bytes of a row of one method.
fn point(id: &str) -> Option<(&str, u64)> {
    let (path, rest) = id.strip_prefix(METHODS)?.split_once('/')?;
    Some((path, rest.split_once('/')?.1.parse().ok()?))
}

fn check_row(results: &Results, row: &ResultRow, wrong: &mut Vec<String>) {
    let ResultRow { id, value, p10, p50, p90, .. } = row;
    if row.bytes > 0 && !row.verified {
        wrong.push(format!("{id}: its bytes were not compared"));
    }
    if [value, p10, p50, p90].iter().any(|figure| !figure.is_finite() || **figure < 0.0) {
        wrong.push(format!("{id}: {value} ({p10}, {p50}, {p90}) is not a measurement"));
    }
    // Percentiles may descend: those of a rate are computed from times.
    let ordered = [[p10, p50, p90], [p90, p50, p10]];
    if !ordered.iter().any(|figures| figures.is_sorted()) {
        wrong.push(format!("{id}: {p50} is not between {p10} and {p90}"));
    }
    if id.contains("cuda:") && row.simulated != results.simulated {
        wrong.push(format!("{id}: simulated is {}, but {} for the run", row.simulated, results.simulated));
    }
    if row.simulated && row.met.is_some() {
        wrong.push(format!("{id}: a simulated row must have no goal"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::{Choice, Rejection, sample};

    /// Returns the fault reported after `change` to correct results.
    fn found(change: impl FnOnce(&mut Results)) -> String {
        let mut results = sample();
        results.rows.iter_mut().for_each(|row| (row.simulated, row.met) = (true, None));
        results.simulated = true;
        results.choices.clear();
        check(&results, false).unwrap();
        change(&mut results);
        check(&results, false).unwrap_err().to_string()
    }

    #[test]
    fn each_fault_of_a_run_is_reported() {
        assert!(found(|results| results.rows[0].verified = false).contains("were not compared"));
        assert!(found(|results| results.rows[0].p50 = f64::NAN).contains("not a measurement"));
        assert!(found(|results| results.rows[0].p50 = results.rows[0].p90 * 2.0).contains("is not between"));
        assert!(found(|results| results.rows[0].simulated = false).contains("simulated is false"));
        assert!(found(|results| results.rows[0].met = Some(true)).contains("must have no goal"));
        assert!(found(|results| results.rows.push(results.rows[0].clone())).contains("appears twice"));
        let [path, method] = ["p", "DirectCopy"].map(str::to_owned);
        let choice = Choice { path: path.clone(), bytes: 1, method: method.clone() };
        assert!(found(|results| results.choices.push(choice)).contains("has no row"));
        let rejection = Rejection { path, bytes: 1, method, reason: String::new() };
        assert!(found(|results| results.rejections.push(rejection)).contains("without a reason"));
    }

    #[test]
    fn method_that_was_measured_without_a_choice_is_reported() {
        let mut results = crate::bench::results::hardware_sample();
        check(&results, false).unwrap();
        results.choices.retain(|choice| choice.bytes > 4096);
        let error = check(&results, false).unwrap_err().to_string();
        assert!(error.contains("no method was chosen for 4096 bytes cpu.pageable"), "{error}");
    }

    #[test]
    fn whole_run_without_a_path_is_reported() {
        let error = check(&sample(), true).unwrap_err().to_string();
        assert!(error.contains("no method has rows on cuda:0.device-to-cpu.pageable"), "{error}");
    }
}
