//! A trace of operations: rows of host threads and of streams, and flows from a submission to what it enqueued.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    io::Write,
};

use transload_core::{
    DeviceId, Engine, EngineTask, EngineWork, Migration, OperationInfo, Result, TimelineId, TransferId,
    TransferPath, TransferReport,
};

use crate::{
    Advice, Argument, Direction, Flow, Slice, TraceFormat, TraceOptions, TraceSummary, TraceWriter, TrackId,
    Unit, counters::Counters, gauges::Value, inbox::QueueKey, open_transfers::EndedTransfer,
    report::engine_name,
};

/// Threads and streams that have rows of their own; those of all others have one together.
const ROWS: usize = 1024;

/// Operations that are kept since others wait for them; of more, the first are forgotten.
const AWAITED: usize = 4096;
/// Set in the numbers of flows from operations to the waits for them: those of transfers are smaller.
const WAIT: u64 = 1 << 63;

/// An operation to be drawn. Times are nanoseconds of the host's clock since the profiler was made.
pub(crate) struct DrawnOperation<'a> {
    pub(crate) queue: QueueKey,
    pub(crate) name: Option<&'a str>,
    pub(crate) info: &'a OperationInfo,
    pub(crate) transfer: Option<TransferId>,
    /// Its point on the queue's timeline.
    pub(crate) point: Option<u64>,
    /// Of a wait, for which point it waits.
    pub(crate) waits_for: Option<(TimelineId, u64)>,
    pub(crate) enqueued: i64,
    pub(crate) span: (i64, i64),
    /// Largest error of the span's place.
    pub(crate) error: u64,
}

/// Work of an engine to be drawn. Times are like an operation's.
pub(crate) struct DrawnWork<'a> {
    pub(crate) work: &'a EngineWork,
    pub(crate) direction: Direction,
    pub(crate) transfer: Option<TransferId>,
    pub(crate) simulated: bool,
    pub(crate) span: (i64, i64),
    pub(crate) error: u64,
}

/// A migration to be drawn. Times are like an operation's.
pub(crate) struct DrawnMigration<'a> {
    pub(crate) migration: &'a Migration,
    pub(crate) buffer: Option<&'a str>,
    pub(crate) simulated: bool,
    pub(crate) span: (i64, i64),
    pub(crate) error: u64,
}

/// A trace that is being written. After a failed write nothing more is written, and [`finish`](Self::finish) returns the error.
pub(crate) struct TimelineTrace {
    writer: TraceWriter<Box<dyn Write + Send>>,
    host: TrackId,
    /// Rows of threads by their numbers, with their names.
    threads: BTreeMap<u64, (TrackId, String)>,
    other_threads: Option<TrackId>,
    devices: BTreeMap<DeviceId, TrackId>,
    streams: BTreeMap<TimelineId, TrackId>,
    other_streams: BTreeMap<DeviceId, TrackId>,
    engines: BTreeMap<(DeviceId, Direction, Option<Engine>), TrackId>,
    migrations: BTreeMap<(DeviceId, Direction), TrackId>,
    /// Rows of whole transfers by path, and their group.
    transfers: Option<TrackId>,
    paths: BTreeMap<TransferPath, TrackId>,
    counters: Counters,
    /// Indices of the counters of devices.
    in_flight: BTreeMap<DeviceId, usize>,
    rates: BTreeMap<(DeviceId, Direction), usize>,
    migrated: BTreeMap<(DeviceId, Direction), usize>,
    /// Flows of operations for which others wait, and these in the order in which that was known: the oldest are forgotten.
    awaited: BTreeMap<(TimelineId, u64), u64>,
    awaited_since: VecDeque<(TimelineId, u64)>,
    waits: u64,
    awaited_text: String,
    text: String,
}

