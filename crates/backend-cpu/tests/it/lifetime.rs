//! Memory and threads live exactly as long as work needs them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Wake, Waker},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, ErrorKind, KeptRegistration, Operation, Pattern, RawBuffer, Timing, submit};

use crate::{
    allocate, backend,
    failures::{REFUSED, hold, let_go, refuse},
    gate::Gate,
    lease, noise,
};

/// Counts its drops.
struct Owner {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn dropped_buffers_keep_memory_until_copy_completes() {
    let backend = backend(2, usize::MAX);
    let gate = Gate::new();
    let drops = Arc::new(AtomicUsize::new(0));
    let content = noise(4, 100_000);
    let src = backend.wrap_readonly(Owner { bytes: content.clone(), drops: Arc::clone(&drops) });
    let (middle, dst) = (allocate(&backend, 100_000), allocate(&backend, 100_000));
    let queue = lease(&backend);
    submit(&gate, &Operation::Fill { dst: &middle, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &src, dst: &middle }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &middle, dst: &dst }, Timing::Off).unwrap();
    drop((src, middle));
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert_eq!(backend.resource_counts().allocations, 3);

    gate.open();
    assert!(*dst.read().unwrap() == content[..]);
    drop((dst, queue));
    backend.drain().unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

/// Its destructor needs a lock, like that of an object of Python.
struct Locked {
    bytes: Vec<u8>,
    lock: Arc<Mutex<()>>,
    drops: mpsc::Sender<bool>,
}

impl AsRef<[u8]> for Locked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let got = self.lock.try_lock_for(Duration::from_secs(10)).is_some();
        self.drops.send(got).unwrap();
    }
}

