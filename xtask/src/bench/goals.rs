//! What is promised of speed on a device, next to programs written by hand: one table of goals met and missed.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::{
    format::number,
    results::{ResultRow, Results},
};

/// The benchmark's arguments for each run. One that misses a goal is repeated.
pub(super) const RUNS: [&[&str]; 10] = [
    &["--only", "cuda"],
    &["--only", "wgpu"],
    &["--only", "choice"],
    &["--only", "many"],
    &["--only", "beside"],
    &["--only", "load"],
    &["--only", "strided"],
    &[
        "--only",
        "scaling",
        "--parts",
        "host to host,urgent,downloads,planning,staged transfers,profiling,advice,large copies,PyTorch",
    ],
    &["--only", "scaling", "--parts", "confined", KEPT_TO, "2"],
    &["--only", "scaling", "--parts", "confined", KEPT_TO, "8"],
];
/// The benchmark's option for fewer processors than there are.
const KEPT_TO: &str = "--processors";

/// Ids of rows that must have goals, or what they begin with, up to a `/`: one without a row is missed.
const EXPECTED: [&str; 131] = [
    "wait/cpu.pinned-to-cuda:0.device/",
    "await/cpu.pinned-to-cuda:0.device/",
    "allocations/cpu.pinned-to-cuda:0.device/",
    "wgpu/0/pageable-up/16777216/auto",
    "wgpu/0/pageable-up/67108864/auto",
    "wgpu/0/pageable-up/268435456/auto",
    "wgpu/0/pageable-up/1073741824/auto",
    "wgpu/0/pageable-down/16777216/auto",
    "wgpu/0/pageable-down/67108864/auto",
    "wgpu/0/pageable-down/268435456/auto",
    "wgpu/0/pageable-down/1073741824/auto",
    "wgpu/0/raw-up/",
    "wgpu/0/raw-down/",
    "wgpu/0/up/4096/copy",
    "wgpu/0/up/4096/shared-device",
    "wgpu/0/up/4096/foreign-device",
    "wgpu/0/pieces-1000/4096/copy-many",
    "wgpu/0/allocate/4096/allocate",
    "wgpu/0/cuda-copy/268435456/shared",
    "wgpu/0/from-cuda/16777216/auto",
    "wgpu/0/from-cuda/268435456/auto",
    "wgpu/0/to-cuda/16777216/auto",
    "wgpu/0/to-cuda/268435456/auto",
    "wgpu/0/hand-over/4096/in-order",
    "wgpu/0/hand-over-host/32/host",
    "choice/unfinished",
    "choice/regret/mean",
    "choice/regret/worst",
    "choice/lists/mean",
    "choice/lists/worst",
    "choice/long-lists/mean",
    "choice/long-lists/worst",
    "choice/busy/mean",
    "choice/busy/worst",
    "choice/loaded/mean",
    "choice/loaded/worst",
    "many/up-1000/4096/exclusive",
    "many/up-1000/4096/blocks",
    "many/up-10000/4096/exclusive",
    "many/up-10000/4096/blocks",
    "many/up-4096/32768/exclusive",
    "many/down-4096/32768/exclusive",
    "many/pageable-up-1000/4096/exclusive",
    "many/pageable-up-1000/65536/exclusive",
    "many/pageable-up-300/1048576/exclusive",
    "many/state-dict/up/",
    "many/state-dict/down/",
    "beside/4096/busy/copy-blocks",
    "beside/4096/slowdown/copy-blocks",
    "beside/4096/idle/exclusive",
    "beside/24576/busy/copy-blocks",
    "beside/24576/slowdown/copy-blocks",
    "beside/24576/idle/exclusive",
    "beside/131072/busy/copy-blocks",
    "beside/131072/slowdown/copy-blocks",
    "beside/131072/idle/exclusive",
    "beside/2097152/busy/copy-blocks",
    "beside/2097152/slowdown/copy-blocks",
    "beside/2097152/idle/exclusive",
    "load/one/first/load",
    "load/one/later/load",
    TWO_DEVICES,
    "load/fresh/ours/16777216/",
    "load/fresh/ours/268435456/",
    "load/fresh/callers/268435456/",
    "strided/up-4096/4096/",
    "strided/down-4096/4096/",
    "scaling/large/up/67108864/",
    "scaling/large/down/67108864/",
    "scaling/large/up/268435456/",
    "scaling/large/down/268435456/",
    "scaling/large/up/1073741824/",
    "scaling/large/down/1073741824/",
    "scaling/both-ways/268435456/",
    "scaling/by-hand/up/50331648/",
    "scaling/by-hand/down/50331648/",
    "scaling/by-hand/up/268435456/",
    "scaling/by-hand/down/268435456/",
    "scaling/pytorch/up/50331648/",
    "scaling/pytorch/down/50331648/",
    "scaling/pytorch/up/268435456/",
    "scaling/pytorch/down/268435456/",
    "scaling/confined-2/up/50331648/copy",
    "scaling/confined-2/down/50331648/copy",
    "scaling/confined-2/up/268435456/copy",
    "scaling/confined-2/down/268435456/copy",
    "scaling/confined-8/up/50331648/copy",
    "scaling/confined-8/down/50331648/copy",
    "scaling/confined-8/up/268435456/copy",
    "scaling/confined-8/down/268435456/copy",
    "scaling/short/65536/copy",
    "scaling/short/1048576/back-to-back",
    "scaling/short/1048576/after-pause",
    "scaling/short/3145728/back-to-back",
    "scaling/download/4096/wait",
    "scaling/planning/submit/",
    "scaling/urgent/pinned/1048576/beside-low",
    "scaling/urgent/pinned/1048576/beside-compute",
    "scaling/urgent/mapped/1048576/beside-low",
    "scaling/urgent/mapped/1048576/beside-compute",
    "scaling/host/64/wait",
    "scaling/host/4096/wait",
    "scaling/host/65536/wait",
    "scaling/host/1048576/wait",
    "scaling/host/4194304/wait",
    "scaling/host/16777216/wait",
    "scaling/host/67108864/wait",
    "scaling/host/268435456/wait",
    "scaling/host/1073741824/wait",
    "scaling/profiling/wait/default",
    "scaling/profiling/submit/default",
    "scaling/profiling/threads-8/wait/default",
    "wgpu/0/down/4096/copy",
    "wgpu/0/down/4096/shared-device",
    "wgpu/0/down/4096/foreign-device",
    "wgpu/0/pieces-1000/4096/odd-offsets",
    "wgpu/0/pieces-1000/4096/pageable",
    "wgpu/0/pieces-down-1000/4096/copy-many",
    "wgpu/0/pieces-down-1000/4096/odd-offsets",
    "wgpu/0/pieces-down-1000/4096/pageable",
    "wgpu/0/cuda-to-vulkan/268435456/handed-over",
    "scaling/profiling/threads-8/submit/default",
    "scaling/profiling/enqueue/default",
    "scaling/profiling/threads-8/enqueue/default",
    "scaling/profiling/copy-many/default",
    "scaling/profiling/threads-8/copy-many/default",
    "scaling/profiling/engines/agree/",
    "scaling/profiling/clock/off",
    "scaling/profiling/clock/stated",
    "scaling/advice/pin",
    "scaling/advice/lists",
];
const TWO_DEVICES: &str = "load/two/later/load";
/// What begins the ids of rows next to a program that may be absent: without it they have no goal and say why.
const BESIDE_OTHERS: &str = "scaling/pytorch/";