impl TimelineTrace {
    pub(crate) fn new(
        out: Box<dyn Write + Send>,
        format: TraceFormat,
        options: TraceOptions,
    ) -> Result<Self> {
        let mut writer = TraceWriter::new(out, format, options)?;
        let host = writer.track(None, "host threads")?;
        Ok(Self {
            writer,
            host,
            threads: BTreeMap::new(),
            other_threads: None,
            devices: BTreeMap::new(),
            streams: BTreeMap::new(),
            other_streams: BTreeMap::new(),
            engines: BTreeMap::new(),
            migrations: BTreeMap::new(),
            transfers: None,
            paths: BTreeMap::new(),
            counters: Counters::default(),
            in_flight: BTreeMap::new(),
            rates: BTreeMap::new(),
            migrated: BTreeMap::new(),
            awaited: BTreeMap::new(),
            awaited_since: VecDeque::new(),
            waits: 0,
            awaited_text: String::new(),
            text: String::new(),
        })
    }

    /// Draws a transfer's submission on its thread's row.
    pub(crate) fn submission(
        &mut self,
        report: &TransferReport,
        begun: i64,
        thread: u64,
        name: impl FnOnce() -> String,
    ) {
        let took = report.submitting.map_or(0, |took| i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
        let span = (begun, begun.saturating_add(took));
        let _kept = self.thread(thread, name).and_then(|track| self.try_submission(report, span, track));
    }

    fn try_submission(&mut self, report: &TransferReport, span: (i64, i64), track: TrackId) -> Result<()> {
        self.text.clear();
        let _infallible = write!(self.text, "{}", report.path);
        let method = report.method.name();
        let arguments = [
            ("path", Argument::Text(&self.text)),
            ("bytes", Argument::U64(report.bytes)),
            ("method", Argument::Text(method)),
        ];
        let flow = report.id.map(|id| Flow::Start(id.get()));
        let slice =
            Slice { name: "submit", begin: time(span.0), end: time(span.1), flow, arguments: &arguments };
        self.writer.slice(track, &slice)
    }

    /// Draws on its thread's row how an operation was enqueued, at once: the rows of threads have their slices in order.
    pub(crate) fn enqueued(
        &mut self,
        (name, bytes): (&str, u64),
        (begin, end): (i64, i64),
        thread: u64,
        thread_name: impl FnOnce() -> String,
    ) {
        let arguments = [("bytes", Argument::U64(bytes))];
        let slice = Slice { name, begin: time(begin), end: time(end), flow: None, arguments: &arguments };
        let _kept = self.thread(thread, thread_name).and_then(|track| self.writer.slice(track, &slice));
    }

    /// Takes that a queue waits for a point of another one.
    pub(crate) fn awaited(&mut self, point: (TimelineId, u64)) {
        if self.awaited.contains_key(&point) {
            return;
        }
        if self.awaited.len() >= AWAITED
            && let Some(oldest) = self.awaited_since.pop_front()
        {
            self.awaited.remove(&oldest);
        }
        self.waits += 1;
        self.awaited.insert(point, WAIT | self.waits);
        self.awaited_since.push_back(point);
    }

    /// Draws an operation on its stream's row.
    pub(crate) fn operation(&mut self, operation: &DrawnOperation<'_>) {
        let _kept = self.try_operation(operation);
    }

    fn try_operation(&mut self, operation: &DrawnOperation<'_>) -> Result<()> {
        let DrawnOperation { queue, name, info, transfer, point, waits_for, enqueued, span, error } =
            operation;
        let track = self.stream(*queue)?;
        self.text.clear();
        match info.path {
            Some((src, dst)) => write!(self.text, "{src} → {dst}"),
            None => write!(self.text, "{}", queue.device),
        }
        .unwrap_or_default();
        self.awaited_text.clear();
        if let Some((stream, _)) = waits_for {
            let _infallible = write!(self.awaited_text, "stream {stream}");
        }
        let kind = info.kind.name();
        let arguments = [
            ("kind", Argument::Text(kind)),
            ("path", Argument::Text(&self.text)),
            ("bytes", Argument::U64(info.bytes)),
            ("pieces", Argument::U64(info.pieces.into())),
            ("waited_ns", Argument::U64((span.0 - enqueued).max(0).cast_unsigned())),
            ("clock_error_ns", Argument::U64(*error)),
            ("waits_for", Argument::Text(&self.awaited_text)),
        ];
        let arguments = &arguments[..arguments.len() - usize::from(waits_for.is_none())];
        let name = name.unwrap_or(kind);
        let awaited = waits_for.or(point.map(|point| (queue.id, point)));
        let awaited = awaited.and_then(|point| self.awaited.get(&point).copied());
        let flow = match (transfer.map(TransferId::get), awaited) {
            (Some(transfer), Some(awaited)) => Some(Flow::Steps(transfer, awaited)),
            (one, other) => one.or(other).map(Flow::Step),
        };
        let slice = Slice { name, begin: time(span.0), end: time(span.1), flow, arguments };
        self.writer.slice(track, &slice)?;
        self.count(operation)
    }

    /// Draws work of an engine on the row of its direction.
    pub(crate) fn work(&mut self, drawn: &DrawnWork<'_>) {
        let _kept = self.try_work(drawn);
    }

    fn try_work(&mut self, drawn: &DrawnWork<'_>) -> Result<()> {
        let DrawnWork { work, direction, transfer, simulated, span, error } = drawn;
        let key = (work.device, *direction, work.engine);
        let track = match self.engines.get(&key) {
            Some(track) => *track,
            None => {
                let group = self.device(work.device, *simulated)?;
                let name = format!("{}, {direction} (exact)", engine_name(work.engine));
                let track = self.writer.track(Some(group), &name)?;
                *self.engines.entry(key).or_insert(track)
            }
        };
        let arguments = [
            ("bytes", Argument::U64(work.bytes)),
            ("exact_ns", Argument::U64((work.end - work.begin).max(0).cast_unsigned())),
            ("clock_error_ns", Argument::U64(*error)),
        ];
        let name = match work.task {
            EngineTask::Fill => "fill",
            EngineTask::Kernel => "kernel",
            _ => "copy",
        };
        let flow = transfer.map(|id| Flow::Step(id.get()));
        let slice = Slice { name, begin: time(span.0), end: time(span.1), flow, arguments: &arguments };
        self.writer.slice(track, &slice)
    }

    /// Draws a migration of unified memory on the row of its direction.
    pub(crate) fn migration(&mut self, drawn: &DrawnMigration<'_>) {
        let _kept = self.try_migration(drawn);
    }

    fn try_migration(&mut self, drawn: &DrawnMigration<'_>) -> Result<()> {
        let DrawnMigration { migration, buffer, simulated, span, error } = drawn;
        let direction = if migration.to_device { Direction::ToDevice } else { Direction::FromDevice };
        let key = (migration.device, direction);
        let track = match self.migrations.get(&key) {
            Some(track) => *track,
            None => {
                let group = self.device(migration.device, *simulated)?;
                let track = self.writer.track(Some(group), &format!("migrations {direction}"))?;
                *self.migrations.entry(key).or_insert(track)
            }
        };
        let arguments = [
            ("bytes", Argument::U64(migration.bytes)),
            ("cause", Argument::Text(if migration.by_fault { "page fault" } else { "not by a known fault" })),
            ("address", Argument::U64(migration.address)),
            ("clock_error_ns", Argument::U64(*error)),
        ];
        let (name, begin, end) = (buffer.unwrap_or("migration"), time(span.0), time(span.1));
        self.writer.slice(track, &Slice { name, begin, end, flow: None, arguments: &arguments })?;
        let migrated = match self.migrated.get(&key) {
            Some(counter) => *counter,
            None => {
                let group = self.device(migration.device, *simulated)?;
                let name = format!("migrated {direction}, total");
                let id = self.writer.counter(Some(group), &name, Unit::Bytes)?;
                *self.migrated.entry(key).or_insert(self.counters.add(id))
            }
        };
        self.counters.add_up(&mut self.writer, migrated, *span, migration.bytes)
    }

    /// Counts what a device's operation moves: from its enqueueing to its end as in flight, and while it runs as a rate.
    fn count(&mut self, operation: &DrawnOperation<'_>) -> Result<()> {
        let DrawnOperation { queue, info, enqueued, span, .. } = operation;
        let direction = Direction::of(queue.device, info);
        if queue.device.is_cpu() || info.bytes == 0 || direction == Direction::Compute {
            return Ok(());
        }
        let group = self.device(queue.device, queue.simulated)?;
        let in_flight = match self.in_flight.get(&queue.device) {
            Some(counter) => *counter,
            None => {
                let id =
                    self.writer.counter(Some(group), "bytes in flight (timed operations)", Unit::Bytes)?;
                *self.in_flight.entry(queue.device).or_insert(self.counters.add(id))
            }
        };
        let from = span.0.min(*enqueued);
        self.counters.raise(&mut self.writer, in_flight, (from, span.1), info.bytes)?;
        let Some(took) = u64::try_from(span.1 - span.0).ok().filter(|took| *took > 0) else { return Ok(()) };
        let rate = match self.rates.get(&(queue.device, direction)) {
            Some(counter) => *counter,
            None => {
                let name = format!("rate {direction} (timed operations)");
                let id = self.writer.counter(Some(group), &name, Unit::Other("B/s"))?;
                *self.rates.entry((queue.device, direction)).or_insert(self.counters.add(id))
            }
        };
        let per_second = u128::from(info.bytes) * 1_000_000_000 / u128::from(took);
        let per_second = u64::try_from(per_second).unwrap_or(u64::MAX);
        self.counters.raise(&mut self.writer, rate, *span, per_second)
    }

    /// Draws a transfer from its submission to its end, on a row of its path.
    pub(crate) fn transfer(&mut self, ended: &EndedTransfer) {
        let _kept = self.try_transfer(ended);
    }

    fn try_transfer(&mut self, ended: &EndedTransfer) -> Result<()> {
        let EndedTransfer { report, begun, end, seen, is_failed, is_dropped } = ended;
        let track = match self.paths.get(&report.path) {
            Some(track) => *track,
            None => {
                let group = match self.transfers {
                    Some(group) => group,
                    None => *self.transfers.insert(self.writer.track(None, "transfers")?),
                };
                let track = self.writer.track(Some(group), &report.path.to_string())?;
                *self.paths.entry(report.path).or_insert(track)
            }
        };
        let arguments = [
            ("bytes", Argument::U64(report.bytes)),
            ("outcome", Argument::Text(if *is_failed { "failed" } else { "completed" })),
            ("handle", Argument::Text(if *is_dropped { "dropped before the end" } else { "kept" })),
            ("seen_after_ns", Argument::U64((seen - end).max(0).cast_unsigned())),
            ("id", Argument::U64(report.id.map_or(0, TransferId::get))),
        ];
        let (name, begin, end) = (report.method.name(), time(*begun), time(*end));
        self.writer.slice(track, &Slice { name, begin, end, flow: None, arguments: &arguments })
    }

    /// Writes a value that was read.
    pub(crate) fn gauge(&mut self, value: &Value, at: i64) {
        let _kept = self.try_gauge(value, at);
    }

    fn try_gauge(&mut self, read: &Value, at: i64) -> Result<()> {
        let Value { device, name, unit, value, .. } = read;
        let group = device.map(|(device, simulated)| self.device(device, simulated)).transpose()?;
        self.counters.gauge(&mut self.writer, group, (name, *unit), at, *value)
    }

    /// Writes counters up to a time before which nothing more is expected, and everything to the output.
    pub(crate) fn advance(&mut self, to: i64) {
        let _kept = self.counters.advance(&mut self.writer, to).and_then(|()| self.writer.flush());
    }

    fn thread(&mut self, number: u64, name: impl FnOnce() -> String) -> Result<TrackId> {
        if let Some((track, _)) = self.threads.get(&number) {
            return Ok(*track);
        }
        let is_one_of_many =
            self.threads.len() >= ROWS && !transload_core::mutant!("profiler/rows-are-limited");
        if is_one_of_many {
            return match self.other_threads {
                Some(track) => Ok(track),
                None => Ok(*self.other_threads.insert(self.writer.track(Some(self.host), "other threads")?)),
            };
        }
        let mut name = name();
        // A viewer may show rows of one name as one.
        if self.threads.values().any(|(_, known)| *known == name) {
            name = format!("{name} (thread {number})");
        }
        let track = self.writer.track(Some(self.host), &name)?;
        self.threads.insert(number, (track, name));
        Ok(track)
    }

    fn stream(&mut self, key: QueueKey) -> Result<TrackId> {
        let QueueKey { id, priority, .. } = key;
        if let Some(track) = self.streams.get(&id) {
            return Ok(*track);
        }
        let group = self.device(key.device, key.simulated)?;
        if self.streams.len() >= ROWS {
            if let Some(track) = self.other_streams.get(&key.device) {
                return Ok(*track);
            }
            let track = self.writer.track(Some(group), "other streams")?;
            return Ok(*self.other_streams.entry(key.device).or_insert(track));
        }
        let track = self.writer.track(Some(group), &format!("stream {id} ({priority:?})"))?;
        self.streams.insert(id, track);
        Ok(track)
    }

    fn device(&mut self, device: DeviceId, simulated: bool) -> Result<TrackId> {
        if let Some(group) = self.devices.get(&device) {
            return Ok(*group);
        }
        let simulated = if simulated { " (simulated)" } else { "" };
        let group = self.writer.track(None, &format!("{device}{simulated}"))?;
        Ok(*self.devices.entry(device).or_insert(group))
    }

    /// Ends the trace, of which `lost` records are missing for lack of room, and `unfinished` ones since their end is not known. It says why
    /// it is without migrations, if it is.
    pub(crate) fn finish(
        mut self,
        (lost, unfinished): (u64, u64),
        advice: &[Advice],
        without_migrations: Option<&str>,
    ) -> Result<TraceSummary> {
        self.counters.finish(&mut self.writer)?;
        self.writer.miss(lost, unfinished);
        self.writer.lack_migrations(without_migrations);
        self.writer.advise(advice.iter().map(ToString::to_string));
        self.writer.finish()
    }
}

/// Times before the profiler are drawn at its beginning.
fn time(nanoseconds: i64) -> u64 {
    nanoseconds.max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_beyond_many_have_one_row_together() {
        let options = TraceOptions::new();
        let mut trace = TimelineTrace::new(Box::new(Vec::new()), TraceFormat::Perfetto, options).unwrap();
        let threads = 2 * ROWS as u64;
        for number in 0..threads {
            let at = number as i64 * 100;
            trace.enqueued(("copy", 1), (at, at + 50), number, || format!("thread {number}"));
        }
        assert_eq!(trace.threads.len(), ROWS);
        assert_eq!(trace.finish((0, 0), &[], None).unwrap().slices, threads);
    }

    #[test]
    fn threads_of_one_name_have_rows_of_their_own() {
        let options = TraceOptions::new();
        let mut trace = TimelineTrace::new(Box::new(Vec::new()), TraceFormat::Perfetto, options).unwrap();
        for number in [1, 2, 1] {
            trace.enqueued(("copy", 1), (0, 50), number, || "worker".to_owned());
        }
        let names: Vec<_> = trace.threads.values().map(|(_, name)| &name[..]).collect();
        assert_eq!(names, ["worker", "worker (thread 2)"]);
    }
}
