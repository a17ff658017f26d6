//! Resolves the times of operations, off the threads that submit them, and keeps what reports need.

mod reporting;

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Instant,
};

use transload_core::{
    ClockId, DeviceClock, DeviceId, EngineRecording, KnownCosts, OperationKind, OperationRecord, Result,
    SizeClass, TransferId, TransferMethod, TransferPath, TransferReport,
};

use crate::{
    TraceSummary,
    busy::BusyTime,
    clock_map::since,
    engines::{Engines, EventSpans, Request},
    gauges::Value,
    idle_pinned::IdlePinned,
    inbox::{Inbox, Message, NamedOperation, NamedTime, QueueKey, TransferEnd},
    open_transfers::OpenTransfers,
    pending::{Begin, Enqueued, KnownClock, OpenBegin, Pending, Resolved},
    report::{ClockReport, Direction},
    slots::Slots,
    statistics::{Room, Times},
    streams::Streams,
    timed_transfers::{Ran, TimedTransfers},
    timeline::{DrawnOperation, TimelineTrace},
};

/// Path, method and class of size, by which transfers are told apart.
pub(crate) type PathKey = (TransferPath, TransferMethod, SizeClass);

/// Clocks of devices that are gone of which reports are kept, and those of their directions.
pub(crate) const FORMER_CLOCKS: usize = 4096;

/// Nanoseconds by which a record may come later than its operation was enqueued; the counters of a trace wait for it.
const LATE: i64 = 500_000_000;

#[derive(Default)]
struct PathTimes {
    sampled_bytes: u64,
    failed: u64,
    abandoned: u64,
    submitting: Times,
    elapsed: Times,
    moving: Times,
}

/// Everything that one thread at a time keeps.
pub(crate) struct Collector {
    origin: Instant,
    capacity: usize,
    streams: Streams,
    /// Begins of operations that are not ended, and not known.
    open: Vec<Weak<OpenBegin>>,
    /// Timed operations that are not counted yet, by stream and then by clock: at most `capacity`.
    outstanding: usize,
    pending: Slots<Pending>,
    resolved: Slots<Resolved>,
    /// Those of a collection; empty between two.
    ready: Vec<(ClockId, Resolved)>,
    /// For all distributions.
    room: Room,
    clocks: BTreeMap<ClockId, KnownClock>,
    /// Clocks of devices that are gone.
    former_clocks: Vec<ClockReport>,
    /// Two backends of one device have two clocks.
    directions: BTreeMap<(DeviceId, Direction, ClockId), (u64, BusyTime)>,
    paths: BTreeMap<PathKey, PathTimes>,
    timed: TimedTransfers,
    /// Whether it was enabled again, so that operations of the time between are not known.
    was_paused: bool,
    transfers: OpenTransfers,
    pub(crate) engines: Engines,
    pub(crate) idle_pinned: IdlePinned,
    pub(crate) trace: Option<TimelineTrace>,
    /// Records that were lost before it began.
    lost_before: u64,
}

impl Collector {
    pub(crate) fn new(origin: Instant, capacity: usize) -> Self {
        let room = Room::default();
        Self {
            origin,
            capacity,
            streams: Streams::new(room.clone()),
            open: Vec::new(),
            outstanding: 0,
            pending: Slots::default(),
            resolved: Slots::default(),
            ready: Vec::new(),
            clocks: BTreeMap::new(),
            former_clocks: Vec::new(),
            directions: BTreeMap::new(),
            paths: BTreeMap::new(),
            timed: TimedTransfers::new(room.clone()),
            room,
            was_paused: false,
            transfers: OpenTransfers::default(),
            engines: Engines::default(),
            idle_pinned: IdlePinned::default(),
            trace: None,
            lost_before: 0,
        }
    }

    /// From now on operations are counted. Those before are not known, if any were known before them.
    pub(crate) fn resume(&mut self) {
        self.was_paused |= !self.streams.is_empty() && !transload_core::mutant!("profiler/pauses-are-told");
        self.timed.runs.close();
        self.idle_pinned = IdlePinned::default();
    }

