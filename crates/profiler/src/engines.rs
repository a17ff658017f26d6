//! What engines did, by a driver's own records, and to which timed operations it belongs.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::{Duration, Instant},
};

use transload_core::{
    DeviceId, Engine, EngineRecord, EngineRecording, EngineTask, EngineWork, OperationId, OperationInfo,
    OperationKind, Result, TransferId, TransferPath,
};

use crate::{
    busy::BusyTime,
    clock_map::{ClockMap, HostInstant, since as since_origin},
    idle_links::{IdleLink, IdleLinks},
    inbox::QueueKey,
    migrations::Migrations,
    pending::Enqueued,
    report::{Direction, EngineReport, GapReport},
    statistics::Room,
    stream::KindTimes,
    timeline::{DrawnMigration, DrawnWork, TimelineTrace},
};

#[cfg(test)]
#[path = "../tests/unit/engines.rs"]
mod tests;

/// Time between two requests for records, each of which takes milliseconds.
const INTERVAL: Duration = Duration::from_millis(100);
/// Requests, and time, after which work that no call is known for belongs to nobody here, and an operation has no records.
const PATIENCE: u64 = 3;
const PATIENCE_TIME: Duration = Duration::from_secs(10);
/// Calls whose operations are kept, and work that waits for its call.
const CALLS: usize = 1 << 15;
/// What an event span may differ by from the exact one to agree with it, and in hundredths of that.
const AGREEMENT: (u64, u64) = (2_000, 100);

struct Recorded {
    recording: Box<dyn EngineRecording>,
    simulated: bool,
    map: ClockMap,
    /// Records that were lost, by this recording.
    lost: u64,
}

/// A timed operation whose records are not complete.
struct Timed {
    /// Of which stream and kind, for what is accounted.
    operation: TimedOperation,
    /// What its events tell, and since when it is known.
    ran: Option<(EventSpans, Since)>,
    exact: Option<Exact>,
}

/// A moment, and how many requests had been made.
#[derive(Clone, Copy)]
struct Since {
    requests: u64,
    at: Instant,
}

/// What is known of an operation's work.
#[derive(Clone, Copy)]
struct Exact {
    /// From the first begin to the last end.
    span: (i64, i64),
    /// Of which recording.
    recording: usize,
    /// Whether all of it is a copy engine's.
    is_copied: bool,
    /// The request that told the last of it.
    request: u64,
}

#[derive(Clone, Copy)]
struct TimedOperation {
    queue: QueueKey,
    info: OperationInfo,
    transfer: Option<TransferId>,
    submitted: Instant,
}

/// Nanoseconds up to the end of an operation, by its events.
#[derive(Clone, Copy)]
pub(crate) struct EventSpans {
    /// Since the stream reached it.
    pub(crate) ran: u64,
    /// Since the last wait of its stream for another one before it ended, if there was one.
    pub(crate) since_wait: Option<u64>,
}

#[derive(Default)]
struct EngineTotals {
    spans: u64,
    bytes: u64,
    busy: BusyTime,
}

/// When records are requested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    IfDue,
    Now,
    /// At once, and all: no more are waited for.
    Last,
}

/// An operation whose exact span is known.
pub(crate) struct ExactOperation {
    pub(crate) queue: QueueKey,
    pub(crate) kind: OperationKind,
    exact: u64,
    ran: u64,
}

impl ExactOperation {
    /// Adds it to the times of its stream's kind.
    pub(crate) fn add_to(&self, kind: &mut KindTimes, room: &Room) {
        kind.exact.add(self.exact, room);
        let (absolute, hundredths) = AGREEMENT;
        kind.agreeing += u64::from(self.ran.abs_diff(self.exact) <= absolute + self.exact / hundredths);
    }
}

/// How long records are waited for.
#[derive(Clone, Copy)]
struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(PATIENCE_TIME)
    }
}

impl Since {
    fn is_over(&self, requests: u64, patience: Patience) -> bool {
        requests - self.requests >= PATIENCE && self.at.elapsed() >= patience.0
    }
}

