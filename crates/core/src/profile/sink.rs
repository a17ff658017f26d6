//! Where the timed operations of a device's queues go.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::RwLock;

use crate::{
    DeviceId, Error, ErrorKind, Operation, OperationId, OperationInfo, OperationKind, OperationSampling,
    QueueTally, Result, Stamp, StreamPriority, Timeline, TimelineId, TransferId, TransferScope, catch_panic,
};

/// A timed operation that was enqueued.
#[derive(Debug)]
#[non_exhaustive]
pub struct OperationRecord {
    /// The queue.
    pub queue: TimelineId,
    /// The device that does the work.
    pub device: DeviceId,
    /// The queue's priority.
    pub priority: StreamPriority,
    /// Whether a software driver does the work.
    pub simulated: bool,
    /// What it does.
    pub info: OperationInfo,
    /// The transfer that it belongs to, if that has an id.
    pub transfer: Option<TransferId>,
    /// Its id in [records of engines](crate::EngineRecording), if these are recorded.
    pub id: Option<OperationId>,
    /// The point of the queue's timeline that its end is, if the queue says.
    pub point: Option<u64>,
    /// Of a [wait](OperationKind::Wait), the timeline and its point that the queue waits for.
    pub waits_for: Option<(TimelineId, u64)>,
    /// The host's clock before it was enqueued.
    pub enqueued: Instant,
    /// The host's clock when it was enqueued.
    pub submitted: Instant,
    /// When the queue reached it, after everything that it had to wait for.
    pub begin: Stamp,
    /// When it was complete; known once its fence is complete.
    pub end: Stamp,
    /// Counts of the queue, all of whose operations they include.
    pub tally: Arc<QueueTally>,
    /// Identifies the attachment of the sink, for [`QueueTally::counts`].
    pub attachment: u64,
}

/// Takes the timed operations of a device's queues.
pub trait OperationSink: Send + Sync + 'static {
    /// Takes an operation: of a device, when it was enqueued, on that thread; of the host, when it ended. Must be quick, must not
    /// submit, and must not call the driver. A panic of it is ignored; the operation goes on.
    fn operation(&self, record: OperationRecord);
}

/// The place for a device's sink, which its queues share.
#[derive(Default)]
pub struct SinkSlot {
    /// 0 without a sink, else the number of its attachment in this process.
    attachment: AtomicU64,
    all_from_bytes: AtomicU64,
    one_in: AtomicU32,
    sink: RwLock<Option<Arc<dyn OperationSink>>>,
}

impl SinkSlot {
    /// Attaches a sink: operations that are enqueued from now on are counted, and some are timed and passed to it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if there is one already.
    pub fn attach(&self, sink: Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut slot = self.sink.write();
        if slot.is_some() {
            let text = "the device has a profiler; disable that one first";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        *slot = Some(sink);
        self.all_from_bytes.store(sampling.all_from_bytes, Ordering::Relaxed);
        self.one_in.store(sampling.one_in, Ordering::Relaxed);
        self.attachment.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Release);
        Ok(())
    }

    /// Detaches `sink`, if it is the one that is attached. Operations that other threads are enqueueing may still be passed to it.
    pub fn detach(&self, sink: &Arc<dyn OperationSink>) {
        let mut slot = self.sink.write();
        if slot.as_ref().is_some_and(|attached| Arc::ptr_eq(attached, sink)) {
            self.attachment.store(0, Ordering::Relaxed);
            if !crate::mutant!("core/sink-detached") {
                *slot = None;
            }
        }
    }

    /// Returns whether there is a sink.
    #[must_use]
    #[inline]
    pub fn is_attached(&self) -> bool {
        self.attachment.load(Ordering::Relaxed) != 0
    }

    /// Counts an operation that is about to be enqueued. Returns its sample if it is to be timed. `info` is called only if there is a sink.
    #[inline]
    pub fn sample(
        &self,
        tally: &Arc<QueueTally>,
        info: impl FnOnce() -> OperationInfo,
    ) -> Option<OperationSample> {
        match self.attachment.load(Ordering::Acquire) {
            0 => None,
            attachment => {
                let info = info();
                self.count(tally, (info.kind, info.bytes), attachment)
                    .then(|| OperationSample::new(info, tally, attachment))
            }
        }
    }

