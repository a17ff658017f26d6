//! A host view keeps conflicting operations out, and waits for those that were there before.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use transload_core::{
    ErrorKind, MemoryKind, Timing, copy_on_host,
    host_access::{self, HostAccess},
};

use crate::mock::{MockQueue, buffer, host_buffer, memory};

#[test]
fn an_open_view_makes_conflicting_operations_busy() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let kind = || queue.copy(&a, &b).unwrap_err().kind();

    let reading = a.read().unwrap();
    queue.copy(&a, &b).unwrap();
    queue.complete(1);
    assert_eq!(queue.copy(&b, &a).unwrap_err().kind(), ErrorKind::Busy);
    drop(reading);

    let writing = a.write().unwrap();
    assert_eq!(kind(), ErrorKind::Busy);
    assert_eq!(a.read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(a.try_write().unwrap_err().kind(), ErrorKind::Busy);
    drop(writing);

    let part = b.slice(..50).unwrap();
    let view = part.read().unwrap();
    assert_eq!(kind(), ErrorKind::Busy);
    queue.write(&b.slice(50..).unwrap()).unwrap();
    drop(view);
    assert_eq!(queue.count(), 2);
    queue.copy(&a, &b).unwrap();
}

#[test]
fn try_read_returns_busy_and_read_waits() {
    let queue = MockQueue::new();
    let (a, b) = (buffer(100), buffer(100));
    let fence = queue.copy(&a, &b).unwrap();
    assert_eq!(b.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(a.try_write().unwrap_err().kind(), ErrorKind::Busy);
    assert!(a.try_read().is_ok(), "reading beside a reader");
    assert!(b.slice(..0).unwrap().try_write().is_ok(), "no byte of it is in use");
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let view = b.read().unwrap();
            (view.len(), fence.is_known_complete())
        });
        let writer = scope.spawn(|| a.write().map(|view| view.len()).unwrap());
        queue.complete(1);
        assert_eq!(reader.join().unwrap(), (100, true));
        assert_eq!(writer.join().unwrap(), 100);
    });
}

#[test]
fn the_failure_of_an_operation_does_not_stop_a_view() {
    let queue = MockQueue::new();
    let b = buffer(100);
    let fence = queue.write(&b).unwrap();
    queue.fail(1, "broken");
    assert!(b.try_read().is_ok());
    assert!(fence.wait().is_err());
}

#[test]
fn what_a_view_writes_the_next_one_reads() {
    let b = buffer(10);
    b.slice(3..5).unwrap().write().unwrap().copy_from_slice(&[7, 8]);
    assert_eq!(*b.read().unwrap(), [0, 0, 0, 7, 8, 0, 0, 0, 0, 0]);
}

#[test]
fn inaccessible_memory_has_no_view() {
    let (device, _) = memory(&Default::default(), MemoryKind::Device, 10, true);
    let error = device.read().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("mock:0/device"), "{error}");
    let (sealed, _) = memory(&Default::default(), MemoryKind::Pageable, 10, false);
    assert!(sealed.read().is_ok());
    assert_eq!(sealed.write().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(MockQueue::new().write(&sealed).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

static WATCHED: Mutex<Vec<(usize, usize, HostAccess)>> = Mutex::new(Vec::new());
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
/// The address at which the hook panics once.
static PANICS_AT: AtomicUsize = AtomicUsize::new(0);

#[test]
fn views_and_host_copies_report_to_the_hook() {
    let b = host_buffer(MemoryKind::Pageable, 1000);
    let address = b.host_address().unwrap().as_ptr().addr();
    ADDRESS.store(address, Ordering::SeqCst);
    // Other tests run beside this one.
    host_access::set_hook(|at, bytes, access| {
        let ours = ADDRESS.load(Ordering::SeqCst);
        if (ours..ours + 1000).contains(&at) {
            WATCHED.lock().unwrap().push((at - ours, bytes, access));
        }
        let planted = PANICS_AT.compare_exchange(at, 0, Ordering::SeqCst, Ordering::SeqCst);
        assert!(planted.is_err(), "planted");
    });
    drop(b.slice(10..30).unwrap().read().unwrap());
    drop(b.write().unwrap());
    let other = host_buffer(MemoryKind::Pageable, 8);
    assert!(copy_on_host(&b.slice(..8).unwrap(), &other, Timing::Off).unwrap().is_some());
    assert!(copy_on_host(&other, &b.slice(8..16).unwrap(), Timing::Off).unwrap().is_some());
    // One that panics leaves no view open.
    let fresh = host_buffer(MemoryKind::Pageable, 8);
    PANICS_AT.store(fresh.host_address().unwrap().as_ptr().addr(), Ordering::SeqCst);
    let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(fresh.write())));
    assert!(opened.is_err());
    drop(fresh.try_write().unwrap());
    let (read, write) = (HostAccess::Read, HostAccess::Write);
    assert_eq!(*WATCHED.lock().unwrap(), [(10, 20, read), (0, 1000, write), (0, 8, read), (8, 8, write)]);
}
