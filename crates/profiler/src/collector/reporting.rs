//! The reports of what the collector keeps.

use std::collections::{BTreeMap, BTreeSet};

use transload_core::{DeviceId, KnownCosts, OperationKind, OperationSampling, TimelineId};

use super::{Collector, PathTimes};
use crate::{
    Advice,
    adviser::{self, Copies},
    idle_links::IdleLink,
    report::{ClockReport, DirectionReport, EngineReport, GapReport, PathReport, ProfilerReport},
    stream::Stream,
    stream_report::{StreamReport, timed_share},
    timed_transfers::TimedTotals,
};

impl Collector {
    pub(super) fn advice(&self, costs: &KnownCosts) -> Vec<Advice> {
        let mut copies = BTreeMap::<_, Copies>::new();
        for stream in self.streams.all() {
            for (_, count, times) in stream.kinds().filter(|(kind, ..)| kind.is_transfer()) {
                let copies = copies.entry(stream.key.device).or_default();
                copies.add(count, times.timed());
            }
        }
        // What waits for another stream does not wait for an engine.
        let waits_are_known = |link: &IdleLink<'_>| {
            let mut streams = self.streams.all().filter(|stream| stream.key.device == link.device);
            streams.all(|stream| stream.are_timed(|kind| kind == OperationKind::Wait))
        };
        let links = self.engines.idle_links().filter(waits_are_known);
        let links = links.filter(|link| !self.is_in_flight(link.device));
        let mut advice = adviser::advise(&self.timed, &copies, costs, links);
        advice.extend(self.engines.migrations.advice());
        advice.extend(self.idle_pinned.advice());
        adviser::sort(&mut advice);
        advice
    }

    /// Returns whether timed work of a device is in flight, or its records are, so that the engines' records do not tell what they did meanwhile.
    fn is_in_flight(&self, device: DeviceId) -> bool {
        let mut queues = self.streams.queues();
        self.engines.is_in_flight(device)
            || queues.any(|queue| queue.key.device == device && !queue.pending.is_empty())
    }

    fn engine_reports(&self) -> Vec<EngineReport> {
        let mut reports = self.engines.reports();
        for report in reports.iter_mut().filter(|report| self.is_in_flight(report.device)) {
            report.is_cut = true;
            report.gaps.clear();
        }
        reports
    }

    pub(crate) fn stream_report(
        &self,
        id: TimelineId,
        sampling: OperationSampling,
        lost: u64,
    ) -> Option<StreamReport> {
        self.streams.get(id).map(|stream| self.report_of(stream, sampling, lost))
    }

    fn report_of(&self, stream: &Stream, sampling: OperationSampling, lost: u64) -> StreamReport {
        let clocks = self.clock_reports().filter(|clock| clock.device == stream.key.device).collect();
        stream.report(sampling, lost, clocks)
    }

    fn clock_reports(&self) -> impl Iterator<Item = ClockReport> {
        self.former_clocks.iter().cloned().chain(self.clocks.values().map(|known| known.map.report()))
    }

    pub(crate) fn report(
        &self,
        sampling: OperationSampling,
        lost: u64,
        costs: &KnownCosts,
    ) -> ProfilerReport {
        let streams = self.streams.all().map(|stream| self.report_of(stream, sampling, lost));
        let streams: Vec<_> = streams.collect();
        // Of a queue of which nothing was taken, nothing is known.
        let all_known = lost == 0 && !self.was_paused;
        let all_timed = |device: DeviceId| {
            all_known && self.streams.all().filter(|it| it.key.device == device).all(Stream::is_all_timed)
        };
        let mut clocks_of = BTreeMap::<_, u64>::new();
        for (device, direction, _) in self.directions.keys() {
            *clocks_of.entry((*device, *direction)).or_default() += 1;
        }
        let directions = self.directions.iter().map(|((device, direction, clock), (timed_bytes, busy))| {
            let busy = busy.summary();
            let map = self.clocks.get(clock).map(|known| &known.map).filter(|map| !map.is_unrelated());
            let all_timed = all_timed(*device);
            // What another backend did may be in a gap of this one, by a clock that cannot be compared.
            let is_alone = clocks_of.get(&(*device, *direction)) == Some(&1);
            let gaps = busy.gaps.iter().filter(|_| all_timed && is_alone).map(|gap| GapReport {
                begin_ns: map.map_or(gap.begin, |map| map.convert(gap.begin).at),
                length_ns: gap.length,
            });
            DirectionReport {
                device: *device,
                direction: *direction,
                timed_bytes: *timed_bytes,
                whole_ns: busy.whole,
                busy_ns: busy.union,
                total_ns: busy.sum,
                all_timed,
                is_cut: busy.is_cut,
                gaps: gaps.collect(),
            }
        });
        let directions = directions.collect();
        let (no_times, none_timed) = (PathTimes::default(), TimedTotals::default());
        let keys: BTreeSet<_> = self.paths.keys().chain(self.timed.totals.keys()).collect();
        let paths = keys.into_iter().map(|key @ &(path, method, size_class)| {
            let times = self.paths.get(key).unwrap_or(&no_times);
            let timed = self.timed.totals.get(key).unwrap_or(&none_timed);
            let busy = timed.busy.summary();
            PathReport {
                path,
                method,
                size_class,
                sampled: times.elapsed.report().count,
                sampled_bytes: times.sampled_bytes,
                failed: times.failed,
                abandoned: times.abandoned,
                submitting: times.submitting.report(),
                elapsed: times.elapsed.report(),
                moving: times.moving.report(),
                timed: timed.transfers,
                left_out: timed.left_out,
                waiting: timed.waiting.report(),
                running: timed.running.report(),
                timed_bytes: timed.bytes,
                busy_ns: busy.union,
                is_cut: busy.is_cut,
            }
        });
        let outstanding = self.outstanding();
        let (paths, clocks) = (paths.collect(), self.clock_reports().collect());
        let advice = self.advice(costs);
        let (engines, engine_records_lost) = (self.engine_reports(), self.engines.lost());
        ProfilerReport {
            sampling,
            timed_share: timed_share(streams.iter().flat_map(|stream| &stream.kinds)),
            streams,
            directions,
            engines,
            migrations: self.engines.migrations.reports(),
            without_migrations: self.engines.without_migrations.clone(),
            paths,
            clocks,
            unavailable: Vec::new(),
            lost,
            engine_clock_error_ns: self.engines.clock_error(),
            engine_records_lost,
            outstanding,
            advice,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use transload_core::{
        ClockId, MemoryKind, Place, TransferId, TransferMethod, TransferPath, TransferReport, Wanted,
    };

    use super::*;
    use crate::{
        inbox::{Inbox, Message},
        timed_transfers::Ran,
    };

    const GPU: DeviceId = DeviceId::Other("gpu", 0);

    fn report() -> TransferReport {
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
        let path = TransferPath::new(host, Place::new(GPU, MemoryKind::Device));
        TransferReport::planned(path, TransferMethod::DirectCopy, GPU, 1000)
    }

    #[test]
    fn transfer_that_ends_long_after_later_ones_leaves_no_rate_of_its_path() {
        let (mut collector, clock) = (Collector::new(Instant::now(), 64), ClockId::next());
        let mut after = |spans: &mut dyn Iterator<Item = (i64, i64)>| {
            for (begin, end) in spans {
                let id = TransferId::if_wanted(Wanted::Times).unwrap();
                collector.timed.submitted(id, &report(), 0);
                collector.timed.operated(id, (1000, 1), Ran { clock, begin, end, host: None });
            }
            collector.report(OperationSampling::ALL, 0, &KnownCosts::default()).paths.remove(0)
        };
        let short = after(&mut (0..3000).map(|index| (200 * index, 200 * index + 100)));
        assert_eq!((short.bytes_per_second(), short.is_cut), (Some(1e10), false));
        let with_late = after(&mut [(150, 600_000)].into_iter());
        assert_eq!((with_late.bytes_per_second(), with_late.is_cut), (None, true));
        assert!(with_late.to_string().contains("3001 timed, busy at least "), "{with_late}");
    }

    #[test]
    fn timed_transfers_of_a_second_backend_are_counted_and_left_out() {
        let mut collector = Collector::new(Instant::now(), 64);
        let clocks = [(); 2].map(|()| ClockId::next());
        for clock in [clocks[0], clocks[1], clocks[0], clocks[1], clocks[1]] {
            let id = TransferId::if_wanted(Wanted::Times).unwrap();
            collector.timed.submitted(id, &report(), 0);
            collector.timed.operated(id, (1000, 1), Ran { clock, begin: 0, end: 100, host: None });
        }
        let path = collector.report(OperationSampling::ALL, 0, &KnownCosts::default()).paths.remove(0);
        assert_eq!((path.timed, path.left_out), (2, 3));
        assert!(path.to_string().contains("3 timed by another device or backend are left out"), "{path}");
    }

    #[test]
    fn transfer_is_timed_however_many_copies_the_host_makes_meanwhile() {
        const COPIES: usize = 10_000;
        let (mut collector, clock) = (Collector::new(Instant::now(), 64), ClockId::next());
        let inbox = Inbox::new(2 * COPIES, OperationSampling::ALL);
        let submit = |mut report: TransferReport| {
            let id = TransferId::if_wanted(Wanted::Times).unwrap();
            report.id = Some(id);
            inbox.push(Message::Submitted { report, begun: Instant::now(), end: None, thread: 1 });
            id
        };
        let id = submit(report());
        let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        let within = TransferPath::new(host, host);
        for _ in 0..COPIES {
            submit(TransferReport::planned(within, TransferMethod::DirectCopy, DeviceId::Cpu, 64));
        }
        collector.collect(&inbox, false);
        collector.timed.operated(id, (1000, 1), Ran { clock, begin: 0, end: 100, host: None });
        let [(_, totals)] = &collector.timed.totals.iter().collect::<Vec<_>>()[..] else {
            panic!("not one path was timed");
        };
        assert_eq!(totals.transfers, 1);
    }

    #[test]
    fn run_of_transfers_ends_where_the_profiler_was_disabled() {
        let (mut collector, clock) = (Collector::new(Instant::now(), 64), ClockId::next());
        for at in [0, 100, 200, 300] {
            if at == 200 {
                // Whether the thread saw an end meanwhile is not known.
                collector.resume();
            }
            let (id, runs) = (TransferId::if_wanted(Wanted::Times).unwrap(), &mut collector.timed.runs);
            runs.submitted(id, &report(), 1, false);
            runs.timed(id, Ran { clock, begin: at, end: at + 50, host: None });
        }
        collector.resume();
        let totals = collector.timed.runs.totals.values().map(|it| (it.runs, it.transfers));
        assert_eq!(totals.collect::<Vec<_>>(), [(2, 4)]);
    }
}