    /// Like [`sample`](Self::sample), of an operation, which is described only if it is to be timed: few are.
    #[inline]
    pub fn sample_operation(
        &self,
        tally: &Arc<QueueTally>,
        operation: &Operation<'_>,
    ) -> Option<OperationSample> {
        match self.attachment.load(Ordering::Acquire) {
            0 => None,
            attachment => self
                .count(tally, OperationInfo::kind_and_bytes(operation), attachment)
                .then(|| OperationSample::new(OperationInfo::of(operation), tally, attachment)),
        }
    }

    /// Like [`sample`](Self::sample), of a wait of the queue for a point of another timeline.
    #[inline]
    pub fn sample_wait(&self, tally: &Arc<QueueTally>, on: (TimelineId, u64)) -> Option<OperationSample> {
        let sample = self.sample(tally, || OperationInfo::of_kind(OperationKind::Wait))?;
        Some(OperationSample { waits_for: Some(on), ..sample })
    }

    /// Counts an operation. Returns whether it is to be timed.
    fn count(&self, tally: &QueueTally, (kind, bytes): (OperationKind, u64), attachment: u64) -> bool {
        let one_in = u64::from(self.one_in.load(Ordering::Relaxed));
        let sampling = (self.all_from_bytes.load(Ordering::Relaxed), one_in);
        let is_wanted = || TransferScope::current().is_some_and(TransferId::is_timed);
        tally.count((kind, bytes), attachment, sampling, is_wanted)
    }

    /// Takes back the count of an operation that the queue refused after [`sample`](Self::sample).
    #[cold]
    pub fn withdraw(&self, tally: &QueueTally, info: impl FnOnce() -> OperationInfo) {
        match self.attachment.load(Ordering::Acquire) {
            0 => {}
            attachment => tally.withdraw(&info(), attachment),
        }
    }

    /// Passes an operation to the sink, with its id in records of engines if it has one. Without times, as when they could not be recorded, it stays one that was only counted.
    pub fn pass(
        &self,
        sample: OperationSample,
        queue: (&dyn Timeline, StreamPriority),
        id: Option<OperationId>,
        times: Option<(Stamp, Stamp)>,
    ) {
        let OperationSample { info, transfer, point, waits_for, enqueued, tally, attachment } = sample;
        let Some((begin, end)) = times else {
            tally.time_next();
            return;
        };
        let submitted = Instant::now();
        let record = OperationRecord {
            queue: queue.0.id(),
            device: queue.0.device(),
            priority: queue.1,
            simulated: queue.0.is_simulated(),
            info,
            transfer,
            id,
            point,
            waits_for,
            enqueued,
            submitted,
            begin,
            end,
            tally,
            attachment,
        };
        let sink = self.sink.read();
        if let Some(sink) = sink.as_ref().filter(|_| self.attachment.load(Ordering::Relaxed) == attachment) {
            // A sink is user code, and the work is in flight: without its fence nothing would wait for it.
            let pass = || sink.operation(record);
            match crate::mutant!("core/sink-panics") {
                true => pass(),
                false => catch_panic(pass).unwrap_or_default(),
            }
        }
    }
}

impl fmt::Debug for SinkSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSlot").field("is_attached", &self.is_attached()).finish_non_exhaustive()
    }
}

impl Drop for SinkSlot {
    fn drop(&mut self) {
        let sink = self.sink.get_mut().take();
        let _panic = catch_panic(|| drop(sink));
    }
}

/// An operation that is to be timed, before it is enqueued.
#[derive(Debug)]
pub struct OperationSample {
    info: OperationInfo,
    transfer: Option<TransferId>,
    point: Option<u64>,
    waits_for: Option<(TimelineId, u64)>,
    enqueued: Instant,
    tally: Arc<QueueTally>,
    attachment: u64,
}

impl OperationSample {
    /// Sets the operation's point on its queue's timeline.
    #[must_use]
    pub fn at_point(self, point: u64) -> Self {
        Self { point: Some(point), ..self }
    }

    #[cold]
    fn new(info: OperationInfo, tally: &Arc<QueueTally>, attachment: u64) -> Self {
        let (transfer, enqueued) = (TransferScope::current(), Instant::now());
        let tally = Arc::clone(tally);
        Self { info, transfer, point: None, waits_for: None, enqueued, tally, attachment }
    }
}