    /// Takes what is in the inbox, and resolves what is complete. With `read`, all clocks are read, so that all of that is in the reports.
    pub(crate) fn collect(&mut self, inbox: &Inbox, read: bool) {
        let now = since(self.origin, Instant::now());
        // Not what comes meanwhile: threads may submit faster than this takes it.
        for message in std::iter::from_fn(|| inbox.pop()).take(inbox.len()) {
            self.take(message, inbox);
        }
        self.clocks.values_mut().for_each(KnownClock::renew);
        self.resolve();
        let is_open =
            |begin: &Weak<OpenBegin>| begin.upgrade().is_some_and(|it| matches!(it.time(), Ok(None)));
        self.open.retain(is_open);
        self.streams.look();
        self.count_resolved(read);
        self.request_records(if read { Request::Now } else { Request::IfDue });
        self.release_clocks();
        let origin = self.origin;
        let ended = self.transfers.ended(|| since(origin, Instant::now()), read);
        let Some(trace) = &mut self.trace else { return };
        ended.iter().for_each(|ended| trace.transfer(ended));
        let pending = self.streams.queues().filter_map(|stream| self.pending.first(&stream.pending));
        let resolved = self.clocks.values().flat_map(|known| self.resolved.iter(&known.resolved));
        let waiting = pending.map(|one| &one.operation).chain(resolved.map(|one| &one.operation));
        let earliest = waiting.map(|operation| since(self.origin, operation.enqueued)).min();
        trace.advance(earliest.unwrap_or(i64::MAX).min(now - LATE));
    }

    /// Drops the clocks of devices that are gone: no time of them is to come, and they would keep the devices' contexts.
    fn release_clocks(&mut self) {
        let is_gone = |known: &KnownClock| {
            known.map.is_last_holder()
                && known.resolved.is_empty()
                && !transload_core::mutant!("profiler/clocks-of-devices-that-are-gone")
        };
        let gone: Vec<_> = self.clocks.extract_if(.., |_, known| is_gone(known)).collect();
        for (id, known) in gone {
            let is_reported = self.former_clocks.len() < FORMER_CLOCKS;
            self.former_clocks.extend(is_reported.then(|| known.map.report()));
            self.timed.finish(id, is_reported);
            self.directions.retain(|(.., clock), (_, busy)| {
                if *clock == id {
                    busy.finish();
                }
                *clock != id || is_reported
            });
        }
    }

    fn count_resolved(&mut self, read: bool) {
        let is_crowded = self.outstanding >= self.capacity / 2;
        let mut ready = std::mem::take(&mut self.ready);
        for known in self.clocks.values_mut() {
            known.take_ready(read, is_crowded, &mut self.resolved, &mut ready);
        }
        // The streams were looked at one after the other.
        ready.sort_unstable_by_key(|(_, resolved)| (resolved.begin, resolved.end));
        self.outstanding = self.outstanding.saturating_sub(ready.len());
        ready.drain(..).for_each(|(clock, resolved)| self.count(clock, &resolved));
        self.ready = ready;
    }

    fn take(&mut self, message: Message, inbox: &Inbox) {
        match message {
            Message::Operation(record, thread) => self.add(record, thread, inbox),
            Message::Begun(begin) => {
                let has_room = self.open.len() < self.capacity
                    && !transload_core::mutant!("profiler/begins-are-followed");
                if let Some(known) = begin.upgrade().filter(|_| has_room) {
                    self.know_clock(known.clock());
                    self.open.push(begin);
                }
            }
            Message::Named(named, thread) => self.add_named(named, thread, inbox),
            Message::Submitted { report, begun, end, thread } => {
                let begun = since(self.origin, begun);
                if let Some(id) = report.id {
                    let is_complete = end.is_none() && report.lane.is_cpu();
                    // Of transfers of which some are not heard, nothing tells whether they follow each other.
                    if inbox.takes_all() {
                        self.timed.runs.submitted(id, &report, thread, is_complete);
                    }
                    if !is_complete {
                        self.timed.submitted(id, &report, begun);
                    }
                }
                if let Some(trace) = &mut self.trace {
                    trace.submission(&report, begun, thread, || inbox.thread_name(thread));
                    if !self.transfers.submitted(report, begun, end, self.capacity) {
                        inbox.lose();
                    }
                }
            }
            Message::Ended(report, end, at) => {
                self.transfers.observed(report.id, end, since(self.origin, at));
                report.id.into_iter().for_each(|id| self.timed.runs.ended(id));
                self.ended(&report, end);
            }
        }
    }

