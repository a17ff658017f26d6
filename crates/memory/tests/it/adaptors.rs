//! What adaptors promise: they change nothing but what they are for, alone and around each other.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    failing::FailingResource,
    replay::{LogAction, read_log, replay},
};
use transload_core::{ErrorKind, MemoryKind, RawBuffer};
use transload_memory::{
    CudaMemoryManager, CudaResource, FailureCallbackResource, LimitedResource, LoggingResource,
    MemoryResource, StatisticsResource, TrackedOrigin, TrackingResource,
};

use super::{heap::watched, manager, shared, unchecked};

fn pinned(memory: &Arc<CudaMemoryManager>) -> CudaResource {
    CudaResource::new(memory, MemoryKind::Pinned).unwrap()
}

/// A writer that tests can read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn statistics_count_what_is_alive_was_at_most_and_came_in_all() {
    let memory = shared();
    let resource = StatisticsResource::new(pinned(&memory));
    let first = resource.allocate_segment(1000).unwrap();
    drop(resource.allocate_segment(500).unwrap());
    let slice = first.slice(..1).unwrap();
    drop(first);
    resource.allocate_segment(0).unwrap_err();
    resource.trim().unwrap();
    let now = resource.statistics();
    assert_eq!((now.current_bytes, now.peak_bytes, now.total_bytes), (1000, 1500, 1500));
    assert_eq!((now.current_segments, now.peak_segments, now.total_segments), (1, 2, 2));
    assert_eq!((now.failures, now.trims), (1, 1));
    resource.reset_peak();
    drop(slice);
    let now = resource.statistics();
    assert_eq!((now.current_bytes, now.peak_bytes), (0, 1000));
}

