//! What is promised of speed on a device, next to programs written by hand: one table of goals met and missed.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::{
    format::number,
    results::{ResultRow, Results},
};

/// The benchmark's arguments for each run. One that misses a goal is repeated.
pub(super) const RUNS: [&[&str]; 7] = [
    &["--only", "cuda"],
    &["--only", "choice"],
    &["--only", "many"],
    &["--only", "beside"],
    &["--only", "load"],
    &["--only", "strided"],
    &["--only", "scaling", "--parts", "urgent,downloads,planning,staged transfers,profiling,large copies"],
];

/// Returns the rows with goals. If one was missed, it measures again, and what is measured twice and not missed twice counts as met.
///
/// # Errors
/// Those of `measure`; if no row has a goal.
pub(super) fn confirmed(mut measure: impl FnMut() -> Result<Results>) -> Result<Vec<ResultRow>> {
    let mut with_goals = || -> Result<Vec<ResultRow>> {
        let rows: Vec<_> = measure()?.rows.into_iter().filter(|row| row.met.is_some()).collect();
        ensure!(!rows.is_empty(), "no row has a goal, which only rows of a device have");
        Ok(rows)
    };
    let first = with_goals()?;
    if !first.iter().any(is_missed) {
        return Ok(first);
    }
    let mut second = with_goals()?;
    for row in &mut second {
        row.met =
            Some(!(is_missed(row) && first.iter().any(|before| before.id == row.id && is_missed(before))));
    }
    let is_gone = |row: &ResultRow| second.iter().all(|again| again.id != row.id);
    let gone: Vec<_> = first.into_iter().filter(|row| is_missed(row) && is_gone(row)).collect();
    second.extend(gone);
    Ok(second)
}

pub(super) fn is_missed(row: &ResultRow) -> bool {
    row.met == Some(false)
}

/// Returns a line for each row and one that counts them.
pub(super) fn table(rows: &[ResultRow]) -> String {
    let mut out = String::new();
    let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
    for row in rows {
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let outcome = if is_missed(row) { "MISSED" } else { "met" };
        let _infallible = writeln!(
            out,
            "{:width$}  {:>9} {:8}  beside {:>9}  ratio {:>7}  {outcome:6}  {}",
            row.id,
            number(row.value),
            row.unit,
            optional(row.reference_value),
            optional(row.ratio),
            row.goal.as_deref().unwrap_or_default(),
        );
    }
    let met = rows.iter().filter(|row| !is_missed(row)).count();
    let _infallible = writeln!(out, "{met} of {} goals met", rows.len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::sample;

    fn of_hardware(met: &[bool]) -> Results {
        let mut results = sample();
        let row = results.rows.remove(0);
        results.simulated = false;
        let row = |(index, met): (usize, &bool)| ResultRow {
            id: format!("row/{index}"),
            simulated: false,
            met: Some(*met),
            ..row.clone()
        };
        results.rows = met.iter().enumerate().map(row).collect();
        results
    }

    #[test]
    fn goal_counts_as_missed_if_it_is_missed_twice() {
        let mut runs = [of_hardware(&[false, false, true]), of_hardware(&[true, false, false])].into_iter();
        let rows = confirmed(|| Ok(runs.next().unwrap())).unwrap();
        assert_eq!(rows.iter().map(is_missed).collect::<Vec<_>>(), [false, true, false]);
        let table = table(&rows);
        assert!(table.contains("MISSED") && table.contains("2 of 3 goals met"), "{table}");
    }

    #[test]
    fn row_missed_first_and_absent_then_stays_missed() {
        let mut runs = [of_hardware(&[true, true, false]), of_hardware(&[true, true])].into_iter();
        let rows = confirmed(|| Ok(runs.next().unwrap())).unwrap();
        assert_eq!(rows.iter().map(is_missed).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn run_that_misses_nothing_is_not_repeated() {
        let mut runs = [of_hardware(&[true, true])].into_iter();
        assert!(!confirmed(|| Ok(runs.next().unwrap())).unwrap().iter().any(is_missed));
    }

    #[test]
    fn run_without_goals_is_refused() {
        let mut results = sample();
        results.rows.iter_mut().for_each(|row| row.met = None);
        let error = confirmed(|| Ok(results.clone())).unwrap_err();
        assert!(error.to_string().contains("only rows of a device"), "{error}");
    }
}