/// Recordings of backends, and what is known by them.
#[derive(Default)]
pub(crate) struct Engines {
    recordings: Vec<Recorded>,
    /// Operations by driver call, whose numbers begin again after 2^32, and the same in order.
    calls: BTreeMap<u64, OperationId>,
    in_order: VecDeque<(u64, OperationId)>,
    timed: BTreeMap<OperationId, Timed>,
    /// Work whose operation is not known, with its recording, and its begin and end by the host's clock when it came: it may wait for long.
    waiting: VecDeque<(Since, usize, EngineWork, [HostInstant; 2])>,
    totals: BTreeMap<(DeviceId, Direction, Option<Engine>), EngineTotals>,
    requests: u64,
    patience: Patience,
    last: Option<Instant>,
    /// Records that did not come, and those that recordings that ended had lost.
    lost: u64,
    /// The clock of a recording that ended.
    former: Option<ClockMap>,
    /// Whether a recording began after another one had ended, so that what was done between is not known.
    was_paused: bool,
    /// Whether the records' clock, the host's time of day, was set, so that their places are not known.
    was_set: bool,
    /// The recording of which each device's records are taken, of work and of migrations: two of one device have the same ones.
    sources: BTreeMap<(DeviceId, bool), usize>,
    links: IdleLinks,
    pub(crate) migrations: Migrations,
    /// Devices with operations that were in flight when a recording ended, whose records are missing.
    unfinished: BTreeSet<DeviceId>,
    /// Why migrations are not recorded.
    pub(crate) without_migrations: Option<String>,
    origin: Option<Instant>,
}

impl Engines {
    /// Begins to request the records of a recording, of devices that are simulated or not.
    pub(crate) fn add(
        &mut self,
        recording: Box<dyn EngineRecording>,
        simulated: bool,
        origin: Instant,
    ) -> Result<()> {
        let map = ClockMap::new(recording.clock().clone(), origin)?;
        self.origin = Some(origin);
        self.was_paused |= self.former.is_some();
        self.without_migrations = recording.records_migrations().err().map(|error| error.to_string());
        self.recordings.push(Recorded { recording, simulated, map, lost: 0 });
        Ok(())
    }

    fn now(&self) -> Since {
        Since { requests: self.requests, at: Instant::now() }
    }

    pub(crate) fn is_recording(&self) -> bool {
        !self.recordings.is_empty()
    }

    /// Ends all recordings. What is known stays.
    pub(crate) fn stop(&mut self) -> Vec<Box<dyn EngineRecording>> {
        self.lost = self.lost();
        let in_flight: Vec<_> = self.in_flight().collect();
        self.unfinished.extend(in_flight);
        self.timed.clear();
        self.waiting.clear();
        self.sources.clear();
        let stopped =
            mem::take(&mut self.recordings).into_iter().map(|Recorded { recording, map, .. }| {
                self.former = Some(map);
                recording
            });
        stopped.collect()
    }

    /// Takes a timed operation that was enqueued by `submitted`. Of more than `capacity`, the oldest are lost: their records may still come.
    pub(crate) fn enqueued(
        &mut self,
        id: Option<OperationId>,
        operation: &Enqueued,
        submitted: Instant,
        capacity: usize,
    ) {
        let Some(id) = id.filter(|_| self.is_recording()) else { return };
        if self.timed.len() >= capacity {
            let lost =
                self.timed.pop_first().is_some_and(|(_, timed)| has_records(timed.operation.info.kind));
            self.lost += u64::from(lost);
        }
        let Enqueued { queue, info, transfer, .. } = operation;
        let (queue, info, transfer) = (*queue, *info, *transfer);
        let operation = TimedOperation { queue, info, transfer, submitted };
        self.timed.insert(id, Timed { operation, ran: None, exact: None });
    }

    /// Takes how long an operation ran by its stamps; `None` if that will not be known.
    pub(crate) fn ended(&mut self, id: Option<OperationId>, ran: Option<EventSpans>) {
        let Some(id) = id else { return };
        match ran {
            None => _ = self.timed.remove(&id),
            Some(ran) => {
                let since = self.now();
                self.timed.get_mut(&id).into_iter().for_each(|timed| timed.ran = Some((ran, since)));
            }
        }
    }

    /// Requests records if that is due, or at once. Returns the operations whose exact spans are known since.
    pub(crate) fn collect(
        &mut self,
        request: Request,
        mut trace: Option<&mut TimelineTrace>,
    ) -> Vec<ExactOperation> {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if self.recordings.is_empty() || !(request != Request::IfDue || is_due) {
            return Vec::new();
        }
        let mut known = self.collect_once(request, trace.as_deref_mut());
        if request == Request::Now {
            // What the first one told last is settled by the second.
            known.extend(self.collect_once(request, trace));
        }
        known
    }