    fn add(&mut self, record: OperationRecord, thread: u64, inbox: &Inbox) {
        let OperationRecord { queue, device, priority, simulated, .. } = record;
        let queue = QueueKey { id: queue, device, priority, simulated };
        // Of one whose times nobody wants there is no submission here, which is another observer's.
        let is_known = |id: &TransferId| {
            id.is_timed() || transload_core::mutant!("profiler/operations-of-others-transfers")
        };
        let transfer = record.transfer.filter(is_known);
        let is_full = self.outstanding >= self.capacity;
        if !is_full && transfer.is_none() {
            let name = record.info.kind.name();
            self.enqueued(
                &queue,
                (name, record.info.bytes),
                (record.enqueued, record.submitted),
                thread,
                inbox,
            );
        }
        self.know_clock(record.begin.clock());
        let Some(stream) = self.streams.entry(queue, inbox) else { return };
        stream.count_for(&record.tally, record.attachment);
        if is_full {
            inbox.lose();
            return;
        }
        let OperationRecord { info, id, point, waits_for, enqueued, submitted, begin, end, .. } = record;
        let operation = Enqueued { queue, name: None, info, transfer, id, point, waits_for, enqueued };
        self.engines.enqueued(id, &operation, submitted, self.capacity);
        self.pending.push(&mut stream.pending, Pending::new(operation, Begin::Stamp(begin), end));
        self.outstanding += 1;
        if let Some(trace) = &mut self.trace {
            self.transfers.enqueued(transfer, self.capacity);
            waits_for.into_iter().for_each(|point| trace.awaited(point));
        }
    }

    /// Draws how an operation of a device, which belongs to no transfer, was enqueued.
    fn enqueued(
        &mut self,
        queue: &QueueKey,
        (name, bytes): (&str, u64),
        (begin, end): (Instant, Instant),
        thread: u64,
        inbox: &Inbox,
    ) {
        if let Some(trace) = self.trace.as_mut().filter(|_| !queue.device.is_cpu()) {
            let span = (since(self.origin, begin), since(self.origin, end));
            trace.enqueued((name, bytes), span, thread, || inbox.thread_name(thread));
        }
    }

    fn add_named(&mut self, named: NamedOperation, thread: u64, inbox: &Inbox) {
        let NamedOperation { queue, name, info, enqueued, submitted, time } = named;
        let is_full = self.outstanding >= self.capacity;
        if let NamedTime::Stamped(begin, _) = &time {
            self.know_clock(begin.clock());
            if !is_full {
                self.enqueued(&queue, (&name, info.bytes), (enqueued, submitted), thread, inbox);
            }
        }
        if self.streams.entry(queue, inbox).is_none() {
            return;
        }
        let Some(times) = self.streams.of(&queue) else { return };
        let kind = &mut times.kinds[info.kind as usize];
        kind.recorded.operations += 1;
        kind.recorded.bytes = kind.recorded.bytes.saturating_add(info.bytes);
        match time {
            NamedTime::Counted => {}
            NamedTime::Given(took) => {
                kind.running.add(crate::clock_map::nanoseconds(took), &self.room);
                kind.given.operations += 1;
                kind.given.bytes = kind.given.bytes.saturating_add(info.bytes);
                kind.timed_bytes = kind.timed_bytes.saturating_add(info.bytes);
            }
            NamedTime::Stamped(..) if is_full => inbox.lose(),
            NamedTime::Stamped(begin, end) => {
                let name = Some(name);
                let (transfer, id, point, waits_for) = (None, None, None, None);
                let operation = Enqueued { queue, name, info, transfer, id, point, waits_for, enqueued };
                if let Some(stream) = self.streams.entry(queue, inbox) {
                    self.pending.push(&mut stream.pending, Pending::new(operation, Begin::Open(begin), end));
                }
                self.outstanding += 1;
            }
        }
    }