#[test]
fn owner_that_needs_a_lock_holds_up_no_thread() {
    let backend = backend(1, usize::MAX);
    let lock = Arc::new(Mutex::new(()));
    let (drops, dropped) = mpsc::channel();
    let owner = || Locked { bytes: vec![3; 100], lock: Arc::clone(&lock), drops: drops.clone() };
    let dst = allocate(&backend, 100);
    let queue = lease(&backend);
    let held = lock.lock();
    // The last use ends on a worker, then on this thread.
    let gate = Gate::new();
    let src = backend.wrap_readonly(owner());
    submit(&gate, &Operation::Fill { dst: &dst, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    drop(src);
    gate.open();
    assert_eq!(*dst.read().unwrap(), [3; 100]);
    let mut bytes = vec![4_u8; 100];
    let address = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: `bytes` outlives the buffer, and is not touched meanwhile.
    drop(unsafe { backend.wrap_raw(owner(), address, bytes.len()) });
    let fill = Operation::Fill { dst: &dst, pattern: Pattern::U8(1) };
    submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
    assert_eq!(backend.resource_counts().allocations, 3, "owners are counted until they are dropped");
    drop((held, dst, queue));
    backend.drain().unwrap();
    assert_eq!(dropped.try_iter().collect::<Vec<_>>(), [true, true]);
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

#[test]
fn wrapping_frees_memory_that_was_dropped_in_use() {
    let backend = backend(1, usize::MAX);
    let dst = allocate(&backend, 100);
    let mut bytes = vec![1_u8; 100];
    let address = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
    let wrapped: [&dyn Fn() -> RawBuffer; 3] = [
        &|| backend.wrap_vec(vec![1_u8; 100]),
        &|| backend.wrap_readonly([1_u8; 100]),
        // SAFETY: `bytes` outlives the buffer, and is not touched meanwhile.
        &|| unsafe { backend.wrap_raw((), address, 100) },
    ];
    for wrap in wrapped {
        for _ in 0..100 {
            let (gate, src) = (Gate::new(), wrap());
            submit(&gate, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
            drop(src);
            gate.open();
        }
        let pending = backend.resource_counts().pending_free;
        assert!(pending <= 1, "{pending} wrapped owners are kept");
    }
    backend.drain().unwrap();
    assert_eq!(backend.resource_counts().allocations, 1);
}

#[test]
fn memory_in_use_by_other_backend_is_parked() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let buffer = allocate(&backend, 1000);
    submit(&gate, &Operation::Fill { dst: &buffer, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    drop(buffer);
    let ledger = backend.resource_counts();
    assert_eq!((ledger.allocations, ledger.bytes, ledger.pending_free), (1, 1000, 1));
    gate.open();
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty());
}

#[test]
fn work_in_flight_survives_the_backend() {
    let backend = backend(2, 1 << 20);
    let gate = Gate::new();
    let content = noise(8, (3 << 20) + 1);
    let (src, dst) = (backend.wrap_vec(content.clone()), allocate(&backend, content.len()));
    let queue = lease(&backend);
    submit(&gate, &Operation::Copy { src: &dst, dst: &src }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    drop((queue, backend));
    gate.open();
    assert!(*dst.read().unwrap() == content[..]);
}

#[test]
fn a_lease_that_outlives_the_backend_still_works() {
    let backend = backend(1, usize::MAX);
    let queue = lease(&backend);
    let buffer = allocate(&backend, 1 << 20);
    drop(backend);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(3) };
    submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 3));
}

#[test]
fn leases_are_counted_and_queues_reused() {
    let backend = backend(2, usize::MAX);
    let leases: Vec<_> = (0..20).map(|_| lease(&backend)).collect();
    assert_eq!(backend.resource_counts().leases, 20);
    let mut timelines: Vec<_> = leases.iter().map(|lease| lease.timeline().id()).collect();
    timelines.sort();
    timelines.dedup();
    assert_eq!(timelines.len(), 4, "a small set of queues");
    drop(leases);
    assert!(backend.resource_counts().is_empty());
    assert!(timelines.contains(&lease(&backend).timeline().id()));
}

#[test]
fn inline_owner_bytes_are_read_at_final_address() {
    let backend = backend(1, usize::MAX);
    let buffer = backend.wrap_readonly([7_u8; 100]);
    assert_eq!(*buffer.read().unwrap(), [7; 100]);
    assert!(!buffer.is_writable());
}

#[test]
fn raw_memory_is_used_and_not_freed() {
    let backend = backend(1, usize::MAX);
    let mut bytes = vec![1_u8; 200_000];
    let address = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: `bytes` outlives the buffer and the work on it, and is not touched meanwhile.
    let buffer = unsafe { backend.wrap_raw((), address, bytes.len()) };
    let queue = lease(&backend);
    submit(&*queue, &Operation::Fill { dst: &buffer, pattern: Pattern::U8(2) }, Timing::Off).unwrap();
    drop((buffer, queue));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty());
    assert!(bytes.iter().all(|byte| *byte == 2));
}

/// Blocks the worker that wakes it, after the point is reached and before the buffers are dropped.
struct Hold(Mutex<mpsc::Receiver<()>>);

impl Wake for Hold {
    fn wake(self: Arc<Self>) {
        let _let_go = self.0.lock().recv();
    }
}

#[test]
fn drain_waits_for_workers_to_drop_buffers() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let drops = Arc::new(AtomicUsize::new(0));
    let src = backend.wrap_readonly(Owner { bytes: vec![1; 10], drops: Arc::clone(&drops) });
    let dst = allocate(&backend, 10);
    let queue = lease(&backend);
    submit(&gate, &Operation::Fill { dst: &dst, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    let fence = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    let (let_go, hold) = mpsc::channel();
    assert!(!fence.timeline().wake_at(fence.point(), &Waker::from(Arc::new(Hold(Mutex::new(hold))))));
    drop(src);
    gate.open();
    fence.wait().unwrap();
    let (begun, is_begun) = mpsc::channel();
    thread::scope(|scope| {
        let drain = scope.spawn(|| {
            begun.send(()).unwrap();
            backend.drain().unwrap();
            drops.load(Ordering::SeqCst)
        });
        is_begun.recv().unwrap();
        // Time enough for a drain that does not wait to show itself.
        (0..10_000).take_while(|_| !drain.is_finished()).for_each(|_| thread::yield_now());
        let_go.send(()).unwrap();
        assert_eq!(drain.join().unwrap(), 1);
    });
}

#[test]
fn drain_waits_for_tasks_of_operations_queued_after_inline_ones() {
    let backend = backend(1, usize::MAX);
    let queue = Arc::new(lease(&backend));
    let submitter = hold(2, &backend, &queue);
    let (src, dst) = (backend.wrap_vec(vec![1_u8; 10]), allocate(&backend, 10));
    let fence = submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    let (release, held) = mpsc::channel();
    assert!(!fence.timeline().wake_at(fence.point(), &Waker::from(Arc::new(Hold(Mutex::new(held))))));
    drop((src, dst));
    let (begun, is_begun) = mpsc::channel();
    thread::scope(|scope| {
        let drain = scope.spawn(|| {
            begun.send(()).unwrap();
            backend.drain().unwrap();
            backend.resource_counts()
        });
        is_begun.recv().unwrap();
        // Time enough for it to wait for the queue, which has no task yet.
        (0..10_000).take_while(|_| !drain.is_finished()).for_each(|_| thread::yield_now());
        let_go(2);
        fence.wait().unwrap();
        submitter.join().unwrap();
        drop(queue);
        // Time enough for a drain that does not wait to show itself.
        (0..10_000).take_while(|_| !drain.is_finished()).for_each(|_| thread::yield_now());
        release.send(()).unwrap();
        let left = drain.join().unwrap();
        assert!(left.is_empty(), "{left}");
    });
}

struct Explosive(Vec<u8>);

impl AsRef<[u8]> for Explosive {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("an owner's drop panics, on purpose");
    }
}

#[test]
fn panicking_owner_drop_does_not_stop_queue() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let src = backend.wrap_readonly(Explosive(vec![5; 100]));
    let dst = allocate(&backend, 100);
    let queue = lease(&backend);
    submit(&gate, &Operation::Fill { dst: &dst, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
    drop(src);
    gate.open();
    assert_eq!(*dst.read().unwrap(), [5; 100]);
    let large = allocate(&backend, 1 << 20);
    let fill = Operation::Fill { dst: &large, pattern: Pattern::U8(1) };
    submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
}

/// Drains the backend on the thread that wakes it.
struct DrainHere(Arc<transload_backend_cpu::CpuBackend>, Mutex<mpsc::Sender<transload_core::Result<()>>>);

impl Wake for DrainHere {
    fn wake(self: Arc<Self>) {
        let _told = self.1.lock().send(self.0.drain());
    }
}

#[test]
fn drain_on_worker_is_refused() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let buffer = allocate(&backend, 10);
    let queue = lease(&backend);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(1) };
    submit(&gate, &fill, Timing::Off).unwrap();
    let fence = submit(&*queue, &fill, Timing::Off).unwrap();
    let (tell, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(DrainHere(Arc::clone(&backend), Mutex::new(tell))));
    assert!(!fence.timeline().wake_at(fence.point(), &waker));
    gate.open();
    let outcome = told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(outcome.unwrap_err().kind(), transload_core::ErrorKind::Unsupported);
    backend.drain().unwrap();
}