    fn collect_once(
        &mut self,
        request: Request,
        mut trace: Option<&mut TimelineTrace>,
    ) -> Vec<ExactOperation> {
        self.last = Some(Instant::now());
        self.requests += 1;
        let (mut records, since) = (Vec::new(), self.now());
        for (index, recorded) in self.recordings.iter_mut().enumerate() {
            // A library that fails has lost some.
            let lost = recorded.recording.take(&mut records, request == Request::Last).unwrap_or(1);
            recorded.lost = recorded.lost.saturating_add(lost);
            // After its records, all of which it covers.
            let _unread = recorded.map.read();
            self.was_set |= recorded.map.is_unrelated();
            for record in records.drain(..) {
                let device = device_of(&record);
                if device.is_some_and(|device| *self.sources.entry(device).or_insert(index) != index) {
                    continue;
                }
                match record {
                    EngineRecord::Called { call, operation } => {
                        self.calls.insert(call, operation);
                        self.in_order.push_back((call, operation));
                        let is_full = self.in_order.len() > CALLS;
                        if let Some((call, operation)) = self.in_order.pop_front_if(|_| is_full)
                            && self.calls.get(&call) == Some(&operation)
                        {
                            self.calls.remove(&call);
                        }
                    }
                    EngineRecord::Worked(work) => {
                        let direction = direction(work.task);
                        self.totals.entry((work.device, direction, work.engine)).or_default().add(&work);
                        let span = [work.begin, work.end].map(|at| recorded.map.convert(at));
                        if work.engine == Some(Engine::Copy) && !recorded.map.is_unrelated() {
                            self.links.used(work.device, direction, (span[0].at, span[1].at));
                        }
                        self.waiting.push_back((since, index, work, span));
                    }
                    EngineRecord::Migrated(migration) => {
                        let (map, simulated) = (&recorded.map, recorded.simulated);
                        let (begin, end) = (map.convert(migration.begin), map.convert(migration.end));
                        let (span, error) = ((begin.at, end.at.max(begin.at)), begin.error);
                        self.migrations.migrated(&migration, span);
                        if let Some(trace) = trace.as_mut() {
                            let buffer = self.migrations.name_of(migration.address);
                            let migration = &migration;
                            trace.migration(&DrawnMigration { migration, buffer, simulated, span, error });
                        }
                    }
                    EngineRecord::Faulted(faults) => {
                        let convert = |at| recorded.map.convert(at).at;
                        let served = faults.served.map(|(begin, end)| (convert(begin), convert(end)));
                        self.migrations.faulted(&faults, served, recorded.simulated);
                    }
                    _ => {}
                }
            }
        }
        let is_last = request == Request::Last;
        self.match_work(&mut trace, is_last);
        self.take_exact(is_last)
    }

    /// Gives work to its operations. Work of others is drawn once no call of it is to come.
    fn match_work(&mut self, trace: &mut Option<&mut TimelineTrace>, all: bool) {
        for _ in 0..self.waiting.len() {
            let Some((since, recording, work, on_host)) = self.waiting.pop_front() else { break };
            let id = self.calls.get(&work.call);
            let timed = id.and_then(|id| self.timed.get_mut(id));
            let is_kept = !all && self.waiting.len() < CALLS;
            if timed.is_none() && is_kept && !since.is_over(self.requests, self.patience) {
                self.waiting.push_back((since, recording, work, on_host));
                continue;
            }
            let transfer = timed.as_ref().and_then(|timed| timed.operation.transfer);
            if let Some(timed) = timed {
                let is_copied = work.engine == Some(Engine::Copy);
                let (span, request) = ((work.begin, work.end), self.requests);
                let known = timed.exact.get_or_insert(Exact { span, recording, is_copied, request });
                known.span = (known.span.0.min(work.begin), known.span.1.max(work.end));
                known.is_copied &= is_copied;
                known.request = request;
            }
            let Some(Recorded { simulated, .. }) = self.recordings.get(recording) else { continue };
            let [begin, end] = on_host;
            let (span, error) = ((begin.at, end.at.max(begin.at)), begin.error);
            let direction = direction(work.task);
            if let Some(trace) = trace.as_mut() {
                let (work, simulated) = (&work, *simulated);
                trace.work(&DrawnWork { work, direction, transfer, simulated, span, error });
            }
        }
    }

    /// Takes the operations whose ends are known, with their exact spans. One request after that of their last records, since more may be in a
    /// buffer that the library still fills; at once if it is the `last`.
    fn take_exact(&mut self, is_last: bool) -> Vec<ExactOperation> {
        let mut known = Vec::new();
        let Self { timed, recordings, links, requests, patience, origin, lost, .. } = self;
        timed.retain(|_, timed| {
            let Timed { operation: TimedOperation { queue, info, submitted, .. }, ran, exact } = *timed;
            let Some((EventSpans { ran, since_wait }, since)) = ran else { return true };
            let Some(Exact { span: (begin, end), recording, is_copied, request }) = exact else {
                let is_over = is_last || since.is_over(*requests, *patience);
                *lost += u64::from(is_over && has_records(info.kind));
                return !is_over;
            };
            let is_settled = *requests > request || transload_core::mutant!("profiler/records-are-settled");
            if !is_settled && !is_last {
                return true;
            }
            let exact = (end - begin).max(0).cast_unsigned();
            known.push(ExactOperation { queue, kind: info.kind, exact, ran });
            if let (true, Some((src, dst)), Some(recorded), Some(origin)) =
                (is_copied, info.path, recordings.get(recording), *origin)
            {
                let span = (recorded.map.convert(begin).at, recorded.map.convert(end).at);
                let copied = (TransferPath::new(src, dst), info.bytes);
                // While its stream waited for another one, it was not the engine that kept it.
                let after_wait = since_wait.map(|ago| span.1.saturating_sub_unsigned(ago));
                let enqueued = since_origin(origin, submitted).max(after_wait.unwrap_or(i64::MIN));
                links.copied((queue.device, queue.simulated), copied, enqueued, span);
            }
            false
        });
        known
    }

