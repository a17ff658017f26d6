//! What a list costs by each way, and as it is chosen.

use std::fmt;

use anyhow::{Result, ensure};
use transload_core::{ListWay, TransferPath};
use transload_transfer::ListPlan;

use super::{DIFFERENT, MEAN, WORST};
use crate::{
    comparison::Fixture,
    grid,
    row::{Goal, Row, Summary},
};

/// The median of repeated measurements in seconds, and half the width of the interval in which the true one lies with a probability of 95 %.
#[derive(Clone, Copy)]
pub(super) struct Time {
    pub(super) median: f64,
    noise: f64,
}

impl Time {
    pub(super) fn of(times: &[f64]) -> Self {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        let (middle, reach) = (times.len() / 2, (0.98 * (times.len() as f64).sqrt()).ceil() as usize);
        let at = |index: usize| times.get(index.min(times.len().saturating_sub(1))).copied();
        let at = |index: usize| at(index).unwrap_or(f64::INFINITY);
        let noise = (at(middle + reach) - at(middle.saturating_sub(reach))) / 2.0;
        // By a way that the path does not have, all are infinite.
        Self {
            median: if times.is_empty() { f64::INFINITY } else { Summary::of(&times).p50 },
            noise: if noise.is_finite() { noise } else { 0.0 },
        }
    }

    /// Returns whether it is more than a tenth longer than another, beyond the noise of both.
    fn is_longer(self, than: Self) -> bool {
        self.median - self.noise > DIFFERENT * (than.median + than.noise)
    }
}

/// A path and a shape with the costs of its lists, or of its single copies by each method.
pub(super) struct Cell<W = ListWay> {
    pub(super) path: TransferPath,
    /// Number of pieces, and bytes of each.
    pub(super) list: (usize, usize),
    /// By each way.
    pub(super) ways: Vec<(W, Time)>,
    /// As the built-in table chooses, and as the calibration does.
    pub(super) chosen: [Time; 2],
    /// What the calibration predicted, for people.
    pub(super) plan: String,
}

impl<W: fmt::Display + PartialEq> Cell<W> {
    /// Returns the cost of a way over the best; infinite if it was not measured.
    pub(super) fn regret_of(&self, way: &W) -> f64 {
        let cost = self.ways.iter().find(|(of, _)| of == way);
        cost.map_or(f64::INFINITY, |(_, time)| time.median / self.best().median)
    }
}

impl<W: fmt::Display> Cell<W> {
    fn best(&self) -> Time {
        let ways = self.ways.iter().map(|(_, time)| *time);
        let none = Time { median: f64::INFINITY, noise: 0.0 };
        ways.chain(self.chosen).fold(none, |best, time| if time.median < best.median { time } else { best })
    }

    /// Returns whether the choice matters: the best two ways differ, or the calibration's choice is not the best.
    fn counts(&self) -> bool {
        let mut ways: Vec<Time> = self.ways.iter().map(|(_, time)| *time).collect();
        ways.sort_by(|a, b| a.median.total_cmp(&b.median));
        let [_, chosen] = self.chosen;
        matches!(ways.as_slice(), [best, second, ..] if second.is_longer(*best))
            || chosen.is_longer(self.best())
    }

    /// Returns the cost of a choice over the best.
    pub(super) fn regret(&self, choice: usize) -> f64 {
        self.chosen.get(choice).map_or(f64::INFINITY, |time| time.median / self.best().median)
    }

    fn text(&self) -> String {
        let micros = |Time { median, noise }: Time| format!("{:.1} ± {:.1}", median * 1e6, noise * 1e6);
        let ways: Vec<_> = self.ways.iter().map(|(way, time)| format!("{way} {}", micros(*time))).collect();
        let ((pieces, bytes), [_, chosen]) = (self.list, self.chosen);
        let (path, ways, plan) = (self.path, ways.join(", "), &self.plan);
        format!("{path}, {pieces} pieces of {bytes} bytes, us: {ways}; {} by {plan}", micros(chosen))
    }

    /// Returns the row of a part for people: the cost as it is chosen over the best.
    fn row(&self, fixture: &Fixture<'_>, part: &str) -> Row {
        let (pieces, bytes) = self.list;
        let id = format!("{part}/{}/{pieces}/{bytes}", grid::name(self.path));
        let regret = |choice| Summary::single(self.regret(choice));
        fixture
            .row(&id, &self.text(), "calibrated", "x", regret(1))
            .against_library("built-in table", regret(0))
    }
}

