//! What is promised of speed on a device, next to programs written by hand: one table of goals met and missed.

use std::{collections::BTreeSet, fmt::Write as _};

use anyhow::{Result, ensure};

use super::{
    format::number,
    results::{ResultRow, Results},
};

/// The benchmark's arguments for each run. One that misses a goal is repeated.
pub(super) const RUNS: [&[&str]; 13] = [
    &["--only", "cuda"],
    &["--only", "wgpu"],
    &["--only", "choice"],
    &["--only", "many"],
    &["--only", "beside"],
    &["--only", "load"],
    &["--only", "strided"],
    &["--only", "cast"],
    &[
        "--only",
        "scaling",
        PARTS,
        "host to host,urgent,downloads,planning,staged transfers,profiling,advice,large copies,PyTorch",
    ],
    &["--only", "scaling", PARTS, "confined", KEPT_TO, "2"],
    &["--only", "scaling", PARTS, "confined", KEPT_TO, "8"],
    &["--only", "choice", KEPT_TO, "2"],
    &["--only", "choice", KEPT_TO, "8"],
];
/// The benchmark's option for some parts only.
const PARTS: &str = "--parts";
/// The benchmark's option for fewer processors than there are.
pub(super) const KEPT_TO: &str = "--processors";

/// Returns whether a run is kept to no more processors than there are.
pub(super) fn can_run(arguments: &[&str], processors: usize) -> bool {
    let kept_to = arguments.iter().skip_while(|argument| **argument != KEPT_TO).nth(1);
    let kept_to = kept_to.and_then(|count| count.parse().ok());
    kept_to.is_none_or(|count: usize| cfg!(target_os = "linux") && count <= processors)
}

/// Returns the arguments of a run that measures some parts only, by their names.
pub(super) fn limited(arguments: &[&str], parts: Option<&[&str]>) -> Vec<String> {
    let mut limited: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let Some(parts) = parts else { return limited };
    let exact = parts.iter().map(|part| format!("={part}")).collect::<Vec<_>>().join(",");
    match limited.iter().position(|argument| argument == PARTS).and_then(|at| limited.get_mut(at + 1)) {
        Some(of_run) => *of_run = exact,
        None => limited.extend([PARTS.to_owned(), exact]),
    }
    limited
}

/// Returns whether a run measures no other part, so that the rest counts without it.
pub(super) fn is_apart(arguments: &[&str]) -> bool {
    arguments.contains(&KEPT_TO)
}

/// Returns the rows with goals. The parts of those that were [missed](is_missed) are measured again, or all if one is of no part, and of a row
/// that is not missed twice the better run counts.
///
/// # Errors
/// Those of `measure`, which is given the parts to measure, or `None` for all; if no row has a goal.
pub(super) fn confirmed(
    mut measure: impl FnMut(Option<&[&str]>) -> Result<Results>,
) -> Result<Vec<ResultRow>> {
    let mut with_goals = |parts: Option<&[&str]>| -> Result<Vec<ResultRow>> {
        Ok(measure(parts)?.rows.into_iter().filter(|row| row.met.is_some()).collect())
    };
    let first = with_goals(None)?;
    ensure!(!first.is_empty(), "no row has a goal, which only rows of a device have");
    let missed: BTreeSet<&str> =
        first.iter().filter(|row| is_missed(row)).map(|row| row.part.as_str()).collect();
    if missed.is_empty() {
        return Ok(first);
    }
    let parts: Vec<&str> = missed.iter().copied().collect();
    let mut second = with_goals((!missed.contains("")).then_some(&parts))?;
    for row in &mut second {
        // Of the two the better one counts.
        if is_missed(row)
            && let Some(before) = first.iter().find(|before| before.id == row.id && !is_missed(before))
        {
            row.clone_from(before);
        }
    }
    let is_gone = |row: &ResultRow| second.iter().all(|again| again.id != row.id);
    let gone: Vec<_> = first.iter().filter(|row| is_gone(row)).cloned().collect();
    second.extend(gone);
    Ok(second)
}