    /// Returns the records that are missing for lack of room, since they were not complete, or since they did not come. What a library lost is told
    /// to each of its recordings: the one that lost most counts.
    pub(crate) fn lost(&self) -> u64 {
        let lost = self.recordings.iter().map(|recorded| recorded.lost);
        let most = match transload_core::mutant!("profiler/losses-of-two-recordings") {
            false => lost.max(),
            true => Some(lost.sum()),
        };
        self.lost.saturating_add(most.unwrap_or(0))
    }

    /// Returns why migrations are not recorded, or were not.
    pub(crate) fn without_migrations(&self) -> Option<&str> {
        match self.is_recording() || self.former.is_some() {
            true => self.without_migrations.as_deref(),
            false => Some("no records of engines were requested"),
        }
    }

    /// Returns the largest error of comparing the records' clock with the host's.
    pub(crate) fn clock_error(&self) -> Option<u64> {
        if self.was_set { Some(u64::MAX) } else { self.recordings.iter().map(|it| it.map.error()).max() }
    }

    /// Returns whether nothing is missing from the first record to the last, so that times without one are known.
    fn is_whole(&self) -> bool {
        !self.was_paused && !self.was_set && self.lost() == 0
            || transload_core::mutant!("profiler/engine-gaps-are-known")
    }

    /// Returns the devices of operations whose records may still come.
    fn in_flight(&self) -> impl Iterator<Item = DeviceId> {
        let operations = self.timed.values().map(|timed| &timed.operation);
        let is_engines =
            |it: &&TimedOperation| !matches!(it.info.kind, OperationKind::Wait | OperationKind::Prefetch);
        operations.filter(is_engines).map(|it| it.queue.device)
    }

    /// Returns whether records of a device's timed operations are not there, so that what its engines did up to the last one is not known.
    pub(crate) fn is_in_flight(&self, device: DeviceId) -> bool {
        self.unfinished.contains(&device) || self.in_flight().any(|it| it == device)
    }

    /// Returns the idle links, if they are known.
    pub(crate) fn idle_links(&self) -> impl Iterator<Item = IdleLink<'_>> {
        self.links.idle().filter(|_| self.is_whole())
    }

    pub(crate) fn reports(&self) -> Vec<EngineReport> {
        let map = self.recordings.first().map(|it| &it.map).or(self.former.as_ref());
        let reports = self.totals.iter().map(|((device, direction, engine), totals)| {
            let busy = totals.busy.summary();
            let gaps = busy.gaps.iter().filter(|_| self.is_whole()).map(|gap| GapReport {
                begin_ns: map.map_or(gap.begin, |map| map.convert(gap.begin).at),
                length_ns: gap.length,
            });
            EngineReport {
                device: *device,
                direction: *direction,
                engine: *engine,
                spans: totals.spans,
                bytes: totals.bytes,
                whole_ns: if self.was_set { 0 } else { busy.whole },
                busy_ns: busy.union,
                total_ns: busy.sum,
                is_cut: busy.is_cut || self.was_set,
                gaps: gaps.collect(),
            }
        });
        reports.collect()
    }
}

impl EngineTotals {
    fn add(&mut self, work: &EngineWork) {
        self.spans += 1;
        self.bytes = self.bytes.saturating_add(work.bytes);
        self.busy.add(work.begin, work.end);
    }
}

/// Returns of which device a record is, and whether it is of work; `None` if it is of none.
fn device_of(record: &EngineRecord) -> Option<(DeviceId, bool)> {
    match record {
        EngineRecord::Worked(work) => Some((work.device, true)),
        EngineRecord::Migrated(migration) => Some((migration.device, false)),
        EngineRecord::Faulted(faults) => Some((faults.device.unwrap_or(DeviceId::Cpu), false)),
        _ => None,
    }
}

/// Returns whether each operation of a kind is work of an engine. Prefetches have no record, and a recording may be empty.
pub(crate) fn has_records(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::Copy | OperationKind::Fill | OperationKind::Kernel)
}

fn direction(task: EngineTask) -> Direction {
    match task {
        EngineTask::CopyToDevice => Direction::ToDevice,
        EngineTask::CopyFromDevice => Direction::FromDevice,
        EngineTask::CopyWithin => Direction::Within,
        _ => Direction::Compute,
    }
}
