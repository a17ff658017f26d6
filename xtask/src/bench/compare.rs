//! Differences between two runs on one machine, or on two.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    format::is_rate,
    results::{ResultRow, Results},
    row_key::{key, may_be_absent},
};

/// A row differs if its median changed by more than this, and is outside the other run's p10–p90 range.
const CHANGED: f64 = 0.05;
/// The same of a row with one measurement.
const CHANGED_ONCE: f64 = 0.20;

/// What changed since an earlier run.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// Date and commit of the earlier run.
    pub(crate) earlier: String,
    /// Why the runs are not comparable, if so: differences are information then.
    pub(crate) other_machine: Option<String>,
    /// Rows in both runs that were measured on hardware.
    pub(crate) compared: usize,
    /// Largest change first.
    pub(crate) worse: Vec<Change>,
    pub(crate) better: Vec<Change>,
    /// Path, bytes, the earlier method and the present one.
    pub(crate) choices: Vec<(String, u64, String, String)>,
    /// Rows that were measured on hardware then, and are missing now.
    pub(crate) gone: Vec<String>,
    factors: BTreeMap<String, f64>,
}

/// A row that changed.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) id: String,
    pub(crate) unit: String,
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// More than 1 is better.
    pub(crate) factor: f64,
}

/// Compares a run with an earlier one.
pub(crate) fn compare(results: &Results, earlier: &Results) -> Comparison {
    let all = results.rows.iter().chain(&earlier.rows);
    let own: BTreeSet<&str> = all.filter(|row| row.own_reference).map(|row| row.id.as_str()).collect();
    let rows = |of: &Results| -> Vec<ResultRow> {
        of.rows.iter().filter(|row| is_ours(row)).flat_map(|row| with_reference(row, &own)).collect()
    };
    let (now, then) = (rows(results), rows(earlier));
    // A row in another unit is another one.
    let key = |row: &ResultRow| (key(&row.id), row.unit.clone());
    let before: BTreeMap<_, &ResultRow> = then.iter().map(|row| (key(row), row)).collect();
    let after: BTreeSet<_> = now.iter().map(key).collect();
    let gone = then.iter().filter(|row| !may_be_absent(&row.id) && !after.contains(&key(row)));
    let (mut worse, mut better, mut factors) = (Vec::new(), Vec::new(), BTreeMap::new());
    for row in &now {
        let Some(old) = before.get(&key(row)).filter(|old| !old.simulated) else { continue };
        let factor = factor(row, old.value);
        factors.insert(row.id.clone(), factor);
        if is_changed(row, old, factor) {
            let list = if factor < 1.0 { &mut worse } else { &mut better };
            let (id, unit) = (row.id.clone(), row.unit.clone());
            list.push(Change { id, unit, before: old.value, after: row.value, factor });
        }
    }
    worse.sort_by(|a: &Change, b: &Change| a.factor.total_cmp(&b.factor));
    // What became 0 has no factor: it comes last.
    let size = |change: &Change| if change.factor.is_finite() { change.factor } else { 0.0 };
    better.sort_by(|a: &Change, b: &Change| size(b).total_cmp(&size(a)));
    let choices = results.choices.iter().filter_map(|choice| {
        let same = |old: &&super::results::Choice| old.path == choice.path && old.bytes == choice.bytes;
        let old = earlier.choices.iter().find(same).filter(|old| old.method != choice.method)?;
        Some((choice.path.clone(), choice.bytes, old.method.clone(), choice.method.clone()))
    });
    let commit = earlier.commit.as_deref().map_or("unknown", |commit| commit.get(..8).unwrap_or(commit));
    Comparison {
        earlier: format!("{}, commit {commit}", earlier.date),
        other_machine: other_machine(results, earlier),
        compared: factors.len(),
        worse,
        better,
        choices: choices.collect(),
        gone: gone.map(|row| row.id.clone()).collect(),
        factors,
    }
}

impl Comparison {
    /// Returns how a row changed; more than 1 is better.
    pub(crate) fn factor(&self, id: &str) -> Option<f64> {
        self.factors.get(id).copied()
    }
}

fn other_machine(results: &Results, earlier: &Results) -> Option<String> {
    let facts =
        [("devices", &results.hardware, &earlier.hardware), ("processor", &results.cpu, &earlier.cpu)];
    let found = facts.into_iter().find(|(_, now, then)| now != then);
    found.map(|(what, now, then)| format!("{what}: {then} then, {now} now"))
}

/// Returns whether a change of this row is one of ours: not of a simulation, a repetition, a reference, or a size at which methods change.
fn is_ours(row: &ResultRow) -> bool {
    !row.simulated
        && row.unit != "B"
        && !row.id.contains('#')
        && !row.id.contains("/wrong/")
        && !row.id.starts_with("reference/")
        && !row.id.rsplit('/').next().is_some_and(|what| what.starts_with("raw") || what.ends_with("memcpy"))
}

/// Returns a row, and if its reference is the library itself, that one as a row of its own: its change is not the machine's.
fn with_reference(row: &ResultRow, own: &BTreeSet<&str>) -> Vec<ResultRow> {
    let mut row = row.clone();
    let mut rows = Vec::new();
    if own.contains(row.id.as_str()) {
        row.ratio = None;
        if let (Some(reference), Some(value)) = (&row.reference, row.reference_value) {
            let id = format!("{}: {reference}", row.id);
            rows.push(ResultRow { id, value, p10: value, p50: value, p90: value, ..row.clone() });
        }
    }
    rows.insert(0, row);
    rows
}

