//! What submitting threads leave for the collector, without waiting for it.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use concurrent_queue::ConcurrentQueue;
use parking_lot::Mutex;
use transload_core::{
    DeviceId, Fence, Observer, OperationInfo, OperationKind, OperationRecord, OperationSampling,
    OperationSink, Stamp, StreamPriority, TimelineId, TransferEvent, TransferReport,
};

/// A queue, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey {
    pub(crate) id: TimelineId,
    pub(crate) device: DeviceId,
    pub(crate) priority: StreamPriority,
    /// Whether a software driver does its work.
    pub(crate) simulated: bool,
}

/// An operation that the user recorded.
#[derive(Debug)]
pub(crate) struct NamedOperation {
    pub(crate) queue: QueueKey,
    pub(crate) name: Cow<'static, str>,
    pub(crate) info: OperationInfo,
    pub(crate) enqueued: Instant,
    pub(crate) submitted: Instant,
    pub(crate) time: NamedTime,
}

/// What is known of its time.
#[derive(Debug)]
pub(crate) enum NamedTime {
    /// Nothing.
    Counted,
    /// What the caller said.
    Given(Duration),
    /// Both ends.
    Stamped(Stamp, Stamp),
}

/// How a transfer ended for its submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    Completed,
    Failed,
    Abandoned,
}

#[derive(Debug)]
pub(crate) enum Message {
    Operation(OperationRecord, u64),
    Named(NamedOperation, u64),
    Submitted { report: TransferReport, begun: Instant, end: Option<Fence>, thread: u64 },
    Ended(TransferReport, TransferEnd, Instant),
}

/// Messages, oldest first, in memory that is allocated once.
pub(crate) struct Inbox {
    messages: ConcurrentQueue<Message>,
    /// Whether anything is taken.
    is_open: AtomicBool,
    lost: AtomicU64,
    sampling: OperationSampling,
    /// Names of the threads that left a message.
    threads: Mutex<BTreeMap<u64, String>>,
}

impl Inbox {
    pub(crate) fn new(capacity: usize, sampling: OperationSampling) -> Self {
        Self {
            sampling,
            messages: ConcurrentQueue::bounded(capacity),
            is_open: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            threads: Mutex::default(),
        }
    }

    pub(crate) fn open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, message: Message) {
        if self.messages.push(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn pop(&self) -> Option<Message> {
        self.messages.pop().ok()
    }

    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of messages without room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn thread_name(&self, number: u64) -> String {
        self.threads.lock().get(&number).cloned().unwrap_or_else(|| format!("thread {number}"))
    }

    fn ended(&self, report: &TransferReport, end: TransferEnd) {
        self.push(Message::Ended(report.clone(), end, Instant::now()));
    }

    /// Returns the calling thread's number, whose name is kept.
    pub(crate) fn this_thread(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NUMBER: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
        }
        let (mut number, told) = NUMBER.get();
        let this = std::ptr::from_ref(self).addr();
        if told != this {
            if number == 0 {
                number = NEXT.fetch_add(1, Ordering::Relaxed);
            }
            let name = thread::current().name().map_or_else(|| format!("thread {number}"), str::to_owned);
            self.threads.lock().insert(number, name);
            NUMBER.set((number, this));
        }
        number
    }
}

/// Returns whether the calling thread's next transfer of so many bytes is taken.
fn is_taken(sampling: OperationSampling, bytes: u64) -> bool {
    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(0) };
        static RANDOM: Cell<u64> = const { Cell::new(1 << 40) };
    }
    if bytes >= sampling.all_from_bytes || sampling.one_in <= 1 {
        return bytes >= sampling.all_from_bytes || sampling.one_in == 1;
    }
    if let Some(left) = LEFT.get().checked_sub(1) {
        LEFT.set(left);
        return false;
    }
    let mut random = RANDOM.get();
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.set(random);
    LEFT.set((random % u64::from(2 * sampling.one_in - 1)) as u32);
    true
}

impl OperationSink for Inbox {
    fn operation(&self, record: OperationRecord) {
        let thread = self.this_thread();
        self.push(Message::Operation(record, thread));
    }
}

impl Observer for Inbox {
    fn transfer(&self, event: TransferEvent<'_>) {
        if !self.is_open() {
            return;
        }
        match event {
            TransferEvent::Submitted { report, begun, end } if is_taken(self.sampling, report.bytes) => {
                let (report, end, thread) = (report.clone(), end.cloned(), self.this_thread());
                self.push(Message::Submitted { report, begun, end, thread });
            }
            TransferEvent::Completed(report) if is_taken(self.sampling, report.bytes) => {
                self.ended(report, TransferEnd::Completed);
            }
            TransferEvent::Failed(report, _) => self.ended(report, TransferEnd::Failed),
            TransferEvent::Abandoned(report) => self.ended(report, TransferEnd::Abandoned),
            // Events added later are ignored.
            _ => {}
        }
    }

    fn is_active(&self) -> bool {
        self.is_open()
    }
}

impl NamedOperation {
    pub(crate) fn new(queue: QueueKey, name: Cow<'static, str>, kind: OperationKind, bytes: u64) -> Self {
        let now = Instant::now();
        let info = OperationInfo { bytes, ..OperationInfo::of_kind(kind) };
        Self { queue, name, info, enqueued: now, submitted: now, time: NamedTime::Counted }
    }
}
