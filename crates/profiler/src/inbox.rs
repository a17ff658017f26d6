//! What submitting threads leave for the collector, without waiting for it.

use std::{
    borrow::Cow,
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use concurrent_queue::ConcurrentQueue;
use parking_lot::Mutex;
use transload_core::{
    DeviceId, Fence, Observer, OperationInfo, OperationKind, OperationRecord, OperationSampling,
    OperationSink, Stamp, StreamPriority, TimelineId, TransferEvent, TransferId, TransferReport, Wanted,
};

use crate::pending::OpenBegin;

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
    Stamped(Arc<OpenBegin>, Stamp),
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
    /// The begin of an operation that the user has not ended.
    Begun(Weak<OpenBegin>),
    Named(NamedOperation, u64),
    Submitted {
        report: TransferReport,
        begun: Instant,
        end: Option<Fence>,
        thread: u64,
    },
    Ended(TransferReport, TransferEnd, Instant),
}

/// Names of threads that are kept; of more, those of the earliest are forgotten.
const THREADS: usize = 4096;

/// Messages, oldest first, in memory that is allocated once.
pub(crate) struct Inbox {
    /// Differs from that of all others, also of earlier ones.
    number: u64,
    messages: ConcurrentQueue<Message>,
    /// Whether anything is taken.
    is_open: AtomicBool,
    lost: AtomicU64,
    sampling: OperationSampling,
    /// Names of the threads that left a message.
    threads: Mutex<BTreeMap<u64, String>>,
    #[cfg(feature = "nvtx")]
    ranges: std::sync::OnceLock<crate::nvtx::Ranges>,
}

impl Inbox {
    pub(crate) fn new(capacity: usize, sampling: OperationSampling) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            sampling,
            messages: ConcurrentQueue::bounded(capacity),
            is_open: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            threads: Mutex::default(),
            #[cfg(feature = "nvtx")]
            ranges: std::sync::OnceLock::new(),
        }
    }

    pub(crate) fn open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
        #[cfg(feature = "nvtx")]
        self.ranges().into_iter().for_each(|ranges| ranges.set_open(is_open));
    }

    /// Has ranges of transfers passed to a tool. Those of the first call stay.
    #[cfg(feature = "nvtx")]
    pub(crate) fn set_ranges(&self, ranges: crate::nvtx::Ranges, is_open: bool) {
        self.ranges.get_or_init(|| ranges).set_open(is_open);
    }

    #[cfg(feature = "nvtx")]
    #[inline]
    pub(crate) fn ranges(&self) -> Option<&crate::nvtx::Ranges> {
        self.ranges.get()
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Returns whether every transfer is taken.
    pub(crate) fn takes_all(&self) -> bool {
        self.sampling.all_from_bytes == 0 || self.sampling.one_in == 1
    }

    pub(crate) fn push(&self, message: Message) {
        if let Err(full) = self.messages.push(message) {
            self.lose();
            // The collector may not know of the queue, and small operations do not tell it.
            if let Message::Operation(record, _) = full.into_inner()
                && self.sampling.one_in == 0
            {
                record.tally.time_next();
            }
        }
    }

    /// Has the collector ask for a begin as soon as its queue has reached it: a driver tells what is long ago in coarser steps.
    pub(crate) fn begun(&self, begin: &Arc<OpenBegin>) {
        // Without room it is asked for with the end.
        let _full = self.messages.push(Message::Begun(Arc::downgrade(begin)));
    }

    pub(crate) fn pop(&self) -> Option<Message> {
        self.messages.pop().ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
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
            /// The thread's number, and that of the last inbox that was told its name.
            static NUMBER: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
        }
        let (mut number, told) = NUMBER.get();
        if told != self.number {
            if number == 0 {
                number = NEXT.fetch_add(1, Ordering::Relaxed);
            }
            let name = thread::current().name().map_or_else(|| format!("thread {number}"), str::to_owned);
            let mut threads = self.threads.lock();
            threads.insert(number, name);
            if threads.len() > THREADS {
                threads.pop_first();
            }
            NUMBER.set((number, self.number));
        }
        number
    }
}

impl Inbox {
    /// Returns whether the calling thread's next transfer of so many bytes is taken. Each is drawn by itself, so that profilers leave each other's draws alone.
    #[inline]
    fn is_taken(&self, bytes: u64) -> bool {
        thread_local! {
            /// 0 at first.
            static RANDOM: Cell<u64> = const { Cell::new(0) };
        }
        let OperationSampling { all_from_bytes, one_in } = self.sampling;
        if bytes >= all_from_bytes || one_in <= 1 {
            return bytes >= all_from_bytes || one_in == 1;
        }
        let before = match RANDOM.get() {
            0 => self.this_thread().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            before => before,
        };
        // Knuth's linear congruential generator, whose upper bits count.
        let random = before.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        RANDOM.set(random);
        (random >> 32) * u64::from(one_in) < 1 << 32
    }
}