    /// Finds what is complete: on each stream up to the first operation that is not.
    fn resolve(&mut self) {
        for stream in self.streams.queues_mut() {
            while let Some(pending) = self.pending.first_mut(&stream.pending) {
                let times = pending.times();
                if matches!(times, Ok(None)) {
                    break;
                }
                let Some(Pending { operation, end: stamp, .. }) = self.pending.pop(&mut stream.pending)
                else {
                    break;
                };
                let known = KnownClock::of(&mut self.clocks, stamp.clock(), self.origin);
                let ran = times.as_ref().ok().and_then(|it| *it);
                let length = |from: i64, to: i64| (to - from).max(0).cast_unsigned();
                let spans = ran.map(|(begin, end)| EventSpans {
                    ran: length(begin, end),
                    since_wait: stream.waited_until.map(|waited| length(waited, end)),
                });
                self.engines.ended(operation.id, spans);
                if let (OperationKind::Wait, Some((_, end))) = (operation.info.kind, ran) {
                    stream.waited_until = Some(end);
                }
                match (times, known) {
                    (Ok(Some((begin, end))), Some(known)) => {
                        self.resolved.push(&mut known.resolved, Resolved { operation, begin, end });
                    }
                    _ => {
                        stream.unresolved += 1;
                        self.outstanding = self.outstanding.saturating_sub(1);
                        self.transfers.operated(operation.transfer, None);
                    }
                }
            }
        }
    }

    /// Has the clock read before the first instant that it is asked for.
    fn know_clock(&mut self, clock: &Arc<dyn DeviceClock>) {
        let _unknown = KnownClock::of(&mut self.clocks, clock, self.origin);
    }

    fn count(&mut self, clock: ClockId, resolved: &Resolved) {
        let Some(KnownClock { map, .. }) = self.clocks.get(&clock) else { return };
        let Resolved { operation, begin, end } = resolved;
        let (begin, end) = (*begin, *end);
        let ran = (end - begin).max(0).cast_unsigned();
        let Enqueued { queue, info, .. } = operation;
        let enqueued = since(self.origin, operation.enqueued);
        let (mut start, mut stop) = (map.convert(begin), map.convert(end));
        if transload_core::mutant!("profiler/device-rows") {
            (start.at, stop.at) = (enqueued, since(self.origin, Instant::now()));
        }
        let is_unrelated = map.is_unrelated();
        if !is_unrelated {
            // Its end stays: what follows it on the stream would overlap it.
            start.at = start.at.saturating_add(start.late_by(enqueued));
        }
        // Virtual time has lengths of its own.
        let stopped = if is_unrelated { start.at.saturating_add(end - begin) } else { stop.at };
        let span = (start.at, stopped.max(start.at));
        if let Some(stream) = self.streams.of(queue) {
            let kind = &mut stream.kinds[info.kind as usize];
            kind.running.add(ran, &self.room);
            kind.timed_bytes = kind.timed_bytes.saturating_add(info.bytes);
            if !is_unrelated {
                kind.waiting.add((start.at - enqueued).max(0).cast_unsigned(), &self.room);
            }
        }
        self.transfers.operated(operation.transfer, Some(span.1).filter(|_| !is_unrelated));
        if let Some(id) = operation.transfer.filter(|_| info.kind.is_transfer()) {
            let host = Some(start.at).filter(|_| !is_unrelated);
            self.timed.operated(id, (info.bytes, info.pieces), Ran { clock, begin, end, host });
        }
        // While it waits, a stream does nothing.
        if info.kind != OperationKind::Wait || transload_core::mutant!("profiler/waits-are-idle") {
            let key = (queue.device, Direction::of(queue.device, info), clock);
            let direction = self.directions.entry(key).or_default();
            direction.0 = direction.0.saturating_add(info.bytes);
            direction.1.add(begin, end);
        }
        if let Some(trace) = &mut self.trace {
            trace.operation(&DrawnOperation {
                queue: *queue,
                name: operation.name.as_deref(),
                info,
                transfer: operation.transfer,
                point: operation.point,
                waits_for: operation.waits_for,
                enqueued,
                span,
                error: start.error.max(stop.error),
            });
        }
    }