/// Returns the rows of a part: its cells that count and are not chosen for the best, the geometric mean of all that count, and the worst.
pub(super) fn rows<'a, W: fmt::Display + 'a>(
    fixture: &Fixture<'_>,
    (part, device, has_goals): (&str, &str, bool),
    cells: impl Iterator<Item = &'a Cell<W>> + Clone,
) -> Result<Vec<Row>> {
    let counted: Vec<&Cell<W>> = cells.clone().filter(|cell| cell.counts()).collect();
    ensure!(fixture.is_simulated() || !counted.is_empty(), "none of {} cells counts", cells.count());
    let wrong = counted.iter().filter(|cell| cell.regret(1) > MEAN);
    let mut rows: Vec<Row> = wrong.map(|cell| cell.row(fixture, part)).collect();
    let mean = |choice| Summary::single(geometric(counted.iter().map(|cell| cell.regret(choice))));
    let worst = |choice| Summary::single(counted.iter().map(|cell| cell.regret(choice)).fold(1.0, f64::max));
    let what = format!("{} cells of {}, {device}", counted.len(), cells.count());
    for (id, of, goal) in [("mean", &mean as &dyn Fn(usize) -> Summary, MEAN), ("worst", &worst, WORST)] {
        let row = fixture.row(&format!("{part}/{id}"), &what, "calibrated", "x", of(1));
        rows.push(
            row.against_library("built-in table", of(0)).with_goal(has_goals.then_some(Goal::AtMost(goal))),
        );
    }
    Ok(rows)
}

/// Measures a second time the cells of which the choice seems to be wrong, after all others of the path: only a miss that is found twice is
/// one. `first` becomes the worst of all as first measured.
pub(super) fn confirmed<C>(
    mut cells: Vec<C>,
    first: &mut f64,
    regret: impl Fn(&C, usize) -> f64,
    mut again: impl FnMut(&C) -> Result<C>,
) -> Result<Vec<C>> {
    for cell in &mut cells {
        let found = regret(cell, 1);
        *first = first.max(found);
        if found > WORST {
            *cell = again(cell)?;
        }
    }
    Ok(cells)
}

/// Returns the row of the worst choice as first measured.
pub(super) fn worst_at_first(fixture: &Fixture<'_>, part: &str, regret: f64) -> Row {
    let id = format!("{part}/worst-at-first");
    fixture.row(&id, "before wrong choices were measured again", "calibrated", "x", Summary::single(regret))
}

/// Returns whether lists of so many pieces are measured by a way: many pieces one by one take for ever.
pub(super) fn has_way(pieces: usize, way: ListWay) -> bool {
    way != ListWay::OneByOne || pieces <= 30
}

/// Returns what a plan chooses, and what it predicted.
pub(super) fn told(plan: &ListPlan) -> String {
    let name = |way: Option<ListWay>| way.unwrap_or(ListWay::OneByOne);
    let others =
        plan.alternatives.iter().map(|other| format!(", {} {:.1?}", name(other.way), other.predicted));
    format!("{} {:.1?}{}", name(plan.way), plan.predicted, others.collect::<String>())
}

/// Returns the geometric mean; 1 of nothing.
pub(super) fn geometric(ratios: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = ratios.clone().count().max(1) as f64;
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, MemoryKind, Place};

    use super::*;

    fn cell(ways: &[(f64, f64)], chosen: (f64, f64)) -> Cell {
        let time = |(median, noise): (f64, f64)| Time { median, noise };
        let place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        Cell {
            path: TransferPath::new(place, place),
            list: (1, 1),
            ways: ListWay::ALL.into_iter().zip(ways.iter().copied().map(time)).collect(),
            chosen: [time(chosen); 2],
            plan: String::new(),
        }
    }

    #[test]
    fn cell_counts_if_the_best_two_differ_beyond_noise_or_the_choice_is_wrong() {
        let never = (f64::INFINITY, 0.0);
        assert!(cell(&[(10.0, 0.2), (12.0, 0.2), never], (10.0, 0.2)).counts());
        assert!(!cell(&[(10.0, 0.8), (12.0, 0.8), never], (10.0, 0.8)).counts());
        assert!(!cell(&[(10.0, 0.1), (10.5, 0.1), never], (10.5, 0.1)).counts());
        let wrong = cell(&[(10.0, 0.1), (10.5, 0.1), (40.0, 1.0)], (40.0, 1.0));
        assert!(wrong.counts());
        assert_eq!(wrong.regret(1), 4.0);
    }

    #[test]
    fn only_what_is_wrong_twice_counts() {
        let (right, wrong) = (cell(&[(10.0, 0.1)], (10.0, 0.1)), || cell(&[(10.0, 0.1)], (30.0, 0.1)));
        let mut answers = vec![wrong(), cell(&[(10.0, 0.1)], (11.5, 0.1))];
        let again = |_: &Cell| Ok(answers.pop().unwrap());
        let mut first = 1.0;
        let cells = confirmed(vec![right, wrong(), wrong()], &mut first, Cell::regret, again).unwrap();
        assert_eq!(cells.iter().map(|cell| cell.regret(1)).collect::<Vec<_>>(), [1.0, 1.15, 3.0]);
        assert_eq!(first, 3.0);
    }

    #[test]
    fn noise_is_that_of_the_median() {
        let times: Vec<f64> = (0..100).map(f64::from).collect();
        let time = Time::of(&times);
        assert_eq!((time.median, time.noise), (49.5, 10.0));
        assert_eq!(Time::of(&[f64::INFINITY; 9]).noise, 0.0);
    }
}
