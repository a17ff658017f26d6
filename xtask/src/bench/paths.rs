//! What a run found of each path: times of every method, references, choices, rejections, break points.

use std::collections::BTreeMap;

use super::{
    format::Direction,
    results::{BreakPoint, ResultRow, Results},
};

/// A choice is wrong if it takes this much longer than the fastest method.
pub(crate) const WRONG: f64 = 1.03;
/// An idle device does not show what a copy kernel costs: ZeroCopy is never called the better choice.
const NOT_BY_TIME: &str = "ZeroCopy";
/// Groups of rows whose references are drawn; the first is that of automatic choice.
const REFERENCES: [&str; 4] = ["", "staged/beside-threads/", "peer/", "managed/"];

/// The time of a copy, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    pub(crate) bytes: u64,
    pub(crate) median: f64,
    /// 10th percentile.
    pub(crate) low: f64,
    /// 90th percentile.
    pub(crate) high: f64,
}

/// Times, ascending in size.
pub(crate) type Curve = Vec<Timing>;

/// A choice and what would have been faster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) bytes: u64,
    pub(crate) method: String,
    pub(crate) better: Option<Better>,
}

/// A method that is faster than the chosen one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Better {
    pub(crate) method: String,
    /// The chosen method's time over this one's.
    pub(crate) ratio: f64,
    pub(crate) seconds: [f64; 2],
    /// Whether the p10–p90 ranges overlap.
    pub(crate) is_uncertain: bool,
}

/// A size, or an interval, in which the best or chosen method changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// One path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    pub(crate) name: String,
    pub(crate) simulated: bool,
    /// By method.
    pub(crate) methods: BTreeMap<String, Curve>,
    /// By name.
    pub(crate) references: BTreeMap<String, Curve>,
    /// Ascending in size.
    pub(crate) choices: Vec<Choice>,
    /// Sizes by method and reason.
    pub(crate) rejections: BTreeMap<(String, String), Vec<u64>>,
    pub(crate) planned: Vec<Change>,
    pub(crate) measured: Vec<Change>,
    /// Where the fastest method changes by a calibration, in bytes.
    pub(crate) calibrated: Vec<u64>,
}

/// Returns every path of a run, ordered by direction.
pub(crate) fn of(results: &Results) -> Vec<Path> {
    let mut paths: BTreeMap<String, Path> = BTreeMap::new();
    let methods = |row: &ResultRow| parse(row.id.strip_prefix("methods/")?);
    let automatic = |row: &ResultRow| parse(&row.id).filter(|(path, ..)| Direction::of(path).is_some());
    for row in &results.rows {
        if let Some((path, method, bytes)) = methods(row)
            && let Some(timing) = timing(row, bytes, [row.value, row.p10, row.p90])
        {
            let path = paths.entry(path).or_default();
            path.simulated |= row.simulated;
            path.methods.entry(method).or_default().push(timing);
        }
    }
    for row in &results.rows {
        // Sizes at which not every method was tried.
        if let Some((path, method, bytes)) = automatic(row)
            && let Some(timing) = timing(row, bytes, [row.value, row.p10, row.p90])
        {
            let path = paths.entry(path).or_default();
            path.simulated |= row.simulated;
            let curve = path.methods.entry(method).or_default();
            if curve.iter().all(|known| known.bytes != bytes) {
                curve.push(timing);
            }
        }
    }
    let simulated: Vec<(String, bool)> =
        paths.iter().map(|(name, path)| (name.clone(), path.simulated)).collect();
    for rejection in &results.rejections {
        let key = (rejection.method.clone(), rejection.reason.clone());
        let path = paths.entry(rejection.path.clone()).or_default();
        path.rejections.entry(key).or_default().push(rejection.bytes);
    }
    for choice in &results.choices {
        let path = paths.entry(choice.path.clone()).or_default();
        let (bytes, method) = (choice.bytes, choice.method.clone());
        path.choices.push(Choice { bytes, method, better: None });
    }
    for (name, path) in &mut paths {
        path.name.clone_from(name);
        path.simulated = simulated
            .iter()
            .find(|(known, _)| known == name)
            .map_or(results.simulated && name.contains("cuda:"), |(_, simulated)| *simulated);
        path.add_references(&results.rows);
        path.complete(&results.break_points);
        let prefix = format!("choice/crossing/{name}/");
        let crossings = results.rows.iter().filter(|row| row.id.starts_with(&prefix));
        path.calibrated = crossings.map(|row| row.value as u64).collect();
    }
    let mut paths: Vec<Path> = paths.into_values().collect();
    paths.sort_by_key(|path| Direction::of(&path.name).map_or(Direction::ALL.len(), |it| it as usize));
    paths
}

/// Splits `PATH/METHOD/BYTES`.
pub(crate) fn parse(id: &str) -> Option<(String, String, u64)> {
    let mut parts = id.rsplitn(3, '/');
    let (bytes, method, path) = (parts.next()?, parts.next()?, parts.next()?);
    Some((path.to_owned(), method.to_owned(), bytes.parse().ok()?))
}