/// Returns whether a row misses its goal with all of its spread: from its 10th to its 90th percentile.
pub(super) fn is_missed(row: &ResultRow) -> bool {
    let ends = [row.p10, row.p90].map(|value| {
        let ratio = row.ratio.map(|ratio| if row.value == 0.0 { ratio } else { ratio / row.value * value });
        beyond(&ResultRow { value, ratio, ..row.clone() })
    });
    row.met == Some(false) && ends.iter().all(|end| *end >= 1.0)
}

/// Returns by what factor a row misses its goal, or the farthest of several.
pub(super) fn beyond(row: &ResultRow) -> f64 {
    let goals = row.goal.as_deref().unwrap_or_default().split(" and ");
    goals.map(|goal| beyond_one(row, goal)).max_by(f64::total_cmp).unwrap_or(1.0)
}

/// Returns the same of one goal; 1 if its text has another form than those of the benchmark.
fn beyond_one(row: &ResultRow, goal: &str) -> f64 {
    let Some((kind, rest)) = goal.split_once("= ") else { return 1.0 };
    let plus = rest.strip_prefix("reference + ");
    let first = plus.unwrap_or(rest).split_whitespace().next();
    let Some(limit) = first.and_then(|number| number.parse::<f64>().ok()) else { return 1.0 };
    let value = match (plus, kind.split_once(' ')) {
        (Some(_), _) => row.value / (row.reference_value.unwrap_or_default() + limit),
        (None, Some(_)) => row.ratio.unwrap_or(limit) / limit,
        (None, None) => row.value / limit,
    };
    if kind.ends_with('>') { 1.0 / value } else { value }
}