/// What begins the ids of rows on fewer processors than there are; their number follows.
const CONFINED: &str = "scaling/confined-";

/// Returns whether a run is kept to no more processors than there are.
pub(super) fn can_run(arguments: &[&str], processors: usize) -> bool {
    let kept_to = arguments.iter().skip_while(|argument| **argument != KEPT_TO).nth(1);
    let kept_to = kept_to.and_then(|count| count.parse().ok());
    kept_to.is_none_or(|count: usize| cfg!(target_os = "linux") && count <= processors)
}

/// Returns whether a run measures no other part, so that the rest counts without it.
pub(super) fn is_apart(arguments: &[&str]) -> bool {
    arguments.contains(&KEPT_TO)
}

/// Returns what is promised and cannot be measured on this machine of so many processors, each with the reason.
pub(super) fn skipped(results: &Results, processors: usize) -> Vec<(&'static str, String)> {
    let reason = |id: &'static str| {
        let confined = id.strip_prefix(CONFINED).and_then(|rest| rest.split_once('/'));
        if confined.is_some_and(|(count, _)| !can_run(&[KEPT_TO, count], processors)) {
            return Some((id, format!("{processors} processors can be used")));
        }
        if id == TWO_DEVICES && results.hardware.starts_with("1 x ") {
            return Some((id, "there is one device".to_owned()));
        }
        let mut of_id = results.rows.iter().filter(|row| is_of(&row.id, id));
        let row = of_id.find(|_| id.starts_with(BESIDE_OTHERS)).filter(|row| row.reference.is_none());
        row.map(|row| (id, row.path.clone()))
    };
    EXPECTED.into_iter().filter_map(reason).collect()
}

/// Returns what is promised, is not skipped, and has no goal among the rows.
pub(super) fn absent(rows: &[ResultRow], skipped: &[(&str, String)]) -> Vec<&'static str> {
    let has_goal = |id: &str| rows.iter().any(|row| row.met.is_some() && is_of(&row.id, id));
    let is_skipped = |id: &str| skipped.iter().any(|(skipped, _)| *skipped == id);
    EXPECTED.into_iter().filter(|id| !is_skipped(id) && !has_goal(id)).collect()
}

/// Returns whether a row is the expected one, or one of those.
fn is_of(id: &str, expected: &str) -> bool {
    if expected.ends_with('/') { id.starts_with(expected) } else { id == expected }
}