#[test]
fn tracking_lists_every_live_segment_the_largest_first() {
    let memory = shared();
    let resource = TrackingResource::new(pinned(&memory), TrackedOrigin::Caller);
    let held: Vec<RawBuffer> =
        [100, 3000, 20].iter().map(|bytes| resource.allocate_segment(*bytes).unwrap()).collect();
    let report = resource.report();
    let sizes: Vec<u64> = report.segments().iter().map(|segment| segment.bytes).collect();
    assert_eq!((sizes, report.bytes()), (vec![3000, 100, 20], 3120));
    let largest = &report.segments()[0];
    assert_eq!(largest.number, 2);
    assert_eq!(largest.address as usize, held[1].host_address().unwrap().addr().get());
    assert!(largest.caller.unwrap().file().ends_with("adaptors.rs"));
    let text = format!("{report:.1}");
    assert!(text.contains("3 segments alive, 3120 bytes") && text.contains("and 2 more"), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
    drop(held);
    assert!(resource.report().segments().is_empty());
    let shared = Arc::new(resource);
    let caller_of = |held: RawBuffer| {
        let caller = shared.report().segments()[0].caller.unwrap().file();
        drop(held);
        caller
    };
    assert!(caller_of(MemoryResource::allocate_segment(&shared, 5).unwrap()).ends_with("adaptors.rs"));
    let unknown: &dyn MemoryResource = &*shared;
    assert!(caller_of(unknown.allocate_segment(5).unwrap()).ends_with("tracking.rs"), "as it is documented");
    let traced = TrackingResource::new(pinned(&memory), TrackedOrigin::Backtrace);
    let _held = traced.allocate_segment(10).unwrap();
    assert!(traced.report().segments()[0].backtrace.is_some());
    assert!(format!("{:#}", traced.report()).len() > format!("{}", traced.report()).len());
}

#[test]
fn a_log_has_a_line_for_every_call_and_does_the_same_again() {
    let (memory, page) = (shared(), Page::default());
    let logging = LoggingResource::new(LimitedResource::new(pinned(&memory), 10_000), page.clone());
    let mut held = Vec::new();
    for bytes in [4000, 3000, 5000, 2000] {
        match logging.allocate_segment(bytes) {
            Ok(segment) => held.push(segment),
            Err(error) => assert_eq!((error.kind(), bytes), (ErrorKind::OutOfMemory, 5000)),
        }
    }
    drop(held.remove(0));
    logging.trim().unwrap();
    held.push(logging.allocate_segment(4500).unwrap());
    drop(held);
    drop(logging);
    let text = page.text();
    let log = read_log(&text).unwrap();
    let of = |action: LogAction| log.iter().filter(|entry| entry.action == action).count();
    assert_eq!((of(LogAction::Allocate), of(LogAction::Refused)), (4, 1), "{text}");
    assert_eq!((of(LogAction::Free), of(LogAction::Trim)), (4, 1), "{text}");
    assert!(log.is_sorted_by_key(|entry| entry.nanoseconds));
    let again = LimitedResource::new(pinned(&memory), 10_000);
    let report = replay(&log, &again).unwrap();
    assert_eq!((report.allocations, report.refusals, report.peak_bytes, report.left), (4, 1, 9500, 0));
    assert_eq!(again.used(), 0);
    // A smaller resource refuses more, and the replay goes on.
    assert!(replay(&log, &LimitedResource::new(pinned(&memory), 4500)).unwrap().refusals > 1);
}

#[test]
fn a_log_that_is_none_is_refused_with_its_line() {
    let memory = shared();
    let error =
        read_log("nanoseconds,thread,action,segment,bytes\n1,1,allocate,1,5\nnonsense\n").unwrap_err();
    assert!(error.to_string().starts_with("line 3"), "{error}");
    for text in ["1,1,free,1,5", "1,1,allocate,1,5\n2,1,allocate,1,5"] {
        let error = replay(&read_log(text).unwrap(), &pinned(&memory)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(replay(&read_log("1,1,allocate,1,5").unwrap(), &pinned(&memory)).unwrap().left, 1);
}

/// A writer that uses the resource whose log it writes, fails, and panics.
struct Rude {
    resource: Arc<OnceLock<LoggingResource<CudaResource>>>,
    turns: Arc<AtomicU64>,
}

impl Write for Rude {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.turns.fetch_add(1, Ordering::Relaxed) {
            0 => drop(self.resource.get().unwrap().allocate_segment(10).unwrap()),
            1 => return Err(io::Error::other("full")),
            2 => panic!("the writer panics"),
            _ => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_may_use_the_resource_fail_and_panic() {
    watched(|| {
        let memory = unchecked();
        let (resource, turns) = (Arc::new(OnceLock::new()), Arc::new(AtomicU64::new(0)));
        let rude = Rude { resource: Arc::clone(&resource), turns: Arc::clone(&turns) };
        resource.set(LoggingResource::new(pinned(&memory), rude)).unwrap();
        let logging = resource.get().unwrap();
        let segment = logging.allocate_segment(100).unwrap();
        assert!(logging.take_error().is_none());
        assert_eq!(logging.unwritten(), 2, "what the writer asked for and gave back");
        let second = logging.allocate_segment(100).unwrap();
        assert_eq!(logging.take_error().unwrap().to_string(), "full");
        assert!(logging.take_error().is_none());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| logging.trim()));
        assert!(panicked.is_err());
        drop((segment, second));
        logging.trim().unwrap();
        assert!(turns.load(Ordering::Relaxed) > 3, "the writer came back");
    });
}

/// A writer that takes memory of the resource for every line, as one that keeps its lines in buffers cut from it does; it
/// keeps what it got, and gives back what was got elsewhere.
struct Greedy {
    resource: Arc<OnceLock<LoggingResource<CudaResource>>>,
    hoard: Arc<Mutex<Vec<RawBuffer>>>,
    page: Page,
}

impl Write for Greedy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let resource = self.resource.get().unwrap();
        let own = resource.allocate_segment(64).unwrap();
        resource.trim().unwrap();
        let others = std::mem::replace(&mut *self.hoard.lock().unwrap(), vec![own]);
        drop(others);
        self.page.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_allocates_for_every_line_comes_to_an_end_and_its_log_can_be_replayed() {
    watched(|| {
        let memory = unchecked();
        let (resource, hoard, page) = (Arc::new(OnceLock::new()), Arc::default(), Page::default());
        let (theirs, its) = (Arc::clone(&resource), Arc::clone(&hoard));
        let greedy = Greedy { resource: theirs, hoard: its, page: page.clone() };
        resource.set(LoggingResource::new(pinned(&memory), greedy)).unwrap();
        let logging = resource.get().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for bytes in 1..20 {
                        let segment = logging.allocate_segment(bytes).unwrap();
                        // Its last handle may go within the writer.
                        hoard.lock().unwrap().push(segment);
                    }
                });
            }
        });
        // Dropped with the hoard unlocked: the writer takes from it.
        let left = std::mem::take(&mut *hoard.lock().unwrap());
        drop(left);
        assert!(logging.unwritten() > 0 && logging.take_error().is_none());
        let left = std::mem::take(&mut *hoard.lock().unwrap());
        drop(left);
        let log = read_log(&page.text()).unwrap();
        let of = |action: LogAction| log.iter().filter(|entry| entry.action == action).count();
        assert_eq!((of(LogAction::Allocate), of(LogAction::Free), of(LogAction::Trim)), (57, 57, 0));
        assert_eq!(replay(&log, &pinned(&memory)).unwrap().left, 0);
    });
}