/// Returns a line for each row, one for each promise that is skipped or has no row, and one that counts them.
pub(super) fn table(rows: &[ResultRow], absent: &[&str], skipped: &[(&str, String)]) -> String {
    let mut out = String::new();
    let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
    for row in rows {
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let outcome = match row.met {
            Some(false) if is_missed(row) => "MISSED",
            // The median misses it, not all of the spread.
            Some(false) => "near",
            _ => "met",
        };
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
    for (id, reason) in skipped {
        let _infallible = writeln!(out, "{id:width$}  skipped: {reason}");
    }
    for id in absent {
        let _infallible = writeln!(out, "{id:width$}  MISSED: no row has this goal");
    }
    let missed = rows.iter().filter(|row| is_missed(row)).count() + absent.len();
    let met = rows.iter().filter(|row| row.met == Some(true)).count();
    let all = rows.len() + absent.len();
    let _infallible = writeln!(
        out,
        "{met} of {all} goals met; {} near, which the median misses and the spread from the 10th to the 90th percentile reaches; {missed} missed",
        all - met - missed
    );
    out
}

/// Returns rows of hardware with outcomes.
#[cfg(test)]
pub(super) fn of_hardware(met: &[bool]) -> Results {
    let mut results = super::results::sample();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::sample;

    #[test]
    fn goal_counts_as_missed_if_it_is_missed_twice() {
        let mut runs = [of_hardware(&[false, false, true]), of_hardware(&[true, false, false])].into_iter();
        let rows = confirmed(|_| Ok(runs.next().unwrap())).unwrap();
        assert_eq!(rows.iter().map(is_missed).collect::<Vec<_>>(), [false, true, false]);
        let skipped = [("load/two", "there is one device".to_owned())];
        let table = table(&rows, &["load/one"], &skipped);
        assert!(table.contains("load/two  skipped: there is one device"), "{table}");
        assert!(table.contains("MISSED") && table.contains("2 of 4 goals met; 0 near"), "{table}");
        assert!(table.contains("load/one  MISSED: no row"), "{table}");
    }

    #[test]
    fn goal_within_the_spread_is_near_and_fails_nothing() {
        let mut results = of_hardware(&[false, false]);
        for (row, p90) in results.rows.iter_mut().zip([4.1, 3.9]) {
            row.goal = Some(">= 4 GB/s".to_owned());
            (row.value, row.p10, row.p90, row.ratio) = (3.5, 3.0, p90, None);
        }
        let rows = confirmed(|_| Ok(results.clone())).unwrap();
        assert_eq!(rows.iter().map(is_missed).collect::<Vec<_>>(), [false, true]);
        let table = table(&rows, &[], &[]);
        assert!(table.contains("near ") && table.contains("0 of 2 goals met; 1 near"), "{table}");
        // Of a ratio, too: the reference's median is 2.
        let row = &mut results.rows[0];
        (row.goal, row.ratio) = (Some("rate >= 2 x reference".to_owned()), Some(1.75));
        assert!(!is_missed(row));
        row.p90 = 3.9;
        assert!(is_missed(row));
    }

    #[test]
    fn distance_from_a_goal_is_read_from_its_text() {
        let mut row = sample().rows.remove(0);
        (row.value, row.reference_value, row.ratio) = (240.0, Some(100.0), Some(2.4));
        for (goal, factor) in [
            ("time <= 1.2 x reference", 2.0),
            ("rate >= 4.8 x reference", 2.0),
            (">= 480 GB/s", 2.0),
            ("<= 120 us", 2.0),
            ("<= reference + 20 us", 2.0),
            ("time <= 3 x reference and <= 120 us", 2.0),
            ("as fast as possible", 1.0),
        ] {
            row.goal = Some(goal.to_owned());
            assert!((beyond(&row) - factor).abs() < 1e-9, "{goal}: {}", beyond(&row));
        }
    }

    #[test]
    fn row_absent_from_the_second_run_stays_as_it_was() {
        let mut runs = [of_hardware(&[true, true, false, true]), of_hardware(&[true, true])].into_iter();
        let rows = confirmed(|_| Ok(runs.next().unwrap())).unwrap();
        assert_eq!(rows.iter().map(is_missed).collect::<Vec<_>>(), [false, false, true, false]);
    }

    #[test]
    fn parts_that_missed_are_measured_again() {
        let mut results = of_hardware(&[false, true, false]);
        for (row, part) in results.rows.iter_mut().zip(["up", "down", "both ways"]) {
            part.clone_into(&mut row.part);
        }
        let mut asked = Vec::new();
        let mut measured = |parts: Option<&[&str]>| {
            asked.push(parts.unwrap_or_default().join(","));
            let mut results = results.clone();
            results.rows.retain(|row| parts.is_none_or(|parts| parts.contains(&row.part.as_str())));
            Ok(results)
        };
        let rows = confirmed(&mut measured).unwrap();
        assert_eq!(
            rows.iter().map(|row| (row.part.as_str(), is_missed(row))).collect::<Vec<_>>(),
            [("up", true), ("both ways", true), ("down", false)]
        );
        assert_eq!(asked, ["", "both ways,up"]);
        let of = |run: &[&str]| limited(run, Some(&["both ways", "up"])).join(" ");
        assert_eq!(of(&["--only", "many"]), "--only many --parts =both ways,=up");
        assert_eq!(of(&["--parts", "a,b", KEPT_TO, "2"]), format!("--parts =both ways,=up {KEPT_TO} 2"));
        // Of no part.
        results.rows[0].part.clear();
        let mut asked = Vec::new();
        confirmed(|parts| {
            asked.push(parts.is_none());
            Ok(results.clone())
        })
        .unwrap();
        assert_eq!(asked, [true, true]);
    }

    #[test]
    fn run_that_misses_nothing_is_not_repeated() {
        let mut runs = [of_hardware(&[true, true])].into_iter();
        assert!(!confirmed(|_| Ok(runs.next().unwrap())).unwrap().iter().any(is_missed));
    }

    #[test]
    fn run_without_goals_is_refused() {
        let mut results = sample();
        results.rows.iter_mut().for_each(|row| row.met = None);
        let error = confirmed(|_| Ok(results.clone())).unwrap_err();
        assert!(error.to_string().contains("only rows of a device"), "{error}");
    }
}
