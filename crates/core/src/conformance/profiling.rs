//! Promises about instants of queues and sinks of operations, for backends that have them.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{
    CheckResult, Failure, Verdict,
    content::fill,
    context::{TestContext, TestMemory, refused, same},
    rng::TestRng,
};
use crate::{
    ClockAnchor, DeviceClock, ErrorKind, Operation, OperationInfo, OperationKind, OperationRecord,
    OperationSampling, OperationSink, Pattern, QueueLease, RawBuffer, Stamp, StreamPriority, TimelineId,
    Timing, TransferId, TransferScope, Wanted, submit,
};

/// Keeps what it is given.
#[derive(Default)]
struct Recorder {
    records: Mutex<Vec<OperationRecord>>,
}

impl OperationSink for Recorder {
    fn operation(&self, record: OperationRecord) {
        self.records.lock().push(record);
    }
}

/// A recorder that is detached when this is dropped, so that a failed check leaves the devices without one.
pub(super) struct Attached<'a> {
    context: &'a TestContext<'a>,
    recorder: Arc<Recorder>,
    sink: Arc<dyn OperationSink>,
}

impl<'a> Attached<'a> {
    /// Attaches a new recorder; `None` if the backend supports no sinks.
    pub(super) fn new(
        context: &'a TestContext<'a>,
        sampling: OperationSampling,
    ) -> Result<Option<Self>, Failure> {
        let recorder = Arc::new(Recorder::default());
        let sink: Arc<dyn OperationSink> = Arc::clone(&recorder) as _;
        match context.backend().attach_sink(&sink, sampling) {
            Ok(()) => Ok(Some(Self { context, recorder, sink })),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what was passed since the last call, once all work is complete, without the waits of queues for each other.
    pub(super) fn take(&self) -> Result<Vec<OperationRecord>, Failure> {
        self.context.backend().drain()?;
        let mut records = std::mem::take(&mut *self.recorder.records.lock());
        for record in &records {
            let other = record.waits_for.is_some_and(|(timeline, _)| timeline != record.queue);
            let is_wait = record.info.kind == OperationKind::Wait;
            ensure_eq!(other, is_wait, "whether an operation waits for another queue");
            ensure!(!is_wait || record.info.bytes == 0, "a wait has {} bytes", record.info.bytes);
        }
        records.retain(|record| record.info.kind != OperationKind::Wait);
        Ok(records)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.context.backend().detach_sink(&self.sink);
    }
}

pub(super) const NO_SINKS: &str = "the backend passes operations to no sink";

pub(super) fn not_applicable(reason: &str) -> CheckResult {
    Ok(Verdict::NotApplicable(reason.to_owned()))
}

/// A source and a destination of a path, and the content that is expected in each.
struct Pair {
    src: RawBuffer,
    source: Vec<u8>,
    dst: RawBuffer,
    model: Vec<u8>,
}

impl Pair {
    fn new(
        context: &TestContext<'_>,
        rng: &mut TestRng,
        (from, to): (TestMemory, TestMemory),
        bytes: usize,
    ) -> Result<Self, Failure> {
        let (source, model) = (rng.bytes(bytes), vec![0; bytes]);
        let (src, dst) = (context.buffer_of(from, &source)?, context.buffer_of(to, &model)?);
        Ok(Self { src, source, dst, model })
    }

    /// Returns the slices of a copy from `read` to `write`, which it applies to the model.
    fn part(&mut self, read: usize, write: usize, bytes: usize) -> Result<(RawBuffer, RawBuffer), Failure> {
        self.model[write..write + bytes].copy_from_slice(&self.source[read..read + bytes]);
        Ok((self.src.slice(read..read + bytes)?, self.dst.slice(write..write + bytes)?))
    }
}

/// Returns the instant of a stamp of a drained queue.
pub(super) fn known(stamp: &Stamp, what: &str) -> Result<i64, Failure> {
    match stamp.time()? {
        Some(time) => Ok(time),
        None => fail!("the instant of {what} is not known after a drain"),
    }
}

/// The largest error of comparing two instants of a clock.
fn slack(clock: &dyn DeviceClock) -> i64 {
    i64::try_from(2 * clock.resolution().as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn stamps(context: &TestContext<'_>) -> CheckResult {
    /// Operations of each queue.
    const ROUNDS: usize = 12;
    let Some((from, to)) = context.paths().first().copied() else {
        return not_applicable("no path is copied");
    };
    let queue = context.queue()?;
    let clock = match queue.stamp() {
        Ok(stamp) => Arc::clone(stamp.clock()),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return not_applicable("the queues have no clock");
        }
        Err(error) => return Err(error.into()),
    };
    ensure_eq!(clock.device(), context.subject.device, "a clock's device");
    let slack = slack(&*clock);
    let sizes = [100, 70_000, context.size(5_000_000)];
    let pair = Pair::new(context, &mut context.rng("stamps"), (from, to), sizes[2])?;
    let is_virtual = queue.timeline().is_simulated();
    let before = (!is_virtual).then(|| clock.anchor()).transpose()?;
    for queue in context.queues()? {
        let Some(sink) = Attached::new(context, OperationSampling::ALL)? else {
            return not_applicable(NO_SINKS);
        };
        let (mut stamps, mut submitted) = (vec![queue.stamp()?], Vec::new());
        for round in 0..ROUNDS {
            let bytes = sizes[round % sizes.len()];
            let (src, dst) = (pair.src.slice(..bytes)?, pair.dst.slice(..bytes)?);
            submitted.push(Instant::now());
            submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            stamps.push(queue.stamp()?);
            for stamp in &stamps {
                // Known or not, but never an error.
                stamp.time()?;
            }
        }
        let records = sink.take()?;
        let seen = Instant::now();
        ensure_eq!(records.len(), ROUNDS, "the number of operations passed to the sink");
        let mut times = Vec::new();
        for (index, stamp) in stamps.iter().enumerate() {
            ensure!(
                stamp.clock().id() == clock.id(),
                "{stamp:?} is of another clock than {clock:?}",
                clock = clock.id()
            );
            times.push(known(stamp, &format!("stamp {index}"))?);
        }
        ensure!(times.is_sorted_by(|a, b| *a <= *b + slack), "stamps of a queue decrease: {times:?}");
        let after = (!is_virtual).then(|| clock.anchor()).transpose()?;
        for (index, record) in records.iter().enumerate() {
            ensure!(record.begin.clock().id() == clock.id(), "a record has another clock than the queue");
            let [begin, end] =
                [known(&record.begin, "an operation's begin")?, known(&record.end, "an operation's end")?];
            let order = [times[index], begin, end, times[index + 1]];
            ensure!(
                order.is_sorted_by(|a, b| *a <= *b + slack),
                "operation {index}: stamp, begin, end and stamp are {order:?}"
            );
            let enqueued = record.enqueued;
            ensure!(enqueued >= submitted[index], "operation {index} was enqueued before it was submitted");
            ensure!(record.submitted >= enqueued, "operation {index} was submitted before it was enqueued");
            if let (Some(before), Some(after)) = (&before, &after) {
                let reference = submitted[0];
                let [(_, begun), (ended, _)] =
                    [begin, end].map(|time| on_host(before, after, time, reference));
                let (enqueued, seen) = (since(enqueued, reference), since(seen, reference));
                ensure!(
                    begun + slack >= enqueued,
                    "operation {index} began {} ns before it was enqueued",
                    enqueued - begun
                );
                ensure!(
                    ended - slack <= seen,
                    "operation {index} ended {} ns after that was seen",
                    ended - seen
                );
            }
        }
    }
    Ok(Verdict::Passed)
}

/// Returns the nanoseconds from one instant to another, negative if that is earlier.
fn since(instant: Instant, reference: Instant) -> i64 {
    let whole = |span: std::time::Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    match instant.checked_duration_since(reference) {
        Some(span) => whole(span),
        None => -whole(reference.duration_since(instant)),
    }
}

/// Returns the earliest and the latest host time that an instant of a device can be, by two anchors; in nanoseconds since `reference`.
fn on_host(before: &ClockAnchor, after: &ClockAnchor, time: i64, reference: Instant) -> (i64, i64) {
    let share = (time - before.device) as f64 / (after.device - before.device).max(1) as f64;
    let between = |from, to| {
        let (from, to) = (since(from, reference), since(to, reference));
        from + (share * (to - from) as f64) as i64
    };
    (between(before.before, after.before), between(before.after, after.after))
}

/// What a record of an operation must have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Expected {
    info: OperationInfo,
    transfer: Option<TransferId>,
}

pub(super) fn records(context: &TestContext<'_>) -> CheckResult {
    const STEPS: usize = 90;
    let mut rng = context.rng("records");
    let paths = context.paths();
    let bytes = context.size(4_500_000);
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let Some(path) = rng.choose(&paths).copied() else { return not_applicable("no path is copied") };
        pairs.push(Pair::new(context, &mut rng, path, bytes)?);
    }
    let mut queues = context.queues()?;
    let Some(sink) = Attached::new(context, OperationSampling::ALL)? else { return not_applicable(NO_SINKS) };
    queues.extend(context.queues()?);
    // Leases of one stream share a timeline.
    let mut expected: Vec<(TimelineId, StreamPriority, Expected)> = Vec::new();
    for _ in 0..STEPS {
        let (queue, pair) = (rng.below(queues.len()), rng.below(pairs.len()));
        let (queue, pair) = (&queues[queue], &mut pairs[pair]);
        let id = |wanted: bool| if wanted { TransferId::if_wanted(Wanted::Times) } else { None };
        let transfer = id(rng.chance(2));
        let outer = TransferScope::enter(id(rng.chance(2)));
        let unscoped = TransferScope::current();
        let info = {
            let _scope = TransferScope::enter(transfer);
            step(&mut rng, queue, pair)?
        };
        ensure_eq!(TransferScope::current(), unscoped, "the transfer after a scope");
        drop(outer);
        if let Some(info) = info {
            let of_this = Expected { info, transfer: transfer.or(unscoped) };
            expected.push((queue.timeline().id(), queue.priority(), of_this));
        }
    }
    let records = sink.take()?;
    drop(sink);
    ensure_eq!(records.len(), expected.len(), "the number of operations passed to the sink");
    for queue in &queues {
        let id = queue.timeline().id();
        let ours: Vec<_> = records.iter().filter(|record| record.queue == id).collect();
        let theirs: Vec<_> = expected.iter().filter(|(queue, ..)| *queue == id).collect();
        ensure_eq!(ours.len(), theirs.len(), "the number of a queue's operations passed to the sink");
        for (index, (record, (_, priority, expected))) in ours.iter().zip(&theirs).enumerate() {
            let found = Expected { info: record.info, transfer: record.transfer };
            ensure_eq!(found, *expected, "operation {index} of a queue");
            ensure_eq!(record.device, context.subject.device, "an operation's device");
            ensure_eq!(record.priority, *priority, "an operation's priority");
            let [begin, end] = [known(&record.begin, "a begin")?, known(&record.end, "an end")?];
            ensure!(begin <= end + slack(&**record.end.clock()), "an operation lasts from {begin} to {end}");
        }
        counted(&ours, theirs.iter().map(|(.., expected)| expected.info))?;
    }
    for (index, pair) in pairs.iter().enumerate() {
        same(&context.get(&pair.dst)?, &pair.model, &format!("destination {index}"))?;
    }
    Ok(Verdict::Passed)
}

/// Checks that the tally of a queue's records has these operations and no others but waits.
fn counted(
    records: &[&OperationRecord],
    expected: impl Iterator<Item = OperationInfo> + Clone,
) -> Result<(), Failure> {
    let Some(first) = records.first() else { return Ok(()) };
    let counts = first.tally.counts(first.attachment);
    let kinds = OperationKind::ALL.into_iter().zip(counts);
    for (kind, count) in kinds.filter(|(kind, _)| *kind != OperationKind::Wait) {
        let of_kind = expected.clone().filter(|info| info.kind == kind);
        ensure_eq!(
            count.operations,
            of_kind.clone().count() as u64,
            "the number of operations counted as {kind}"
        );
        ensure_eq!(count.bytes, of_kind.map(|info| info.bytes).sum::<u64>(), "the bytes counted as {kind}");
    }
    Ok(())
}

/// Submits a random operation; `None` if the queue does not support it.
fn step(rng: &mut TestRng, queue: &QueueLease, pair: &mut Pair) -> Result<Option<OperationInfo>, Failure> {
    let most = pair.model.len();
    let path = Some((pair.src.place(), pair.dst.place()));
    let copy = |bytes| OperationInfo { kind: OperationKind::Copy, path, bytes: bytes as u64, pieces: 1 };
    match rng.below(8) {
        0..=4 => {
            let bytes = match rng.below(4) {
                0 => rng.between(most - 1000, most),
                1 => rng.between(65_537, most / 2),
                _ => rng.between(1, most.min(65_536)),
            };
            let (read, write) = (rng.below(most - bytes + 1), rng.below(most - bytes + 1));
            let (src, dst) = pair.part(read, write, bytes)?;
            submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            Ok(Some(copy(bytes)))
        }
        5..=6 => {
            let (count, each) = (rng.between(2, 5), rng.between(1, most / 8));
            let parts = (0..count).map(|index| pair.part(index * each, (count - 1 - index) * each, each));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            submit(&**queue, &Operation::CopyBatch { pairs: &parts }, Timing::Off)?;
            let info = OperationInfo {
                kind: OperationKind::CopyBatch,
                pieces: u32::try_from(count).unwrap_or(0),
                ..copy(count * each)
            };
            Ok(Some(info))
        }
        _ => {
            let (bytes, pattern) = (rng.between(1, most), Pattern::U8(rng.byte()));
            let dst = pair.dst.slice(..bytes)?;
            match submit(&**queue, &Operation::Fill { dst: &dst, pattern }, Timing::Off) {
                Ok(_) => {
                    fill(&mut pair.model[..bytes], pattern);
                    Ok(Some(OperationInfo { kind: OperationKind::Fill, path: None, ..copy(bytes) }))
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
                Err(error) => Err(error.into()),
            }
        }
    }
}

pub(super) fn sampling(context: &TestContext<'_>) -> CheckResult {
    /// Small copies of each queue.
    const COPIES: usize = 300;
    let Some(path) = context.paths().first().copied() else { return not_applicable("no path is copied") };
    let large = context.size(4 << 20);
    let mut pair = Pair::new(context, &mut context.rng("sampling"), path, large)?;
    for one_in in [64, 0] {
        let sampling = OperationSampling { all_from_bytes: large as u64, one_in };
        let queue = context.queue()?;
        let Some(sink) = Attached::new(context, sampling)? else { return not_applicable(NO_SINKS) };
        let mut infos = Vec::new();
        for index in 0..COPIES {
            let bytes = if index == COPIES / 2 { large } else { 1 + index };
            let (src, dst) = pair.part(0, 0, bytes)?;
            submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            infos.push(OperationInfo::of(&Operation::Copy { src: &src, dst: &dst }));
        }
        let records = sink.take()?;
        drop(sink);
        let passed: Vec<_> = records.iter().map(|record| record.info.bytes).collect();
        ensure_eq!(passed.first(), Some(&1), "the first operation of a queue that is passed to the sink");
        let larges = passed.iter().filter(|bytes| **bytes == large as u64).count();
        ensure_eq!(larges, 1, "the number of large operations passed to the sink");
        let small = passed.len() - larges;
        // At distances of 1 to 127.
        let range = if one_in == 0 { 1..=1 } else { 1 + COPIES / 127..=COPIES / 8 };
        ensure!(
            range.contains(&small),
            "of {COPIES} operations one in {one_in} is to be timed; {small} were: {passed:?}"
        );
        counted(&records.iter().collect::<Vec<_>>(), infos.iter().copied())?;
    }
    same(&context.get(&pair.dst)?, &pair.model, "bytes copied while a sink was attached")?;
    Ok(Verdict::Passed)
}

pub(super) fn sinks(context: &TestContext<'_>) -> CheckResult {
    let Some(path) = context.paths().first().copied() else { return not_applicable("no path is copied") };
    let mut pair = Pair::new(context, &mut context.rng("sinks"), path, 10_000)?;
    let queue = context.queue()?;
    let mut copy = |queue: &QueueLease, bytes| -> Result<OperationInfo, Failure> {
        let (src, dst) = pair.part(0, 0, bytes)?;
        submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
        Ok(OperationInfo::of(&Operation::Copy { src: &src, dst: &dst }))
    };
    copy(&queue, 1)?;
    let Some(one) = Attached::new(context, OperationSampling::ALL)? else { return not_applicable(NO_SINKS) };
    let other: Arc<dyn OperationSink> = Arc::new(Recorder::default());
    for (sink, what) in [(&other, "a second sink"), (&one.sink, "a sink that is attached")] {
        let attached = context.backend().attach_sink(sink, OperationSampling::ALL);
        refused(attached, ErrorKind::Busy, what)?;
    }
    context.backend().detach_sink(&other);
    let later = context.queue()?;
    let infos = [copy(&queue, 2)?, copy(&later, 3)?];
    let first = one.take()?;
    let bytes: Vec<_> = first.iter().map(|record| record.info.bytes).collect();
    ensure_eq!(bytes, [2, 3], "what the first sink was passed, in bytes");
    let recorder = Arc::clone(&one.recorder);
    drop(one);
    copy(&queue, 4)?;
    copy(&later, 5)?;
    context.backend().drain()?;
    ensure!(recorder.records.lock().is_empty(), "a sink is passed operations after it was detached");
    for record in &first {
        let ours =
            infos.iter().zip([&queue, &later]).filter(|(_, queue)| queue.timeline().id() == record.queue);
        counted(&[record], ours.map(|(info, _)| *info))?;
    }
    let Some(two) = Attached::new(context, OperationSampling::ALL)? else {
        fail!("a sink is not supported after another one was")
    };
    let again = copy(&queue, 6)?;
    let second = two.take()?;
    ensure_eq!(second.len(), 1, "the number of operations passed to a later sink");
    ensure!(recorder.records.lock().is_empty(), "a sink is passed operations of a later one");
    for (new, old) in second.iter().zip(&first) {
        ensure!(new.attachment != old.attachment, "two attachments have the number {}", old.attachment);
        let zeros = new.tally.counts(old.attachment);
        ensure!(
            zeros.iter().all(|count| count.operations == 0),
            "a later sink's counts are given to the first one"
        );
        counted(&[new], [again].into_iter())?;
    }
    Ok(Verdict::Passed)
}