/// Converts a row's median, p10 and p90 to times.
fn timing(row: &ResultRow, bytes: u64, values: [f64; 3]) -> Option<Timing> {
    let seconds = |value: f64| match row.unit.as_str() {
        "ns" => Some(value * 1e-9),
        "us" => Some(value * 1e-6),
        "ms" => Some(value * 1e-3),
        "s" => Some(value),
        "GB/s" => Some(bytes as f64 / value / 1e9),
        _ => None,
    };
    let [median, a, b] = values.map(|value| seconds(value).filter(|time| time.is_finite() && *time > 0.0));
    let (median, a, b) = (median?, a?, b?);
    Some(Timing { bytes, median, low: a.min(b), high: a.max(b) })
}

impl Path {
    fn add_references(&mut self, rows: &[ResultRow]) {
        for row in rows {
            let ours = REFERENCES.iter().find_map(|group| {
                let rest = row.id.strip_prefix(group)?.strip_prefix(&self.name)?.strip_prefix('/')?;
                let (_, bytes) = rest.split_once('/')?;
                bytes.parse::<u64>().ok()
            });
            if let (Some(bytes), Some(name), Some(value)) = (ours, &row.reference, row.reference_value)
                && let Some(timing) = timing(row, bytes, [value; 3])
            {
                self.references.entry(name.clone()).or_default().push(timing);
            }
        }
    }

    /// Sorts, compares choices with the fastest methods, and finds break points.
    fn complete(&mut self, break_points: &[BreakPoint]) {
        for curve in self.methods.values_mut().chain(self.references.values_mut()) {
            curve.sort_by_key(|timing| timing.bytes);
        }
        let mut choices = std::mem::take(&mut self.choices);
        if !self.simulated {
            choices.iter_mut().for_each(|choice| choice.better = self.better(choice.bytes, &choice.method));
        }
        // Runs of one record may differ in a choice: the worst one counts.
        let ratio = |choice: &Choice| choice.better.as_ref().map_or(1.0, |better| better.ratio);
        choices.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(ratio(b).total_cmp(&ratio(a))));
        choices.dedup_by_key(|choice| choice.bytes);
        self.choices = choices;
        let exact = break_points.iter().filter(|point| point.path == self.name);
        self.planned = exact
            .map(|point| Change {
                low: point.bytes,
                high: point.bytes,
                from: point.from.clone(),
                to: point.to.clone(),
            })
            .collect();
        if self.planned.is_empty() {
            self.planned = changes(self.choices.iter().map(|choice| (choice.bytes, choice.method.as_str())));
        }
        if !self.simulated {
            self.measured = self.crossings();
        }
    }

    pub(crate) fn at(&self, method: &str, bytes: u64) -> Option<&Timing> {
        self.methods.get(method)?.iter().find(|timing| timing.bytes == bytes)
    }

    /// Returns the fastest method at a size, if it is not the chosen one.
    fn better(&self, bytes: u64, chosen: &str) -> Option<Better> {
        let ours = self.at(chosen, bytes)?;
        let (method, best) = self.fastest(bytes)?;
        (method != chosen && best.median < ours.median).then(|| Better {
            method: method.to_owned(),
            ratio: ours.median / best.median,
            seconds: [ours.median, best.median],
            is_uncertain: best.high >= ours.low,
        })
    }

    fn fastest(&self, bytes: u64) -> Option<(&str, &Timing)> {
        let times = self.methods.keys().filter_map(|method| Some((method.as_str(), self.at(method, bytes)?)));
        times
            .filter(|(method, _)| *method != NOT_BY_TIME)
            .min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))
    }

    /// Returns where the fastest method changes, between the sizes at which all were measured.
    fn crossings(&self) -> Vec<Change> {
        let sizes = self.choices.iter().map(|choice| choice.bytes);
        let best = sizes.filter_map(|bytes| Some((bytes, self.fastest(bytes)?.0)));
        let mut found = changes(best);
        for change in &mut found {
            // The sign of this changes between the two sizes; both times are taken as straight in logarithms.
            let lead = |bytes| {
                let (from, to) = (self.at(&change.from, bytes)?, self.at(&change.to, bytes)?);
                Some((to.median / from.median).ln())
            };
            if let (Some(low), Some(high)) = (lead(change.low), lead(change.high)) {
                let (start, end) = ((change.low as f64).ln(), (change.high as f64).ln());
                let share = if low > high { low / (low - high) } else { 0.5 };
                let bytes = (start + (end - start) * share).exp().round() as u64;
                (change.low, change.high) = (bytes, bytes);
            }
        }
        found
    }
}

/// Returns where the method of consecutive sizes changes.
fn changes<'a>(methods: impl Iterator<Item = (u64, &'a str)>) -> Vec<Change> {
    let methods: Vec<_> = methods.collect();
    let pairs = methods.windows(2).filter_map(|pair| match pair {
        [(low, from), (high, to)] if from != to => {
            Some(Change { low: *low, high: *high, from: (*from).to_owned(), to: (*to).to_owned() })
        }
        _ => None,
    });
    pairs.collect()
}

impl Choice {
    /// Returns the better method if the choice is wrong.
    pub(crate) fn wrong(&self) -> Option<&Better> {
        self.better.as_ref().filter(|better| better.ratio > WRONG)
    }
}