    fn ended(&mut self, report: &TransferReport, end: TransferEnd) {
        let times = self.paths.entry((report.path, report.method, report.size_class())).or_default();
        match end {
            TransferEnd::Failed => times.failed += 1,
            TransferEnd::Abandoned => times.abandoned += 1,
            TransferEnd::Completed => {
                times.sampled_bytes = times.sampled_bytes.saturating_add(report.bytes);
                let parts = [
                    (&mut times.submitting, report.submitting),
                    (&mut times.elapsed, report.elapsed),
                    (&mut times.moving, report.moving),
                ];
                for (times, time) in parts {
                    let time = time.map(crate::clock_map::nanoseconds);
                    time.into_iter().for_each(|time| times.add(time, &self.room));
                }
            }
        }
    }

    pub(crate) fn gauge(&mut self, value: &Value) {
        if let Some(trace) = &mut self.trace {
            trace.gauge(value, since(self.origin, value.at));
        }
    }

    /// Has records of engines requested from now on.
    pub(crate) fn record_engines(
        &mut self,
        recording: Box<dyn EngineRecording>,
        simulated: bool,
    ) -> Result<()> {
        self.engines.add(recording, simulated, self.origin)
    }

    pub(crate) fn records_engines(&self) -> bool {
        self.engines.is_recording()
    }

    /// Ends what [`record_engines`](Self::record_engines) began. The recordings are to be dropped without the collector's lock.
    pub(crate) fn stop_engines(&mut self) -> Vec<Box<dyn EngineRecording>> {
        self.request_records(Request::Last);
        self.engines.stop()
    }

    fn request_records(&mut self, request: Request) {
        for operation in self.engines.collect(request, self.trace.as_mut()) {
            let stream = self.streams.of(&operation.queue);
            let kind = stream.map(|it| &mut it.kinds[operation.kind as usize]);
            kind.into_iter().for_each(|kind| operation.add_to(kind, &self.room));
        }
    }

    /// Returns whether anything is expected without new messages, or a trace is being written.
    pub(crate) fn is_waiting(&self) -> bool {
        self.outstanding > 0 || self.trace.is_some()
    }

    /// Returns the number of timed operations whose times are not known.
    fn outstanding(&self) -> u64 {
        self.outstanding as u64
    }

    /// Begins a trace, when so many records were lost.
    pub(crate) fn begin_trace(&mut self, trace: TimelineTrace, lost: u64) {
        self.lost_before = lost.saturating_add(self.engines.lost());
        self.trace = Some(trace);
    }

    /// Ends the trace, if there is one.
    pub(crate) fn finish_trace(&mut self, lost: u64, costs: &KnownCosts) -> Option<Result<TraceSummary>> {
        let transfers = std::mem::take(&mut self.transfers).count();
        let unfinished = self.outstanding() + transfers;
        if self.trace.is_some() {
            self.request_records(Request::Last);
        }
        let advice = self.advice(costs);
        let lost = lost.saturating_add(self.engines.lost()).saturating_sub(self.lost_before);
        let without_migrations = self.engines.without_migrations();
        Some(self.trace.take()?.finish((lost, unfinished), &advice, without_migrations))
    }
}
