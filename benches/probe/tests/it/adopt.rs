//! The functions that take in memory, streams and events, in one process with the software driver.

use std::{
    ffi::c_void,
    ptr,
    sync::{Mutex, PoisonError},
    thread::{self, ThreadId},
};

use transload_cuda_sim::harness::{self, EndCheck};
use transload_cuda_sys::{AsStream, Context, Device, Event, EventTiming, Stream, StreamOptions, check, ffi};
use transload_probe as _;

const BYTES: u64 = 100_000;
const DEVICE_MEMORY: u32 = 3;
/// On a stream of the library's; without a stream; without an event.
const OURS: i64 = -1;
const NO_EVENT: u64 = 0;
const BUSY: i64 = -6;
const REFUSED: i64 = -7;

type Session = *mut c_void;
type Release = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn transload_probe_dlpack_open(ordinal: u32) -> Session;
    fn transload_probe_dlpack_close(session: Session) -> i64;
    fn transload_probe_dlpack_allocate(session: Session, kind: u32, bytes: u64) -> i64;
    fn transload_probe_dlpack_address(session: Session, buffer: i64) -> u64;
    fn transload_probe_dlpack_fill(session: Session, buffer: i64, byte: u8) -> i64;
    fn transload_probe_dlpack_compare(session: Session, buffer: i64, byte: u8) -> i64;
    fn transload_probe_dlpack_drop(session: Session, buffer: i64) -> i64;
    fn transload_probe_dlpack_drain(session: Session) -> i64;
    fn transload_probe_adopt(
        session: Session,
        address: u64,
        bytes: u64,
        stream: i64,
        release: Option<Release>,
        owner: *mut c_void,
    ) -> i64;
    fn transload_probe_adopt_stream(
        session: Session,
        handle: u64,
        release: Option<Release>,
        owner: *mut c_void,
    ) -> i64;
    fn transload_probe_drop_stream(session: Session, stream: i64) -> i64;
    fn transload_probe_copy(session: Session, src: i64, dst: i64, stream: i64, event: u64) -> i64;
    fn transload_probe_copy_event(session: Session) -> u64;
    fn transload_probe_begin_use(session: Session, buffer: i64, stream: i64) -> i64;
    fn transload_probe_end_use(session: Session) -> i64;
}

/// As an interpreter's lock, which the owners need, and which threads did so.
#[derive(Default)]
struct Lock {
    released: Mutex<Vec<ThreadId>>,
}

impl Lock {
    fn owner(&self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    fn released(&self) -> Vec<ThreadId> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: the owner is a lock that outlives the session.
    let lock = unsafe { &*owner.cast::<Lock>() };
    lock.released.lock().unwrap_or_else(PoisonError::into_inner).push(thread::current().id());
}

/// The other side: a context, a stream and memory of its own, and a session of the probe's.
struct Other {
    session: Session,
    stream: Stream,
    context: Context,
    address: u64,
    _end: EndCheck,
}

impl Other {
    fn new() -> Self {
        let test = harness::device();
        let context = Context::primary(Device::new(test.ordinal()).unwrap()).unwrap();
        let stream = Stream::new(&context, StreamOptions::default()).unwrap();
        let mut address = 0;
        // SAFETY: the out pointer is valid and the context is bound.
        let allocate = || unsafe { ffi::cuMemAlloc_v2(&mut address, BYTES as usize) };
        context.call("cuMemAlloc_v2", allocate).unwrap();
        // SAFETY: takes any number.
        let session = unsafe { transload_probe_dlpack_open(test.ordinal()) };
        assert!(!session.is_null());
        Self { session, stream, context, address, _end: test.end_check() }
    }

    /// Sets all bytes, as a kernel of theirs would.
    fn fill(&self, byte: u8) {
        let _bound = self.context.enter().unwrap();
        // SAFETY: their own memory, which lives until `finish`.
        let code = unsafe { ffi::cuMemsetD8Async(self.address, byte, BYTES as usize, self.stream.as_raw()) };
        check("cuMemsetD8Async", code).unwrap();
    }

    fn adopt(&self, stream: i64, lock: &Lock) -> i64 {
        // SAFETY: the memory and the lock live until `finish`; work on it is ordered by the tests.
        unsafe {
            transload_probe_adopt(self.session, self.address, BYTES, stream, Some(release), lock.owner())
        }
    }

    fn adopt_stream(&self, lock: &Lock) -> i64 {
        let handle = self.stream.as_raw() as u64;
        // SAFETY: the stream and the lock live until `finish`, and nothing is captured.
        unsafe { transload_probe_adopt_stream(self.session, handle, Some(release), lock.owner()) }
    }

    fn allocate(&self) -> i64 {
        // SAFETY: the session is open.
        unsafe { transload_probe_dlpack_allocate(self.session, DEVICE_MEMORY, BYTES) }
    }

