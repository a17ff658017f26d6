//! Transfers in one piece of which every operation was timed.

use std::collections::BTreeMap;

use transload_core::{ClockId, CostBasis, DeviceId, TransferId, TransferMethod, TransferReport};

use crate::{
    Direction,
    busy::BusyTime,
    collector::PathKey,
    recent::Recent,
    runs::Runs,
    statistics::{Room, Times},
};

/// When something ran, by one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) clock: ClockId,
    pub(crate) begin: i64,
    pub(crate) end: i64,
    /// When it began by the host's clock, in nanoseconds since the profiler was made; `None` if the clock is not related to that.
    pub(crate) host: Option<i64>,
}

impl Ran {
    /// Returns the span over both; `None` if they have different clocks.
    pub(crate) fn joined(self, other: Self) -> Option<Self> {
        let (begin, end) = (self.begin.min(other.begin), self.end.max(other.end));
        let host = self.host.zip(other.host).map(|(one, two)| one.min(two));
        (self.clock == other.clock).then_some(Self { begin, end, host, ..self })
    }
}

#[derive(Default)]
struct Open {
    submitted: Option<Submitted>,
    /// How many bytes its operations move in all.
    to_move: u64,
    bytes: u64,
    ran: Option<Ran>,
    /// Whether its operations have several clocks, or several pieces, whose rate is theirs.
    is_split: bool,
}

struct Submitted {
    key: PathKey,
    lane: DeviceId,
    begun: i64,
    bytes: u64,
    predicted_ns: u64,
    is_usual: bool,
    is_simulated: bool,
    basis: CostBasis,
}

/// The timed transfers of one path, method and class of size. All have one clock.
#[derive(Default)]
pub(crate) struct TimedTotals {
    clock: Option<(ClockId, DeviceId)>,
    pub(crate) is_simulated: bool,
    pub(crate) transfers: u64,
    /// Those by another clock or device.
    pub(crate) left_out: u64,
    pub(crate) bytes: u64,
    /// Those whose method was chosen for another reason than its predicted time on an idle device.
    pub(crate) unusual: u64,
    /// Those of which the built-in table predicted the time.
    pub(crate) built_in: u64,
    pub(crate) predicted_ns: u64,
    pub(crate) waiting: Times,
    pub(crate) running: Times,
    pub(crate) busy: BusyTime,
}

#[derive(Default)]
pub(crate) struct TimedTransfers {
    /// Until all of their operations are known.
    open: Recent<TransferId, Open>,
    pub(crate) runs: Runs,
    pub(crate) totals: BTreeMap<PathKey, TimedTotals>,
    /// Time in which any of them ran, by the device that did the work, and its clock: those that `totals` have.
    pub(crate) lanes: BTreeMap<(ClockId, DeviceId, Direction), BusyTime>,
    /// For their distributions.
    room: Room,
}

impl TimedTransfers {
    pub(crate) fn new(room: Room) -> Self {
        Self { room, ..Self::default() }
    }

    /// Takes that no time of a clock is to come, of which nothing is kept if it is not reported.
    pub(crate) fn finish(&mut self, gone: ClockId, is_reported: bool) {
        self.lanes.retain(|(clock, ..), busy| {
            if *clock == gone {
                busy.finish();
            }
            *clock != gone || is_reported
        });
    }

    /// Takes a submission, begun so many nanoseconds since the profiler was made, which may come after its operations; not that of a copy that the
    /// submitting call made, which has none.
    pub(crate) fn submitted(&mut self, id: TransferId, report: &TransferReport, begun: i64) {
        let submitted = Submitted {
            key: (report.path, report.method, report.size_class()),
            lane: report.lane,
            begun,
            bytes: report.bytes,
            predicted_ns: crate::clock_map::nanoseconds(report.predicted),
            is_usual: !report.explored && report.queued == 0,
            is_simulated: report.simulated,
            basis: report.basis,
        };
        let moves_twice = moves_twice(report);
        let open = self.open(id);
        // Of a list nothing is predicted, and its pieces may be operations of their own.
        open.is_split |= moves_twice || report.chunks > 1 && report.predicted.is_zero();
        open.to_move = if moves_twice { report.bytes.saturating_mul(2) } else { report.bytes };
        open.submitted = Some(submitted);
        self.count(id);
    }