/// Returns whether more of a row's value is better.
fn is_more_better(row: &ResultRow) -> bool {
    match row.goal.as_deref() {
        Some(goal) if goal.contains(">=") => true,
        Some(goal) if goal.contains("<=") => false,
        _ => is_rate(&row.unit),
    }
}

fn factor(row: &ResultRow, before: f64) -> f64 {
    let (better, worse) = if is_more_better(row) { (row.value, before) } else { (before, row.value) };
    if better == worse { 1.0 } else { better / worse }
}

fn is_changed(row: &ResultRow, old: &ResultRow, factor: f64) -> bool {
    let is_once = [row, old].iter().all(|row| row.p10 == row.p90);
    let least = if is_once { CHANGED_ONCE } else { CHANGED };
    let differs = |factor: f64| factor.max(1.0 / factor) > 1.0 + least;
    // If the reference changed as much, the machine did.
    if let (Some(now), Some(then)) = (row.ratio, old.ratio) {
        let of_ratio = if is_more_better(row) { now / then } else { then / now };
        if !differs(of_ratio) || (of_ratio < 1.0) != (factor < 1.0) {
            return false;
        }
    }
    let is_inside = |value: f64, of: &ResultRow| (of.p10.min(of.p90)..=of.p10.max(of.p90)).contains(&value);
    differs(factor) && !is_inside(row.value, old) && !is_inside(old.value, row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::hardware_sample;

    #[test]
    fn change_has_a_direction_by_unit_and_goal() {
        let (old, mut new) = (hardware_sample(), hardware_sample());
        // 1 MiB at 18 GB/s becomes 9; 4 KiB in 10 us becomes 5.
        for row in &mut new.rows {
            for value in [&mut row.value, &mut row.p10, &mut row.p90] {
                *value /= 2.0;
            }
            row.ratio = row.ratio.map(|ratio| ratio / 2.0);
        }
        let found = compare(&new, &old);
        assert!(found.other_machine.is_none());
        assert!(found.worse.iter().all(|change| change.unit == "GB/s" && change.factor == 0.5), "{found:?}");
        assert!(found.better.iter().all(|change| change.unit == "us" && change.factor == 2.0), "{found:?}");
        assert_eq!(found.worse.len() + found.better.len(), new.rows.len());
    }

    #[test]
    fn change_within_the_spread_is_none() {
        let (old, mut new) = (hardware_sample(), hardware_sample());
        for row in &mut new.rows {
            row.value *= 1.04;
        }
        let found = compare(&new, &old);
        assert!(found.worse.is_empty() && found.better.is_empty(), "{found:?}");
        assert_eq!(found.compared, new.rows.len());
    }

    #[test]
    fn change_of_the_reference_too_is_the_machines() {
        let (old, mut new) = (hardware_sample(), hardware_sample());
        new.rows.retain(|row| row.ratio.is_some());
        let row = &mut new.rows[0];
        for value in [&mut row.value, &mut row.p10, &mut row.p90] {
            *value /= 2.0;
        }
        assert!(compare(&new, &old).worse.is_empty());
        new.rows[0].ratio = Some(0.75);
        assert_eq!(compare(&new, &old).worse.len(), 1);
    }

    #[test]
    fn change_of_the_librarys_own_reference_is_none_of_the_machine() {
        let (mut old, mut new) = (hardware_sample(), hardware_sample());
        old.rows.retain(|row| row.ratio.is_some());
        new.rows.retain(|row| row.ratio.is_some());
        let row = &mut new.rows[0];
        row.own_reference = true;
        for value in [&mut row.value, &mut row.p10, &mut row.p90] {
            *value /= 2.0;
        }
        row.reference_value = row.reference_value.map(|value| value / 2.0);
        let worse = compare(&new, &old).worse;
        let id = &new.rows[0].id;
        assert_eq!(worse.len(), 2, "{worse:?}");
        assert!(
            worse.iter().any(|it| it.id == *id)
                && worse.iter().any(|it| it.id == format!("{id}: raw driver"))
        );
    }

    #[test]
    fn row_is_compared_whatever_method_was_chosen_and_missing_ones_are_listed() {
        let (old, mut new) = (hardware_sample(), hardware_sample());
        let asked = new.rows.remove(0).id;
        let row = new.rows.last_mut().unwrap();
        row.id = row.id.replace("HostStaged", "DirectCopy");
        for value in [&mut row.value, &mut row.p10, &mut row.p90] {
            *value /= 2.0;
        }
        row.ratio = Some(0.75);
        let id = row.id.clone();
        let found = compare(&new, &old);
        assert_eq!(found.worse.iter().map(|change| &change.id).collect::<Vec<_>>(), [&id]);
        assert_eq!(found.gone, [asked]);
        new.rows.last_mut().unwrap().unit = "another".to_owned();
        assert!(compare(&new, &old).gone.contains(&old.rows.last().unwrap().id));
        // A reference is told by the last part of its id.
        for (id, is_gone) in [("wgpu/0/raw-up/4096/pageable", true), ("many/up/4096/raw-list", false)] {
            let (mut old, new) = (hardware_sample(), hardware_sample());
            let row = ResultRow { id: id.to_owned(), ..old.rows[0].clone() };
            old.rows.push(row);
            assert_eq!(compare(&new, &old).gone.contains(&id.to_owned()), is_gone, "{id}");
        }
    }

    #[test]
    fn other_machine_is_named_and_changed_choices_are_listed() {
        let (old, mut new) = (hardware_sample(), hardware_sample());
        new.hardware = "another".to_owned();
        new.choices[0].method = "ZeroCopy".to_owned();
        let found = compare(&new, &old);
        assert!(found.other_machine.unwrap().contains("another now"));
        assert_eq!(found.choices[0].3, "ZeroCopy");
    }
}
