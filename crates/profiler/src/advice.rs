//! Advice: what would take less time, by transfers that were timed and by costs that are known.

use std::{cmp::Reverse, fmt, time::Duration};

use transload_core::{
    CostBasis, DeviceId, KnownCosts, ListCost, ListWay, MemoryKind, PathCost, TransferMethod, TransferPath,
};

use crate::{
    Direction,
    collector::PathKey,
    report::{percent, time},
    runs::RunTotals,
    timed_transfers::{TimedTotals, TimedTransfers},
};

/// The smallest saving that is told, as a share of the time that the transfers took, and of all time.
const LEAST: f64 = 0.05;
const LEAST_OF_ALL: f64 = 0.01;
/// How much longer than predicted is told, as a factor.
const OFF: f64 = 1.25;
/// Fewer transfers in a row are not worth a list.
const LIST: u64 = 4;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AdviceKind {
    /// Keep the host's side in pinned memory.
    PinHostMemory,
    /// Let another method be chosen.
    UseMethod(TransferMethod),
    /// Copy as lists what is copied one by one.
    UseLists {
        /// How many lists.
        lists: u64,
    },
    /// Calibrate: transfers take longer than the built-in table says, these the most.
    Calibrate {
        /// What the table predicted, in nanoseconds.
        predicted_ns: u64,
    },
}

/// What the time of an alternative is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AdviceBasis {
    /// So many timed transfers of this profile that did it.
    Transfers(u64),
    /// Costs of this origin.
    Costs(CostBasis),
}

/// What would have saved how much of the time of some timed transfers.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Advice {
    /// What to do.
    pub kind: AdviceKind,
    /// Path of the transfers.
    pub path: TransferPath,
    /// The method that moved them; `None` if it does not matter.
    pub method: Option<TransferMethod>,
    /// How many.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their share of the bytes of all timed transfers.
    pub share: f64,
    /// Time in which at least one of them ran, by their device's clock.
    pub took_ns: u64,
    /// From the first to the last timed transfer in their direction, by that clock.
    pub whole_ns: u64,
    /// What they would have taken less; `None` if nothing tells.
    pub saving_ns: Option<u64>,
    /// What tells it.
    pub basis: Option<AdviceBasis>,
    /// Whether a software driver moved them.
    pub simulated: bool,
}

impl Advice {
    /// Returns the saving in each second of [`whole_ns`](Self::whole_ns), in seconds.
    #[must_use]
    pub fn saving_per_second(&self) -> Option<f64> {
        let saving = self.saving_ns.filter(|_| self.whole_ns > 0)?;
        Some(saving as f64 / self.whole_ns as f64)
    }
}

/// A number with its noun, in the plural unless it is 1.
fn counted(number: u64, noun: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{number} {noun}{}", if number == 1 { "" } else { "s" }))
}

impl fmt::Display for AdviceBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transfers(count) => write!(f, "by {} that did so", counted(*count, "timed transfer")),
            Self::Costs(CostBasis::User) => f.write_str("by costs that the user set"),
            Self::Costs(CostBasis::Refined) => f.write_str("by costs corrected by transfers"),
            Self::Costs(_) => f.write_str("by costs measured here"),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, transfers, bytes, took_ns, basis, .. } = self;
        let share = percent(Some(self.share));
        write!(f, "{share} of the timed bytes, {} {path}", counted(*transfers, "transfer"))?;
        if let Some(method) = self.method {
            write!(f, " by {method}")?;
        }
        write!(f, ", took {}", time(*took_ns))?;
        if *took_ns > 0 {
            write!(f, " ({:.1} GB/s)", *bytes as f64 / *took_ns as f64)?;
        }
        match self.kind {
            AdviceKind::PinHostMemory => f.write_str("; with the host's side pinned")?,
            AdviceKind::UseMethod(method) => write!(f, "; by {method}")?,
            AdviceKind::UseLists { lists } => {
                let lists = counted(lists, "list");
                write!(f, ", submitted in a row; as {lists}, if none needs another,")?;
            }
            AdviceKind::Calibrate { predicted_ns } => {
                write!(f, ", and the built-in table predicted {}: calibrate", time(predicted_ns))?;
            }
        }
        match (self.saving_ns, self.saving_per_second()) {
            (Some(saving), Some(share)) => {
                write!(f, " they would take {} less", time(saving))?;
                write!(f, ", {} of each second in that direction", time((share * 1e9) as u64))?;
            }
            _ => f.write_str("; what that saves is not known")?,
        }
        if let Some(basis) = basis {
            write!(f, ", {basis}")?;
        }
        f.write_str(if self.simulated { " (simulated)" } else { "" })
    }
}