/// A part of a buffer that names the storage of the whole, as blocks of an allocator do.
struct Part(transload_core::RawBuffer);

// SAFETY: the address is that of the buffer, which it keeps, and which nothing else uses.
unsafe impl transload_core::Storage for Part {
    fn place(&self) -> transload_core::Place {
        self.0.place()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn host_address(&self) -> Option<std::ptr::NonNull<u8>> {
        self.0.host_address()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self.0.storage().unwrap().as_any()
    }
}

#[test]
fn vector_is_not_returned_by_a_part_of_its_memory() {
    let backend = backend(1, usize::MAX);
    let whole = backend.wrap_vec(noise(9, 100));
    let part = Part(whole.slice(..10).unwrap());
    let part = transload_core::RawBuffer::new(Box::new(part), &Default::default());
    drop(CpuBackend::unwrap_vec::<u8>(part).unwrap_err());
    assert_eq!(*whole.read().unwrap(), noise(9, 100));
}

#[test]
fn wrapped_vector_is_returned_once_nothing_else_holds_it() {
    let (backend, gate) = (backend(1, usize::MAX), Gate::new());
    let mut content = noise(8, 1000);
    content.reserve_exact(24);
    let (expected, address, capacity) = (content.clone(), content.as_ptr().addr(), content.capacity());
    let buffer = backend.wrap_vec(content);
    let part = buffer.slice(..500).unwrap();
    let buffer = CpuBackend::unwrap_vec::<u8>(buffer).unwrap_err();
    let weak = buffer.downgrade();
    drop(buffer);
    let part = CpuBackend::unwrap_vec::<u8>(part).unwrap_err();
    let buffer = weak.upgrade().unwrap();
    drop((part, weak));
    let buffer = CpuBackend::unwrap_vec::<i8>(buffer).unwrap_err();
    submit(&gate, &Operation::Copy { src: &buffer, dst: &allocate(&backend, 1000) }, Timing::Off).unwrap();
    let buffer = CpuBackend::unwrap_vec::<u8>(buffer).unwrap_err();
    gate.open();
    let returned = CpuBackend::unwrap_vec::<u8>(buffer).unwrap();
    assert_eq!((returned.as_ptr().addr(), returned.capacity()), (address, capacity));
    assert_eq!(returned, expected);

    let mut none = CpuBackend::unwrap_vec::<u64>(backend.wrap_vec(Vec::<u64>::with_capacity(3))).unwrap();
    assert_eq!((none.len(), none.capacity()), (0, 3));
    none.push(1);
    let other = allocate(&backend, 1000);
    drop(CpuBackend::unwrap_vec::<u8>(other).unwrap_err());
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

#[test]
fn damaged_vector_is_not_returned() {
    let backend = backend(1, usize::MAX);
    let buffer = backend.wrap_vec(vec![0_u8; REFUSED + 1]);
    refuse();
    let part = buffer.slice(1..).unwrap();
    let fill = Operation::Fill { dst: &part, pattern: Pattern::U8(1) };
    submit(&*lease(&backend), &fill, Timing::Off).unwrap().wait().unwrap_err();
    drop(part);
    let buffer = CpuBackend::unwrap_vec::<u8>(buffer).unwrap_err();
    assert_eq!(buffer.try_read().map(drop).unwrap_err().kind(), ErrorKind::SourceFailed);
    buffer.assume_written(..).unwrap();
    assert_eq!(CpuBackend::unwrap_vec::<u8>(buffer).unwrap().len(), REFUSED + 1);
}

#[test]
fn registered_vector_is_not_returned() {
    struct Registration;
    impl KeptRegistration for Registration {
        fn family(&self) -> &'static str {
            "cuda"
        }

        fn end(self: Box<Self>, owner: Box<dyn std::any::Any + Send + Sync>) {
            drop(owner);
        }
    }
    let backend = backend(1, usize::MAX);
    let buffer = backend.wrap_vec(vec![3_u8; 100]);
    assert!(buffer.registration_slot().unwrap().keep(Box::new(Registration)).is_ok());
    let buffer = CpuBackend::unwrap_vec::<u8>(buffer).unwrap_err();
    assert_eq!(*buffer.read().unwrap(), [3; 100]);
    drop(buffer);
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