/// Returns the rows with goals. If one was [missed](is_missed), it measures again, and what is measured twice and not missed twice counts as
/// met.
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
        if is_missed(row) {
            row.met = Some(!first.iter().any(|before| before.id == row.id && is_missed(before)));
        }
    }
    let is_gone = |row: &ResultRow| second.iter().all(|again| again.id != row.id);
    let gone: Vec<_> = first.into_iter().filter(is_gone).collect();
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

/// Returns a row like this one for each promise.
#[cfg(test)]
pub(super) fn all_met(like: &ResultRow) -> Vec<ResultRow> {
    let row = |id: &&str| ResultRow {
        id: id.trim_end_matches('/').to_owned() + if id.ends_with('/') { "/x" } else { "" },
        met: Some(true),
        ..like.clone()
    };
    EXPECTED.iter().map(row).collect()
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
        let rows = confirmed(|| Ok(results.clone())).unwrap();
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
        let rows = confirmed(|| Ok(runs.next().unwrap())).unwrap();
        assert_eq!(rows.iter().map(is_missed).collect::<Vec<_>>(), [false, false, true, false]);
    }

    #[test]
    fn run_that_misses_nothing_is_not_repeated() {
        let mut runs = [of_hardware(&[true, true])].into_iter();
        assert!(!confirmed(|| Ok(runs.next().unwrap())).unwrap().iter().any(is_missed));
    }

    #[test]
    fn promise_without_a_row_is_missed_and_every_one_is_of_a_row_on_record() {
        let mut rows = all_met(&sample().rows[0]);
        rows.retain(|row| row.id != TWO_DEVICES && row.id != "choice/regret/mean");
        let of = |hardware: &str| Results { hardware: hardware.to_owned(), ..sample() };
        let absent_of = |hardware: &str| absent(&rows, &skipped(&of(hardware), 8));
        assert_eq!(absent_of("1 x NVIDIA H200"), ["choice/regret/mean"]);
        assert_eq!(absent_of("2 x NVIDIA H200"), ["choice/regret/mean", TWO_DEVICES]);
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let records = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
        let ids: Vec<String> = records
            .flat_map(|file| Results::read_or_record(&file).unwrap().rows.into_iter().map(|row| row.id))
            .collect();
        // No record is of two devices since that row is measured.
        let unrecorded = [TWO_DEVICES];
        let is_recorded = |id: &&str| !unrecorded.iter().any(|start| id.starts_with(start));
        for expected in EXPECTED.into_iter().filter(is_recorded) {
            assert!(ids.iter().any(|id| is_of(id, expected)), "{expected} is no row");
        }
    }

    #[test]
    fn goal_beside_an_absent_program_is_skipped_with_its_reason() {
        let mut results = of_hardware(&[true]);
        results.hardware = "2 x NVIDIA H200".to_owned();
        let row = results.rows.remove(0);
        let beside = |id: &str, reference: Option<String>| ResultRow {
            id: format!("{BESIDE_OTHERS}{id}/copy"),
            path: "no PyTorch".to_owned(),
            met: reference.as_ref().map(|_| true),
            reference,
            ..row.clone()
        };
        let without = all_met(&row).into_iter().filter(|row| !row.id.starts_with(BESIDE_OTHERS));
        results.rows = without.chain([beside("up/50331648", None)]).collect();
        results.rows.push(beside("down/50331648", row.reference.clone()));
        let skipped = skipped(&results, 8);
        assert_eq!(skipped, [("scaling/pytorch/up/50331648/", "no PyTorch".to_owned())]);
        // Without a row nothing says why.
        let absent = absent(&results.rows, &skipped);
        assert_eq!(absent, ["scaling/pytorch/up/268435456/", "scaling/pytorch/down/268435456/"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn goals_on_more_processors_than_there_are_are_skipped() {
        let on = |processors| {
            let mut results = of_hardware(&[true]);
            results.hardware = "2 x NVIDIA H200".to_owned();
            let runs = RUNS.iter().filter(|run| can_run(run, processors)).count();
            let skipped = skipped(&results, processors);
            assert!(skipped.iter().all(|(id, _)| id.starts_with(CONFINED)), "{skipped:?}");
            (RUNS.len() - runs, skipped.len(), skipped.first().map(|(_, reason)| reason.clone()))
        };
        assert_eq!([on(16), on(8)], [(0, 0, None), (0, 0, None)]);
        assert_eq!(on(4), (1, 4, Some("4 processors can be used".to_owned())));
        assert_eq!(on(1).1, 8);
    }

    #[test]
    fn run_without_goals_is_refused() {
        let mut results = sample();
        results.rows.iter_mut().for_each(|row| row.met = None);
        let error = confirmed(|| Ok(results.clone())).unwrap_err();
        assert!(error.to_string().contains("only rows of a device"), "{error}");
    }
}