impl OperationSink for Inbox {
    fn operation(&self, record: OperationRecord) {
        let thread = self.this_thread();
        self.push(Message::Operation(record, thread));
    }
}

impl Observer for Inbox {
    fn transfer(&self, event: TransferEvent<'_>) {
        let is_taken = match event {
            TransferEvent::Submitted { report, .. }
            | TransferEvent::Completed(report)
            | TransferEvent::Abandoned(report) => report.id.is_some_and(TransferId::is_timed),
            // All of them count.
            _ => true,
        };
        if !self.is_open() || !is_taken && !transload_core::mutant!("profiler/takes-its-own") {
            return;
        }
        #[cfg(feature = "nvtx")]
        if let Some(ranges) = self.ranges() {
            match event {
                TransferEvent::Submitted { report, .. } => ranges.submitted(report),
                TransferEvent::Completed(report)
                | TransferEvent::Failed(report, _)
                | TransferEvent::Abandoned(report) => ranges.ended(report),
                _ => {}
            }
        }
        match event {
            TransferEvent::Submitted { report, begun, end } => {
                let (report, end, thread) = (report.clone(), end.cloned(), self.this_thread());
                self.push(Message::Submitted { report, begun, end, thread });
            }
            TransferEvent::Completed(report) => self.ended(report, TransferEnd::Completed),
            TransferEvent::Failed(report, _) => self.ended(report, TransferEnd::Failed),
            TransferEvent::Abandoned(report) => self.ended(report, TransferEnd::Abandoned),
            // Events added later are ignored.
            _ => {}
        }
    }

    fn wants(&self, bytes: u64) -> Wanted {
        match self.is_open() && self.is_taken(bytes) {
            true => Wanted::Times,
            false => Wanted::Failure,
        }
    }
}

impl NamedOperation {
    pub(crate) fn new(queue: QueueKey, name: Cow<'static, str>, kind: OperationKind, bytes: u64) -> Self {
        let now = Instant::now();
        let info = OperationInfo { bytes, ..OperationInfo::of_kind(kind) };
        Self { queue, name, info, enqueued: now, submitted: now, time: NamedTime::Counted }
    }
}

#[cfg(test)]
mod tests {
    use transload_backend_cpu::CpuBackend;
    use transload_core::{Backend, MemoryKind, Operation, Timing, WorkloadType, submit};

    use super::*;

    #[test]
    fn each_inbox_is_told_the_names_of_threads() {
        // Later ones may have the address of an earlier one.
        let body = || {
            for _ in 0..100 {
                let inbox = Box::new(Inbox::new(64, OperationSampling::ALL));
                assert_eq!(inbox.thread_name(inbox.this_thread()), "named");
            }
        };
        thread::scope(|scope| {
            thread::Builder::new().name("named".to_owned()).spawn_scoped(scope, body).unwrap();
        });
    }

    #[test]
    fn sampling_has_no_limit() {
        let sampling = OperationSampling { all_from_bytes: u64::MAX, one_in: u32::MAX };
        let inbox = Inbox::new(1, sampling);
        assert!((0..100).filter(|_| inbox.is_taken(1)).count() <= 1);
    }

    #[test]
    fn sampling_of_a_thread_by_one_profiler_leaves_that_by_another_as_it_is() {
        let inbox = |one_in| Inbox::new(1, OperationSampling { all_from_bytes: u64::MAX, one_in });
        let (often, seldom) = (inbox(4), inbox(4000));
        let mut taken = [0; 2];
        for _ in 0..40_000 {
            taken[0] += u32::from(often.is_taken(1));
            taken[1] += u32::from(seldom.is_taken(1));
        }
        assert!((9_000..11_000).contains(&taken[0]) && (1..100).contains(&taken[1]), "{taken:?}");
    }

    #[test]
    fn queue_whose_first_operation_was_lost_is_known_by_the_next() {
        let sampling = OperationSampling { all_from_bytes: u64::MAX, one_in: 0 };
        let inbox = Arc::new(Inbox::new(1, sampling));
        let backend: Arc<dyn Backend> = CpuBackend::new().unwrap();
        backend.attach_sink(&(Arc::clone(&inbox) as _), sampling).unwrap();
        let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
        let (src, dst) = (allocate(), allocate());
        let lease =
            || backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let (one, two) = (lease(), lease());
        let copy = |queue: &transload_core::QueueLease| {
            submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap().wait().unwrap();
        };
        copy(&one);
        copy(&two);
        assert_eq!((inbox.lost(), inbox.pop().is_some()), (1, true), "the second has no room");
        copy(&one);
        assert!(inbox.pop().is_none(), "its first was passed");
        copy(&two);
        assert!(inbox.pop().is_some());
        copy(&two);
        assert!(inbox.pop().is_none());
    }
}
