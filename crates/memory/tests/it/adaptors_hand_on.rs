//! What adaptors leave as it is: what is asked of the resource within reaches it, and what it says of itself and its segments
//! comes out again.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    failing::FailingResource,
    replay::{read_log, replay},
};
use transload_core::{ErrorKind, MemoryKind, MemoryShortage};
use transload_memory::{
    CudaMemoryManager, CudaResource, FailureCallbackResource, LimitedResource, LoggingResource,
    MemoryResource, StatisticsResource, TrackedOrigin, TrackingResource, UploadBuffer, WriteCombinedResource,
};

use super::{heap::watched, shared, unchecked};

fn pinned(memory: &Arc<CudaMemoryManager>) -> CudaResource {
    CudaResource::new(memory, MemoryKind::Pinned).unwrap()
}

#[test]
fn a_trim_reaches_the_resource_within_every_adaptor() {
    let memory = shared();
    let within = Arc::new(FailingResource::new(pinned(&memory)));
    let upstream = || Arc::clone(&within);
    let adaptors: [(&str, Box<dyn MemoryResource>); 5] = [
        ("statistics", Box::new(StatisticsResource::new(upstream()))),
        ("tracking", Box::new(TrackingResource::new(upstream(), TrackedOrigin::Nothing))),
        ("limited", Box::new(LimitedResource::new(upstream(), 1000))),
        ("logging", Box::new(LoggingResource::new(upstream(), io::sink()))),
        ("failure callback", Box::new(FailureCallbackResource::new(upstream(), |_| false))),
    ];
    for (times, (name, adaptor)) in (1..).zip(&adaptors) {
        adaptor.trim().unwrap();
        assert_eq!(within.trimmed(), times, "{name}");
        assert_eq!((adaptor.place(), adaptor.device()), (within.place(), within.device()), "{name}");
    }
}

#[test]
fn memory_that_takes_nothing_in_stays_so_within_every_adaptor_and_is_known_for_what_it_is() {
    let memory = shared();
    let resource = StatisticsResource::new(TrackingResource::new(
        LoggingResource::new(LimitedResource::new(WriteCombinedResource::new(&memory), 1000), io::sink()),
        TrackedOrigin::Nothing,
    ));
    let segment = resource.allocate_segment(100).unwrap();
    assert!(!segment.is_writable());
    assert_eq!(segment.write().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let upload = UploadBuffer::new(segment).unwrap();
    upload.write(0, &[7; 100]).unwrap();
    assert_eq!(*upload.source().read().unwrap(), [7; 100]);
}

#[test]
fn what_the_resource_within_refuses_takes_nothing_of_the_limit() {
    let memory = shared();
    let within = Arc::new(FailingResource::new(pinned(&memory)));
    let limited = LimitedResource::new(Arc::clone(&within), 1000);
    within.refuse(3);
    for _ in 0..3 {
        assert_eq!(limited.allocate_segment(600).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(limited.used(), 0);
    }
    let all = limited.allocate_segment(1000).unwrap();
    assert_eq!((limited.used(), limited.info().unwrap().free), (1000, 0));
    drop(all);
}

#[test]
fn a_limit_beyond_what_there_is_promises_no_more_than_that() {
    let memory = shared();
    let within = CudaResource::new(&memory, MemoryKind::Device).unwrap();
    let total = within.info().unwrap().total;
    let info = LimitedResource::new(within, u64::MAX).info().unwrap();
    assert!(info.free <= total && info.total == total, "{info:?}");
}

#[test]
fn only_a_lack_of_memory_is_helped() {
    let memory = shared();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let resource = FailureCallbackResource::new(pinned(&memory), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        true
    });
    assert_eq!(resource.allocate_segment(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

/// Boxed, so that a callback can name the resource that it is part of.
type Helped = FailureCallbackResource<Arc<FailingResource<CudaResource>>, Box<Help>>;
type Help = dyn Fn(&MemoryShortage) -> bool + Send + Sync;

#[test]
fn what_a_callback_asks_of_its_own_resource_calls_nobody_again() {
    watched(|| {
        let memory = unchecked();
        let failing = Arc::new(FailingResource::new(pinned(&memory)));
        let resource: Arc<OnceLock<Helped>> = Arc::default();
        let (own, calls) = (Arc::clone(&resource), Arc::new(AtomicU64::new(0)));
        let (counted, inner) = (Arc::clone(&calls), Arc::new(Mutex::new(Vec::new())));
        let noted = Arc::clone(&inner);
        let help: Box<Help> = Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            // The second time too: the first refusal has not left the callback.
            for _ in 0..2 {
                let asked = own.get().unwrap().allocate_segment(1).map(drop);
                noted.lock().unwrap().push(asked.err().map(|error| error.kind()));
            }
            true
        });
        assert!(resource.set(FailureCallbackResource::new(Arc::clone(&failing), help)).is_ok());
        failing.refuse(3);
        assert!(resource.get().unwrap().allocate_segment(10).is_ok(), "asked again, there is room");
        assert_eq!(*inner.lock().unwrap(), [Some(ErrorKind::OutOfMemory); 2]);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    });
}

/// A writer that tests can read, shared by two logs.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_log_says_that_a_segment_is_given_back_before_anybody_else_can_have_it() {
    let (memory, page) = (shared(), Page::default());
    let within = LoggingResource::new(pinned(&memory), page.clone());
    // The second one of the resource within is the first one of the resource around it.
    drop(within.allocate_segment(1).unwrap());
    let around = LoggingResource::new(within, page.clone());
    drop(around.allocate_segment(50).unwrap());
    let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
    let freed: Vec<&str> = text.lines().filter(|line| line.contains(",free,")).collect();
    assert_eq!(freed.len(), 3, "{text}");
    assert!(freed[1].ends_with(",free,1,50") && freed[2].ends_with(",free,2,50"), "{text}");
}

#[test]
fn what_was_refused_in_a_log_may_be_refused_for_any_reason_in_its_replay() {
    let memory = shared();
    let log = read_log("1,1,refused,0,0\n2,1,allocate,1,5\n3,1,free,1,5").unwrap();
    let report = replay(&log, &pinned(&memory)).unwrap();
    assert_eq!((report.allocations, report.refusals, report.left), (1, 1, 0));
    let given = read_log("1,1,allocate,1,0").unwrap();
    assert_eq!(replay(&given, &pinned(&memory)).unwrap_err().kind(), ErrorKind::InvalidArgument);
}