    /// Takes an operation of a transfer.
    pub(crate) fn operated(&mut self, id: TransferId, (bytes, pieces): (u64, u32), ran: Ran) {
        let open = self.open(id);
        open.bytes = open.bytes.saturating_add(bytes);
        let joined = open.ran.map_or(Some(ran), |before| before.joined(ran));
        open.is_split |= joined.is_none() || pieces > 1;
        open.ran = joined.or(open.ran);
        self.count(id);
    }

    fn open(&mut self, id: TransferId) -> &mut Open {
        self.open.get_or_insert(id, Open::default)
    }

    /// Counts a transfer once all of its bytes were moved by timed operations. One that moves them twice, or by several clocks, is left out.
    fn count(&mut self, id: TransferId) {
        let is_known = |open: &Open| open.submitted.is_some() && open.bytes >= open.to_move;
        if !self.open.get_mut(id).is_some_and(|open| is_known(open)) {
            return;
        }
        let Some(Open { submitted: Some(submitted), bytes, ran: Some(ran), is_split: false, .. }) =
            self.open.remove(id)
        else {
            return;
        };
        let Submitted { key, lane, begun, predicted_ns, is_usual, is_simulated, basis, .. } = submitted;
        let number = self.totals.len();
        let busy = || TimedTotals { busy: BusyTime::of_nth(number), ..TimedTotals::default() };
        let totals = self.totals.entry(key).or_insert_with(busy);
        if bytes != submitted.bytes {
            return;
        }
        if *totals.clock.get_or_insert((ran.clock, lane)) != (ran.clock, lane) {
            totals.left_out += 1;
            return;
        }
        totals.transfers += 1;
        totals.bytes = totals.bytes.saturating_add(bytes);
        totals.unusual += u64::from(!is_usual);
        totals.built_in += u64::from(basis == CostBasis::BuiltIn);
        totals.is_simulated |= is_simulated;
        totals.predicted_ns = totals.predicted_ns.saturating_add(predicted_ns);
        totals.running.add((ran.end - ran.begin).max(0).cast_unsigned(), &self.room);
        let waited = ran.host.map(|host| (host - begun).max(0).cast_unsigned());
        waited.into_iter().for_each(|waited| totals.waiting.add(waited, &self.room));
        totals.busy.add(ran.begin, ran.end);
        let of_lane = (ran.clock, lane, Direction::of_path(lane, key.0));
        self.lanes.entry(of_lane).or_default().add(ran.begin, ran.end);
        self.runs.timed(id, ran);
    }
}

/// Returns whether the bytes of a transfer move by two operations, each of which has as many as the whole: through memory of the device or the
/// host, or after a prefetch.
fn moves_twice(report: &TransferReport) -> bool {
    let is_between_devices = !report.path.src.device.is_cpu() && !report.path.dst.device.is_cpu();
    let is_in_two = matches!(report.method, TransferMethod::HostStaged | TransferMethod::UnifiedMemory);
    report.through_device || is_between_devices && is_in_two
}

impl TimedTotals {
    /// Returns the device that did the work, and its clock.
    pub(crate) fn lane(&self) -> Option<(ClockId, DeviceId)> {
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use transload_core::{MemoryKind, Place, TransferPath, Wanted};

    use super::*;

    #[test]
    fn transfer_whose_bytes_move_twice_has_no_time_of_one_of_both() {
        let (gpu, clock) = (DeviceId::Other("gpu", 0), ClockId::next());
        let path =
            TransferPath::new(Place::new(gpu, MemoryKind::Unified), Place::new(gpu, MemoryKind::Device));
        let timed = |method| {
            let mut timed = TimedTransfers::default();
            let id = TransferId::if_wanted(Wanted::Times).unwrap();
            timed.submitted(id, &TransferReport::planned(path, method, gpu, 1000), 0);
            // A prefetch of what is there, before the copy.
            timed.operated(id, (1000, 1), Ran { clock, begin: 0, end: 5, host: None });
            timed.operated(id, (1000, 1), Ran { clock, begin: 5, end: 500, host: None });
            (timed.totals.len(), timed.open.keys().count())
        };
        // After the first operation of the one copy nothing is expected of it.
        assert_eq!([TransferMethod::DirectCopy, TransferMethod::UnifiedMemory].map(timed), [(1, 1), (0, 0)]);
    }
}
