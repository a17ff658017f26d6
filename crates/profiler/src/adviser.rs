//! Finds advice in transfers that were timed, and in costs that are known.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use transload_core::{
    ClockId, CostBasis, CostModel, DeviceId, KnownCosts, ListCost, ListWay, MemoryKind, OperationCount,
    PathCost, TransferMethod, TransferPath,
};

use crate::{
    Advice, AdviceBasis, AdviceKind, Direction,
    collector::PathKey,
    idle_links::IdleLink,
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

/// Transfers of one path, method and class of size, and what is known of their alternatives.
struct Case<'a> {
    key: PathKey,
    totals: &'a TimedTotals,
    took_ns: u64,
    /// How many of them ran at a time, on average.
    at_once: f64,
}

/// The copies of a device, of any kind and direction.
#[derive(Default)]
pub(crate) struct Copies {
    all: OperationCount,
    timed: OperationCount,
}

impl Copies {
    /// Adds operations, of which some were timed.
    pub(crate) fn add(&mut self, all: OperationCount, timed: OperationCount) {
        for (sum, more) in [(&mut self.all, all), (&mut self.timed, timed)] {
            sum.operations = sum.operations.saturating_add(more.operations);
            sum.bytes = sum.bytes.saturating_add(more.bytes);
        }
    }

    /// Returns whether those that were not timed hardly matter: a span may include waiting for them.
    fn are_known(&self) -> bool {
        self.timed.bytes as f64 >= self.all.bytes as f64 * (1.0 - LEAST)
            && self.timed.operations >= self.all.operations / 2
    }
}

struct Adviser<'a> {
    timed: &'a TimedTransfers,
    copies: &'a BTreeMap<DeviceId, Copies>,
    costs: &'a KnownCosts,
    cases: Vec<Case<'a>>,
    all_bytes: u64,
}

/// Returns what the timed transfers tell, what saves most first.
pub(crate) fn advise<'a>(
    timed: &'a TimedTransfers,
    copies: &'a BTreeMap<DeviceId, Copies>,
    costs: &'a KnownCosts,
    idle_links: impl Iterator<Item = IdleLink<'a>>,
) -> Vec<Advice> {
    let mut cases = Vec::new();
    for (key, totals) in &timed.totals {
        let summary = totals.busy.summary();
        if summary.union > 0 && !summary.is_cut {
            let at_once = summary.sum as f64 / summary.union as f64;
            cases.push(Case { key: *key, totals, took_ns: summary.union, at_once });
        }
    }
    let all_bytes = timed.totals.values().fold(0_u64, |sum, totals| sum.saturating_add(totals.bytes));
    let adviser = Adviser { timed, copies, costs, cases, all_bytes };
    let mut advice: Vec<Advice> = Vec::new();
    for one in adviser.cases.iter().flat_map(|case| adviser.savings(case)) {
        match advice.iter_mut().find(|known| known.is_like(&one)) {
            Some(known) => known.add(&one),
            None => advice.push(one),
        }
    }
    advice.extend(timed.runs.totals.iter().filter_map(|(path, totals)| adviser.lists(*path, totals)));
    advice.extend(idle_links.map(|link| idle_link(&link, all_bytes)));
    let is_worth = |advice: &Advice| {
        let saving = advice.saving_ns.unwrap_or(0) as f64;
        saving >= LEAST * advice.took_ns as f64 && saving >= LEAST_OF_ALL * advice.whole_ns as f64
    };
    advice.retain(is_worth);
    sort(&mut advice);
    advice.extend(adviser.calibrate());
    advice
}

