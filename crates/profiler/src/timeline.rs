//! A trace of operations: rows of host threads and of streams, and flows from a submission to what it enqueued.

use std::{collections::BTreeMap, fmt::Write as _, io::Write};

use transload_core::{DeviceId, OperationInfo, Result, TimelineId, TransferId, TransferReport};

use crate::{
    Argument, Flow, Slice, TraceFormat, TraceOptions, TraceSummary, TraceWriter, TrackId, inbox::QueueKey,
};

/// An operation to be drawn. Times are nanoseconds of the host's clock since the profiler was made.
pub(crate) struct DrawnOperation<'a> {
    pub(crate) queue: QueueKey,
    pub(crate) name: Option<&'a str>,
    pub(crate) info: &'a OperationInfo,
    pub(crate) transfer: Option<TransferId>,
    pub(crate) enqueued: i64,
    pub(crate) submitted: i64,
    pub(crate) span: (i64, i64),
    /// Largest error of the span's place.
    pub(crate) error: u64,
    pub(crate) thread: &'a dyn Fn() -> String,
}

/// A trace that is being written. After a failed write nothing more is written, and [`finish`](Self::finish) returns the error.
pub(crate) struct TimelineTrace {
    writer: TraceWriter<Box<dyn Write + Send>>,
    host: TrackId,
    threads: BTreeMap<String, TrackId>,
    devices: BTreeMap<DeviceId, TrackId>,
    streams: BTreeMap<TimelineId, TrackId>,
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
            devices: BTreeMap::new(),
            streams: BTreeMap::new(),
            text: String::new(),
        })
    }

    /// Draws a transfer's submission on its thread's row.
    pub(crate) fn submission(&mut self, report: &TransferReport, begun: i64, thread: impl Fn() -> String) {
        let took = report.submitting.map_or(0, |took| i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
        let _kept = self.try_submission(report, (begun, begun.saturating_add(took)), &thread());
    }

    fn try_submission(&mut self, report: &TransferReport, span: (i64, i64), thread: &str) -> Result<()> {
        let track = self.thread(thread)?;
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

    /// Draws an operation on its stream's row, and, unless a transfer's submission is drawn, its submission.
    pub(crate) fn operation(&mut self, operation: &DrawnOperation<'_>) {
        let _kept = self.try_operation(operation);
    }

    fn try_operation(&mut self, operation: &DrawnOperation<'_>) -> Result<()> {
        let DrawnOperation { queue, name, info, transfer, enqueued, submitted, span, error, thread } =
            operation;
        let track = self.stream(*queue)?;
        self.text.clear();
        match info.path {
            Some((src, dst)) => write!(self.text, "{src} → {dst}"),
            None => write!(self.text, "{}", queue.device),
        }
        .unwrap_or_default();
        let kind = info.kind.name();
        let arguments = [
            ("kind", Argument::Text(kind)),
            ("path", Argument::Text(&self.text)),
            ("bytes", Argument::U64(info.bytes)),
            ("pieces", Argument::U64(info.pieces.into())),
            ("waited_ns", Argument::U64((span.0 - enqueued).max(0).cast_unsigned())),
            ("clock_error_ns", Argument::U64(*error)),
        ];
        let name = name.unwrap_or(kind);
        let flow = transfer.map(|id| Flow::Step(id.get()));
        let slice = Slice { name, begin: time(span.0), end: time(span.1), flow, arguments: &arguments };
        self.writer.slice(track, &slice)?;
        if transfer.is_none() && !queue.device.is_cpu() {
            let track = self.thread(&thread())?;
            let (begin, end) = (time(*enqueued), time(*submitted));
            let arguments = [("bytes", Argument::U64(info.bytes))];
            self.writer.slice(track, &Slice { name, begin, end, flow: None, arguments: &arguments })?;
        }
        Ok(())
    }

    fn thread(&mut self, name: &str) -> Result<TrackId> {
        if let Some(track) = self.threads.get(name) {
            return Ok(*track);
        }
        let track = self.writer.track(Some(self.host), name)?;
        self.threads.insert(name.to_owned(), track);
        Ok(track)
    }

    fn stream(&mut self, QueueKey { id, device, priority, simulated }: QueueKey) -> Result<TrackId> {
        if let Some(track) = self.streams.get(&id) {
            return Ok(*track);
        }
        let group = match self.devices.get(&device) {
            Some(group) => *group,
            None => {
                let simulated = if simulated { " (simulated)" } else { "" };
                let group = self.writer.track(None, &format!("{device}{simulated}"))?;
                *self.devices.entry(device).or_insert(group)
            }
        };
        let track = self.writer.track(Some(group), &format!("stream {id} ({priority:?})"))?;
        self.streams.insert(id, track);
        Ok(track)
    }

    pub(crate) fn finish(self) -> Result<TraceSummary> {
        self.writer.finish()
    }
}

/// Times before the profiler are drawn at its beginning.
fn time(nanoseconds: i64) -> u64 {
    nanoseconds.max(0).cast_unsigned()
}