#[test]
fn a_callback_that_frees_is_asked_again_and_one_that_does_not_ends_it() {
    let memory = shared();
    let hoard: Arc<Mutex<Vec<RawBuffer>>> = Arc::default();
    let limited = Arc::new(LimitedResource::new(pinned(&memory), 1000));
    for _ in 0..4 {
        hoard.lock().unwrap().push(limited.allocate_segment(250).unwrap());
    }
    let (theirs, calls) = (Arc::clone(&hoard), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&calls);
    let resource = FailureCallbackResource::new(Arc::clone(&limited), move |shortage| {
        assert_eq!((shortage.requested, shortage.total), (700, Some(1000)));
        counted.fetch_add(1, Ordering::Relaxed);
        let freed = theirs.lock().unwrap().pop();
        freed.is_some()
    });
    let segment = resource.allocate_segment(700).unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), hoard.lock().unwrap().len()), (3, 1));
    let error = resource.allocate_segment(700).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(calls.load(Ordering::Relaxed), 5, "one more was freed, then there was none");
    drop(segment);
    assert_eq!(limited.used(), 0);
}

#[test]
fn a_callback_that_only_promises_is_asked_so_often_and_no_more() {
    let memory = shared();
    let failing = FailingResource::new(pinned(&memory));
    failing.refuse(u64::MAX);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let resource = FailureCallbackResource::new(failing, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        true
    })
    .with_retries(3);
    assert_eq!(resource.allocate_segment(10).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    assert_eq!(resource.allocate_segment(0).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

/// Boxed, so that a callback can name the resource that it is part of.
type Helped = FailureCallbackResource<Arc<FailingResource<CudaResource>>, Box<Help>>;
type Help = dyn Fn(&transload_core::MemoryShortage) -> bool + Send + Sync;

#[test]
fn a_callback_may_use_its_resource_and_may_panic() {
    watched(|| {
        let memory = unchecked();
        let failing = Arc::new(FailingResource::new(pinned(&memory)));
        let resource: Arc<OnceLock<Helped>> = Arc::default();
        let (own, turns) = (Arc::clone(&resource), AtomicU64::new(0));
        let help: Box<Help> = Box::new(move |_| {
            if turns.fetch_add(1, Ordering::Relaxed) == 0 {
                // Refused, without another callback.
                assert!(own.get().unwrap().allocate_segment(1).is_err());
                panic!("the callback panics");
            }
            true
        });
        let made = FailureCallbackResource::new(Arc::clone(&failing), help);
        assert!(resource.set(made).is_ok());
        failing.refuse(2);
        let asked = || resource.get().unwrap().allocate_segment(10);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(asked));
        assert!(panicked.is_err());
        failing.refuse(1);
        assert!(asked().is_ok(), "after a panic it is helped again");
    });
}

#[test]
fn an_upstream_that_fails_at_any_call_leaves_nothing_behind() {
    for nth in 1..8 {
        let (device, memory) = manager();
        let memory = Arc::new(memory);
        let failing = Arc::new(FailingResource::new(pinned(&memory)));
        failing.refuse_call(nth);
        let page = Page::default();
        let stack = StatisticsResource::new(TrackingResource::new(
            LoggingResource::new(LimitedResource::new(Arc::clone(&failing), 1 << 20), page.clone()),
            TrackedOrigin::Nothing,
        ));
        let outcomes: Vec<_> = (0..6).map(|_| stack.allocate_segment(100)).collect();
        let refused: Vec<usize> = (0..6).filter(|index| outcomes[*index].is_err()).collect();
        let expected: Vec<usize> = (nth <= 6).then_some(nth as usize - 1).into_iter().collect();
        assert_eq!(refused, expected);
        assert_eq!(stack.statistics().failures, expected.len() as u64);
        assert_eq!(read_log(&page.text()).unwrap().len(), 6);
        drop(outcomes);
        assert_eq!(stack.statistics().current_bytes, 0);
        drop((stack, failing));
        memory.drain().unwrap();
        assert!(memory.ledger().is_empty());
        drop(memory);
        device.assert_ledger_empty();
    }
}

#[test]
fn many_threads_are_counted_tracked_and_logged() {
    let (memory, page) = (shared(), Page::default());
    let stack = StatisticsResource::new(TrackingResource::new(
        LoggingResource::new(pinned(&memory), page.clone()),
        TrackedOrigin::Nothing,
    ));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let stack = &stack;
            scope.spawn(move || {
                let held: Vec<_> =
                    (1..20).map(|size| stack.allocate_segment(thread * 1000 + size).unwrap()).collect();
                assert!(stack.statistics().current_segments >= 19);
                drop(held);
            });
        }
    });
    let now = stack.statistics();
    assert_eq!((now.current_bytes, now.current_segments, now.total_segments), (0, 0, 76));
    drop(stack);
    let log = read_log(&page.text()).unwrap();
    assert_eq!(log.len(), 152);
    let report = replay(&log, &pinned(&memory)).unwrap();
    assert_eq!((report.allocations, report.left), (76, 0));
    // Each thread may have one that the log knows of and the count does not, not yet or no more.
    let between = 4 * 3019;
    assert!(report.peak_bytes <= now.peak_bytes + between, "{} and {}", report.peak_bytes, now.peak_bytes);
}
