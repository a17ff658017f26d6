//! The reports of what the collector keeps.

use std::collections::{BTreeMap, BTreeSet};

use transload_core::{DeviceId, KnownCosts, OperationSampling, TimelineId};

use super::{Collector, PathTimes};
use crate::{
    Advice,
    adviser::{self, Copies},
    report::{ClockReport, DirectionReport, GapReport, PathReport, ProfilerReport},
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
        let mut advice = adviser::advise(&self.timed, &copies, costs, self.engines.idle_links());
        advice.extend(self.engines.migrations.advice());
        advice.extend(self.idle_pinned.advice());
        adviser::sort(&mut advice);
        advice
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
        let directions = self.directions.iter().map(|((device, direction, clock), (timed_bytes, busy))| {
            let busy = busy.summary();
            let map = self.clocks.get(clock).map(|known| &known.map).filter(|map| !map.is_unrelated());
            let all_timed = all_timed(*device);
            let gaps = busy.gaps.iter().filter(|_| all_timed).map(|gap| GapReport {
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
                waiting: timed.waiting.report(),
                running: timed.running.report(),
                timed_bytes: timed.bytes,
                busy_ns: timed.busy.summary().union,
            }
        });
        let outstanding = self.outstanding();
        let (paths, clocks) = (paths.collect(), self.clock_reports().collect());
        let advice = self.advice(costs);
        let (engines, engine_records_lost) = (self.engines.reports(), self.engines.lost());
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