impl Adviser<'_> {
    fn savings(&self, case: &Case<'_>) -> impl Iterator<Item = Advice> {
        let whole = case.totals.lane().and_then(|lane| self.alone(lane, case.key.0));
        let both = whole.map(|whole| [self.pin(case, whole), self.other_method(case, whole)]);
        both.into_iter().flatten().flatten()
    }

    /// Returns how long transfers of a direction lasted in all, if their times tell the rates of each path: spans of one include waiting for
    /// an engine that another one uses.
    fn alone(&self, lane: (ClockId, DeviceId), path: TransferPath) -> Option<u64> {
        let (clock, device) = lane;
        let direction = Direction::of_path(device, path);
        self.copies.get(&device).filter(|copies| copies.are_known())?;
        let all = self.timed.lanes.get(&(clock, device, direction))?.summary();
        let is_of_lane = |case: &&Case<'_>| {
            case.totals.lane() == Some(lane) && Direction::of_path(device, case.key.0) == direction
        };
        let times = self.cases.iter().filter(is_of_lane).map(|case| case.took_ns);
        let sum = times.fold(0_u64, u64::saturating_add);
        (!all.is_cut && sum as f64 <= all.union as f64 * (1.0 + LEAST)).then_some(all.whole)
    }

    fn pin(&self, case: &Case<'_>, whole: u64) -> Option<Advice> {
        let (mut path, _, class) = case.key;
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
        let (would_take, basis) = measured.or_else(|| self.scaled(case, costs()?))?;
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
            Some((self.scaled(case, best)?, other))
        })?;
        self.saving(case, AdviceKind::UseMethod(best), whole, would_take, basis)
    }

    /// Returns the transfers that took longest compared with the built-in table, if they took much longer.
    fn calibrate(&self) -> Option<Advice> {
        let is_longer = |case: &&Case<'_>| {
            let TimedTotals { transfers, built_in, predicted_ns, unusual, .. } = case.totals;
            // Predictions are those of transfers that are alone.
            let is_alone = case.at_once <= 1.0 + LEAST;
            built_in == transfers
                && *unusual == 0
                && self.own_cost(case.key).is_none()
                && is_alone
                && case.took_ns as f64 > *predicted_ns as f64 * OFF
        };
        let excess = |case: &&Case<'_>| case.took_ns - case.totals.predicted_ns;
        let case = self.cases.iter().filter(is_longer).max_by_key(excess)?;
        let whole = case.totals.lane().and_then(|lane| self.alone(lane, case.key.0))?;
        Some(self.of(case, AdviceKind::Calibrate { predicted_ns: case.totals.predicted_ns }, whole))
    }

    fn lists(&self, path: TransferPath, totals: &RunTotals) -> Option<Advice> {
        let RunTotals { runs, transfers, bytes, busy, .. } = totals;
        let (pieces, summary) = (transfers / runs, busy.summary());
        let took_ns = Some(summary.union).filter(|_| !summary.is_cut)?;
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
    fn scaled(&self, case: &Case<'_>, (time, basis): (Duration, CostBasis)) -> Option<(u64, AdviceBasis)> {
        let TimedTotals { transfers, bytes, .. } = case.totals;
        let would_take = match self.own_cost(case.key).map(|model| model.predict(bytes / transfers)) {
            Some(own) if own.is_zero() => return None,
            Some(own) => case.took_ns as f64 * (time.as_secs_f64() / own.as_secs_f64()),
            None => time.as_nanos() as f64 * *transfers as f64,
        };
        Some((would_take as u64, AdviceBasis::Costs(basis)))
    }

    /// Returns the cost of a method on a path, if it was measured or set.
    fn own_cost(&self, (path, method, _): PathKey) -> Option<&CostModel> {
        let is_own = |(cost, basis): &&(PathCost, CostBasis)| {
            (cost.path, cost.method) == (path, method) && *basis > CostBasis::BuiltIn
        };
        self.costs.paths.iter().find(is_own).map(|(cost, _)| &cost.model)
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
        let Case { key: (path, method, _), totals, took_ns, .. } = *case;
        Advice {
            kind,
            buffer: None,
            path: Some(path),
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

/// Returns what copies would save on queues of their own: they run while their link is idle, as far as it was idle for long enough.
fn idle_link(link: &IdleLink<'_>, all_bytes: u64) -> Advice {
    let IdleLink { path, queued, idle_ns, whole_ns, .. } = *link;
    Advice {
        kind: AdviceKind::UseIdleLink { idle_ns },
        buffer: None,
        path: Some(path),
        method: None,
        transfers: queued.copies,
        bytes: queued.bytes,
        share: (queued.bytes as f64 / all_bytes.max(queued.bytes) as f64).min(1.0),
        took_ns: queued.took_ns,
        whole_ns,
        saving_ns: Some(idle_ns.min(queued.took_ns)),
        basis: Some(AdviceBasis::Engines),
        simulated: queued.is_simulated,
    }
}

/// Returns what the transfers would have taken at the rate of others, if these are of about the same size, and no more of them ran at once. Those in place do not
/// count: they wait for kernels.
fn transfers_like(case: &Case<'_>, other: &Case<'_>) -> Option<(u64, AdviceBasis)> {
    if other.key.1 == TransferMethod::ZeroCopy || other.at_once > case.at_once * (1.0 + LEAST) {
        return None;
    }
    let mean = |case: &Case<'_>| case.totals.bytes as f64 / case.totals.transfers as f64;
    let ratio = mean(case) / mean(other);
    let time = other.took_ns as f64 * (case.totals.bytes as f64 / other.totals.bytes as f64);
    (0.5..=2.0).contains(&ratio).then_some((time as u64, AdviceBasis::Transfers(other.totals.transfers)))
}

/// What saves most comes first.
pub(crate) fn sort(advice: &mut [Advice]) {
    advice.sort_by_key(|advice| Reverse(advice.saving_ns));
}

#[cfg(test)]
mod tests {
    use transload_core::{ListModel, ListTime, Place, TransferId, TransferReport, Wanted};

    use super::*;
    use crate::timed_transfers::Ran;

    /// Returns the advice on a transfer of pageable memory that took from 0 to 400 ns, and one of pinned memory that began at `begin` and took
    /// 100 ns.
    fn advice(begin: i64) -> Vec<Advice> {
        advice_of(&[vec![(0, 400)], vec![(begin, begin + 100)]])
    }

    /// Returns the advice on transfers of pageable memory, and of pinned memory, that took from and to these times.
    fn advice_of([pageable, pinned]: &[Vec<(i64, i64)>; 2]) -> Vec<Advice> {
        let (gpu, clock) = (DeviceId::Other("gpu", 0), ClockId::next());
        let mut timed = TimedTransfers::default();
        let of_kind = |kind, spans: &[(i64, i64)]| spans.iter().map(move |it| (kind, it.0, it.1)).collect();
        let both: [Vec<_>; 2] =
            [of_kind(MemoryKind::Pageable, pageable), of_kind(MemoryKind::Pinned, pinned)];
        for (kind, begin, end) in both.concat() {
            let path =
                TransferPath::new(Place::new(DeviceId::Cpu, kind), Place::new(gpu, MemoryKind::Device));
            let mut report = TransferReport::planned(path, TransferMethod::DirectCopy, gpu, 1000);
            report.predicted = Duration::from_micros(1);
            let id = TransferId::if_wanted(Wanted::Times).unwrap();
            // Its operation may be known first.
            timed.operated(id, (1000, 1), Ran { clock, begin, end, host: None });
            timed.submitted(id, &report, 0);
        }
        let copies = BTreeMap::from([(gpu, Copies::default())]);
        advise(&timed, &copies, &KnownCosts::default(), [].into_iter())
    }

    #[test]
    fn paths_that_ran_at_once_have_no_saving() {
        let [advice_apart] = &advice(1000)[..] else { panic!() };
        assert_eq!((advice_apart.saving_ns, advice_apart.whole_ns), (Some(300), 1100));
        assert!(advice(100).is_empty(), "the spans include waiting for each other");
    }

    #[test]
    fn rate_of_transfers_that_ran_at_once_is_not_that_of_each() {
        // Each of pinned memory as long as the one of pageable memory, at once.
        let of = |pinned: &[(i64, i64)]| advice_of(&[&[(0, 400)], pinned].map(|spans| spans.to_vec()));
        assert!(of(&[(1000, 1400), (1000, 1400)]).is_empty(), "twice the rate, together");
        assert_eq!(of(&[(1000, 1100), (1100, 1200)]).len(), 1);
    }

    #[test]
    fn pauses_of_the_program_between_transfers_are_no_saving_of_a_list() {
        let (gpu, clock) = (DeviceId::Other("gpu", 0), ClockId::next());
        let at = |device, kind| Place::new(device, kind);
        let path = TransferPath::new(at(DeviceId::Cpu, MemoryKind::Pinned), at(gpu, MemoryKind::Device));
        let mut timed = TimedTransfers::default();
        let ids: Vec<_> = (0..8).map(|_| TransferId::if_wanted(Wanted::Times).unwrap()).collect();
        for (id, begin) in ids.iter().zip((0_i64..).step_by(1_000_000_000)) {
            // Each takes 2 µs on the host, and as much on the device, once in a second.
            let mut report = TransferReport::planned(path, TransferMethod::DirectCopy, gpu, 1000);
            report.submitting = Some(Duration::from_micros(2));
            timed.runs.submitted(*id, &report, 1, false);
            timed.submitted(*id, &report, 0);
            let ran = Ran { clock, begin, end: begin + 2000, host: None };
            timed.operated(*id, (1000, 1), ran);
        }
        ids.iter().for_each(|id| timed.runs.ended(*id));
        let time = |pieces| ListTime { pieces, bytes: 1000, time: Duration::from_micros(4 + pieces) };
        let model = ListModel::through(&[time(4), time(8)]).unwrap();
        let list = ListCost { path, way: ListWay::CopyEngine, exclusive: false, model };
        let costs = KnownCosts { paths: Vec::new(), lists: vec![(list, CostBasis::Measured)] };
        let copies = BTreeMap::from([(gpu, Copies::default())]);
        let advice = advise(&timed, &copies, &costs, [].into_iter());
        assert!(advice.iter().all(|advice| advice.took_ns <= 32_000), "8 times 4 µs: {advice:?}");
    }
}