/// Transfers of one path, method and class of size, and what is known of their alternatives.
struct Case<'a> {
    key: PathKey,
    totals: &'a TimedTotals,
    took_ns: u64,
}

struct Adviser<'a> {
    timed: &'a TimedTransfers,
    costs: &'a KnownCosts,
    cases: Vec<Case<'a>>,
    all_bytes: u64,
}

/// Returns what the timed transfers tell, what saves most first.
pub(crate) fn advise(timed: &TimedTransfers, costs: &KnownCosts) -> Vec<Advice> {
    let mut cases = Vec::new();
    for (key, totals) in &timed.totals {
        let summary = totals.busy.summary();
        if summary.union > 0 && !summary.is_cut {
            cases.push(Case { key: *key, totals, took_ns: summary.union });
        }
    }
    let all_bytes = cases.iter().fold(0_u64, |sum, case| sum.saturating_add(case.totals.bytes));
    let adviser = Adviser { timed, costs, cases, all_bytes };
    let mut advice: Vec<Advice> = Vec::new();
    for one in adviser.cases.iter().flat_map(|case| adviser.savings(case)) {
        match advice.iter_mut().find(|known| known.is_like(&one)) {
            Some(known) => known.add(&one),
            None => advice.push(one),
        }
    }
    advice.extend(timed.runs.totals.iter().filter_map(|(path, totals)| adviser.lists(*path, totals)));
    let is_worth = |advice: &Advice| {
        let saving = advice.saving_ns.unwrap_or(0) as f64;
        saving >= LEAST * advice.took_ns as f64 && saving >= LEAST_OF_ALL * advice.whole_ns as f64
    };
    advice.retain(is_worth);
    advice.sort_by_key(|advice| Reverse(advice.saving_ns));
    advice.extend(adviser.calibrate());
    advice
}

impl Advice {
    /// Returns whether another one says the same of transfers of another size.
    fn is_like(&self, other: &Self) -> bool {
        let is_same = |a, b| match (a, b) {
            (Some(AdviceBasis::Transfers(_)), Some(AdviceBasis::Transfers(_))) => true,
            (a, b) => a == b,
        };
        (self.kind, self.path, self.method) == (other.kind, other.path, other.method)
            && is_same(self.basis, other.basis)
    }

    fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.transfers, other.transfers),
            (&mut self.bytes, other.bytes),
            (&mut self.took_ns, other.took_ns),
        ];
        sums.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.share += other.share;
        self.saving_ns = self.saving_ns.zip(other.saving_ns).map(|(sum, more)| sum.saturating_add(more));
        if let (Some(AdviceBasis::Transfers(sum)), Some(AdviceBasis::Transfers(more))) =
            (&mut self.basis, other.basis)
        {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Adviser<'_> {
    fn savings(&self, case: &Case<'_>) -> impl Iterator<Item = Advice> {
        let whole = case.totals.lane().and_then(|lane| self.alone(lane, case.key.0));
        let both = whole.map(|whole| [self.pin(case, whole), self.other_method(case, whole)]);
        both.into_iter().flatten().flatten()
    }

    /// Returns how long transfers of a direction lasted in all, if their times tell the rates of each path: spans of one include waiting for
    /// an engine that another uses.
    fn alone(&self, lane: DeviceId, path: TransferPath) -> Option<u64> {
        let direction = Direction::of_path(lane, path);
        let all = self.timed.lanes.get(&(lane, direction))?.summary();
        let is_of_lane = |case: &&Case<'_>| {
            case.totals.lane() == Some(lane) && Direction::of_path(lane, case.key.0) == direction
        };
        let sum: u64 = self.cases.iter().filter(is_of_lane).map(|case| case.took_ns).sum();
        (!all.is_cut && sum as f64 <= all.union as f64 * (1.0 + LEAST)).then_some(all.whole)
    }

    fn pin(&self, case: &Case<'_>, whole: u64) -> Option<Advice> {
        let (mut path, method, class) = case.key;
        let host = match (path.src.device.is_cpu(), path.dst.device.is_cpu()) {
            (true, false) => &mut path.src,
            (false, true) => &mut path.dst,
            _ => return None,
        };
        if host.kind != MemoryKind::Pageable {
            return None;
        }
        host.kind = MemoryKind::Pinned;
        let measured = self.cases.iter().filter(|other| other.key.0 == path && other.key.2 == class);
        let measured = measured.filter_map(|other| transfers_like(case, other)).min_by_key(|it| it.0);
        let costs = || self.best_cost(path, case, None).map(|(best, _)| best);
        let (would_take, basis) = measured.or_else(|| self.scaled(case, (case.key.0, method), costs()?))?;
        self.saving(case, AdviceKind::PinHostMemory, whole, would_take, basis)
    }

    fn other_method(&self, case: &Case<'_>, whole: u64) -> Option<Advice> {
        let (path, method, class) = case.key;
        if case.totals.unusual > 0 {
            return None;
        }
        // Of a staged one, the device does not see what the host copied before.
        let is_like = |other: &&Case<'_>| {
            (other.key.0, other.key.2) == (path, class)
                && ![method, TransferMethod::HostStaged].contains(&other.key.1)
        };
        let measured = self.cases.iter().filter(is_like);
        let measured = measured.filter_map(|other| Some((transfers_like(case, other)?, other.key.1)));
        let measured = measured.min_by_key(|((time, _), _)| *time);
        let ((would_take, basis), best) = measured.or_else(|| {
            let (best, other) = self.best_cost(path, case, Some(method))?;
            Some((self.scaled(case, (path, method), best)?, other))
        })?;
        self.saving(case, AdviceKind::UseMethod(best), whole, would_take, basis)
    }

    /// Returns the transfers that took longest compared with the built-in table, if they took much longer.
    fn calibrate(&self) -> Option<Advice> {
        let is_longer = |case: &&Case<'_>| {
            let TimedTotals { transfers, built_in, predicted_ns, unusual, busy, .. } = case.totals;
            let summary = busy.summary();
            // Predictions are those of transfers that are alone.
            let is_alone = summary.sum as f64 <= summary.union as f64 * (1.0 + LEAST);
            built_in == transfers
                && *unusual == 0
                && is_alone
                && case.took_ns as f64 > *predicted_ns as f64 * OFF
        };
        let excess = |case: &&Case<'_>| case.took_ns - case.totals.predicted_ns;
        let case = self.cases.iter().filter(is_longer).max_by_key(excess)?;
        let whole = case.totals.lane().and_then(|lane| self.alone(lane, case.key.0))?;
        Some(self.of(case, AdviceKind::Calibrate { predicted_ns: case.totals.predicted_ns }, whole))
    }

    fn lists(&self, path: TransferPath, totals: &RunTotals) -> Option<Advice> {
        let RunTotals { runs, transfers, bytes, busy } = totals;
        let (pieces, took_ns) = (transfers / runs, busy.summary().union);
        let like = self.cases.iter().find(|case| case.key.0 == path)?;
        let whole = self.alone(like.totals.lane()?, path)?;
        // Of lists beside kernels, else of the engines: others are chosen only where nothing else runs.
        let known = self.costs.lists.iter().filter(|(cost, basis)| {
            cost.path == path && *basis > CostBasis::BuiltIn && cost.way != ListWay::OneByOne
        });
        let (beside, exclusive): (Vec<_>, Vec<_>) = known.partition(|(cost, _)| !cost.exclusive);
        let engines = exclusive.into_iter().filter(|(cost, _)| cost.way == ListWay::CopyEngine);
        let known = if beside.is_empty() { engines.collect() } else { beside };
        let time = |cost: &ListCost| cost.model.predict(pieces, bytes / runs);
        let (cost, basis) = known.into_iter().min_by_key(|(cost, _)| time(cost))?;
        let would_take = time(cost).as_nanos() as f64 * *runs as f64;
        let saving = took_ns.checked_sub(would_take as u64).filter(|_| pieces >= LIST)?;
        let of = self.of(like, AdviceKind::UseLists { lists: *runs }, whole);
        Some(Advice {
            method: None,
            transfers: *transfers,
            bytes: *bytes,
            share: *bytes as f64 / self.all_bytes as f64,
            took_ns,
            saving_ns: Some(saving),
            basis: Some(AdviceBasis::Costs(*basis)),
            ..of
        })
    }

    /// Returns the least time of a mean transfer of the case on a path by another method than `than`, if it was measured or set.
    fn best_cost(
        &self,
        path: TransferPath,
        case: &Case<'_>,
        than: Option<TransferMethod>,
    ) -> Option<((Duration, CostBasis), TransferMethod)> {
        let mean = case.totals.bytes / case.totals.transfers;
        let is_known = |(cost, basis): &&(PathCost, CostBasis)| {
            cost.path == path
                && *basis > CostBasis::BuiltIn
                && cost.method != TransferMethod::ZeroCopy
                && than != Some(cost.method)
        };
        let known = self.costs.paths.iter().filter(is_known);
        let times = known.map(|(cost, basis)| ((cost.model.predict(mean), *basis), cost.method));
        times.min_by_key(|((time, _), _)| *time)
    }

    /// Returns what the transfers would take at a known cost. If their own cost is known too, it is the ratio of both that counts, so a machine
    /// that was busy does not make an alternative look better.
    fn scaled(
        &self,
        case: &Case<'_>,
        (path, method): (TransferPath, TransferMethod),
        (time, basis): (Duration, CostBasis),
    ) -> Option<(u64, AdviceBasis)> {
        let TimedTotals { transfers, bytes, .. } = case.totals;
        let is_own = |(cost, basis): &&(PathCost, CostBasis)| {
            (cost.path, cost.method) == (path, method) && *basis > CostBasis::BuiltIn
        };
        let own = self.costs.paths.iter().find(is_own);
        let would_take = match own.map(|(cost, _)| cost.model.predict(bytes / transfers)) {
            Some(own) if own.is_zero() => return None,
            Some(own) => case.took_ns as f64 * (time.as_secs_f64() / own.as_secs_f64()),
            None => time.as_nanos() as f64 * *transfers as f64,
        };
        Some((would_take as u64, AdviceBasis::Costs(basis)))
    }

    fn saving(
        &self,
        case: &Case<'_>,
        kind: AdviceKind,
        whole: u64,
        would_take: u64,
        basis: AdviceBasis,
    ) -> Option<Advice> {
        let saving = case.took_ns.checked_sub(would_take)?;
        Some(Advice { saving_ns: Some(saving), basis: Some(basis), ..self.of(case, kind, whole) })
    }

    fn of(&self, case: &Case<'_>, kind: AdviceKind, whole_ns: u64) -> Advice {
        let Case { key: (path, method, _), totals, took_ns } = *case;
        Advice {
            kind,
            path,
            method: Some(method),
            transfers: totals.transfers,
            bytes: totals.bytes,
            share: totals.bytes as f64 / self.all_bytes as f64,
            took_ns,
            whole_ns,
            saving_ns: None,
            basis: None,
            simulated: totals.is_simulated,
        }
    }
}

/// Returns what the transfers would have taken at the rate of others, if these are of about the same size. Those in place do not count: they wait
/// for kernels.
fn transfers_like(case: &Case<'_>, other: &Case<'_>) -> Option<(u64, AdviceBasis)> {
    if other.key.1 == TransferMethod::ZeroCopy {
        return None;
    }
    let mean = |case: &Case<'_>| case.totals.bytes as f64 / case.totals.transfers as f64;
    let ratio = mean(case) / mean(other);
    let time = other.took_ns as f64 * (case.totals.bytes as f64 / other.totals.bytes as f64);
    (0.5..=2.0).contains(&ratio).then_some((time as u64, AdviceBasis::Transfers(other.totals.transfers)))
}