    /// Drops buffers, and then their memory.
    fn finish(self, buffers: &[i64]) {
        // SAFETY: the session is open until here, and nothing uses the memory any more.
        unsafe {
            for buffer in buffers {
                assert_eq!(transload_probe_dlpack_drop(self.session, *buffer), 0);
            }
            assert_eq!(transload_probe_dlpack_drain(self.session), 0);
            assert_eq!(transload_probe_dlpack_close(self.session), 0);
            self.context.call("cuMemFree_v2", || ffi::cuMemFree_v2(self.address)).unwrap();
        }
    }
}

#[test]
fn adopted_memory_is_copied_both_ways_in_the_streams_order() {
    let (lock, other) = (Lock::default(), Other::new());
    let (stream, ours) = (other.adopt_stream(&lock), other.allocate());
    for round in 1..10 {
        other.fill(round);
        let theirs = other.adopt(stream, &lock);
        // SAFETY: the session is open.
        unsafe {
            assert_eq!(transload_probe_dlpack_address(other.session, theirs), other.address);
            assert_eq!(transload_probe_copy(other.session, theirs, ours, stream, NO_EVENT), 0);
            other.fill(0xEE);
            assert_eq!(transload_probe_dlpack_compare(other.session, ours, round), 0);
            assert_eq!(transload_probe_dlpack_fill(other.session, ours, 100 + round), 0);
            assert_eq!(transload_probe_copy(other.session, ours, theirs, stream, NO_EVENT), 0);
            assert_eq!(transload_probe_dlpack_compare(other.session, theirs, 100 + round), 0);
            assert_eq!(transload_probe_dlpack_drop(other.session, theirs), 0);
        }
    }
    // SAFETY: the session is open.
    unsafe {
        assert_eq!(transload_probe_drop_stream(other.session, stream), 0);
        assert_eq!(transload_probe_drop_stream(other.session, stream), REFUSED);
        assert_eq!(transload_probe_dlpack_drop(other.session, ours), 0);
        assert_eq!(transload_probe_dlpack_drain(other.session), 0);
    }
    assert_eq!(lock.released().len(), 9 + 1, "nine buffers' owner and the stream's");
    other.finish(&[]);
}

#[test]
fn work_that_was_not_declared_is_a_use() {
    let (lock, other) = (Lock::default(), Other::new());
    let (stream, ours) = (other.adopt_stream(&lock), other.allocate());
    let theirs = other.adopt(OURS, &lock);
    // SAFETY: the session is open.
    unsafe {
        assert_eq!(transload_probe_end_use(other.session), REFUSED);
        assert_eq!(transload_probe_dlpack_fill(other.session, theirs, 1), 0);
        assert_eq!(transload_probe_begin_use(other.session, theirs, stream), 0);
        other.fill(2);
        assert_eq!(transload_probe_dlpack_fill(other.session, theirs, 3), BUSY);
        assert_eq!(transload_probe_end_use(other.session), 0);
        assert_eq!(transload_probe_copy(other.session, theirs, ours, OURS, NO_EVENT), 0);
        assert_eq!(transload_probe_dlpack_compare(other.session, ours, 2), 0);
        assert_eq!(transload_probe_drop_stream(other.session, stream), 0);
    }
    other.finish(&[theirs, ours]);
    assert_eq!(lock.released().len(), 2);
}

#[test]
fn events_are_waited_for_both_ways() {
    let (lock, other) = (Lock::default(), Other::new());
    let (theirs, ours) = (other.adopt(OURS, &lock), other.allocate());
    let event = Event::new(&other.context, EventTiming::Disabled).unwrap();
    // SAFETY: the session is open and the events are alive.
    unsafe {
        assert_eq!(transload_probe_copy_event(other.session), 0, "there was no copy");
        for round in 1..10 {
            other.fill(round);
            event.record(&other.stream).unwrap();
            let recorded = event.as_raw() as u64;
            assert_eq!(transload_probe_copy(other.session, theirs, ours, OURS, recorded), 0);
            let done = transload_probe_copy_event(other.session);
            assert_ne!(done, 0);
            // Nothing but this keeps their next fill behind our copy.
            other.stream.wait_raw_event(ptr::with_exposed_provenance_mut(done as usize)).unwrap();
            other.fill(0xEE);
            assert_eq!(transload_probe_dlpack_compare(other.session, ours, round), 0);
        }
    }
    other.stream.synchronize().unwrap();
    drop(event);
    other.finish(&[theirs, ours]);
}

#[test]
fn owners_wait_for_a_lock_that_nothing_else_needs() {
    let (lock, other) = (Lock::default(), Other::new());
    let ours = other.allocate();
    // SAFETY: the session is open.
    unsafe {
        let held = lock.released.lock().unwrap_or_else(PoisonError::into_inner);
        // More than the library has threads for.
        for round in 1..=64 {
            let theirs = other.adopt(OURS, &lock);
            assert_eq!(transload_probe_dlpack_fill(other.session, theirs, round), 0);
            assert_eq!(transload_probe_copy(other.session, theirs, ours, OURS, NO_EVENT), 0);
            assert_eq!(transload_probe_dlpack_drop(other.session, theirs), 0);
            // Waits for the copy, with the lock held.
            assert_eq!(transload_probe_dlpack_compare(other.session, ours, round), 0);
        }
        assert_eq!(held.len(), 0);
        drop(held);
        assert_eq!(transload_probe_dlpack_drain(other.session), 0);
    }
    let released = lock.released();
    assert_eq!(released.len(), 64);
    assert!(!released.contains(&thread::current().id()));
    other.finish(&[ours]);
}

#[test]
fn what_is_refused_is_released() {
    let (lock, other) = (Lock::default(), Other::new());
    let on_host = [0_u8; 64];
    // SAFETY: the session is open; the memory is refused.
    unsafe {
        for (address, bytes, stream) in [
            (0, BYTES, OURS),
            (other.address, 0, OURS),
            (on_host.as_ptr() as u64, 64, OURS),
            (other.address, BYTES, 7),
        ] {
            let code =
                transload_probe_adopt(other.session, address, bytes, stream, Some(release), lock.owner());
            assert_eq!(code, REFUSED, "{bytes} bytes at {address:#x} after stream {stream}");
        }
        assert_eq!(transload_probe_copy(other.session, 5, 6, OURS, NO_EVENT), REFUSED);
        assert_eq!(transload_probe_dlpack_drain(other.session), 0);
    }
    assert_eq!(lock.released().len(), 4);
    other.finish(&[]);
}
