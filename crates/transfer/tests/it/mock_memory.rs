//! The mock backend's memory, access to its bytes, and planted panics.

use std::{
    any::Any,
    cell::UnsafeCell,
    collections::VecDeque,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    DeviceId, ErrorKind, Fence, MemoryKind, Place, RawBuffer, Reclaimer, Storage, StreamPriority, TimelineId,
    Timing, WorkloadType,
};

use crate::mock::MockBackend;

/// Live resources, and planted failures.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) allocations: AtomicU64,
    pub(crate) leases: AtomicU64,
    /// What each copy takes by the device's clock, in microseconds; 10 if it is 0.
    pub(crate) planted_micros: AtomicU64,
    /// Outcomes of the next operations that run; `None` succeeds.
    pub(crate) failures: Mutex<VecDeque<Option<ErrorKind>>>,
    /// Addresses that queued operations of a device use.
    pub(crate) in_use: Mutex<Vec<(DeviceId, Range<usize>)>>,
    /// Allocations freed while an operation used them.
    pub(crate) freed_in_use: AtomicU64,
    pub(crate) allocations_panic: Mutex<Panics>,
    pub(crate) enqueues_panic: Mutex<Panics>,
    pub(crate) waits_panic: Mutex<Panics>,
    pub(crate) polls_panic: Mutex<Panics>,
    pub(crate) reached_panics: Mutex<Panics>,
    /// Errors of the next calls of `enqueue`.
    pub(crate) refusals: Mutex<VecDeque<ErrorKind>>,
    /// Whether the next call of `enqueue` fails after a part was done.
    pub(crate) breaks: AtomicBool,
    pub(crate) leased: Mutex<Vec<(DeviceId, StreamPriority, WorkloadType)>>,
    pub(crate) performed: AtomicU64,
    /// Whether operations run when they are enqueued.
    pub(crate) at_once: AtomicBool,
    /// Devices whose operations all fail as lost.
    pub(crate) lost: Mutex<Vec<DeviceId>>,
    /// What copies from a device to the host wait for.
    pub(crate) closed: Mutex<Option<Fence>>,
    /// Kernels that occupy a device, if it has one.
    pub(crate) kernel: Mutex<Option<Fence>>,
    pub(crate) enqueued: AtomicU64,
    /// The queue of each operation.
    pub(crate) used: Mutex<Vec<TimelineId>>,
    /// Fences of other queues that operations were enqueued after.
    pub(crate) after_others: AtomicU64,
    /// Calls of `wake_at` on a queue's timeline.
    pub(crate) wakers_registered: AtomicU64,
    pub(crate) pinned: Mutex<Pinned>,
    pub(crate) pinning: Condvar,
}

/// Which calls panic: after `pass` calls the next `panic` ones.
#[derive(Default)]
pub(crate) struct Panics {
    pub(crate) pass: u64,
    pub(crate) panic: u64,
}

impl Panics {
    /// Panics if this call is one of them.
    pub(crate) fn may_panic(planted: &Mutex<Self>) {
        let mut planted = planted.lock();
        if planted.panic == 0 || planted.pass > 0 {
            planted.pass = planted.pass.saturating_sub(1);
            return;
        }
        planted.panic -= 1;
        drop(planted);
        panic!("planted panic of a backend");
    }
}

impl MockBackend {
    /// After `pass` more allocations the next `panic` ones panic.
    pub(crate) fn panic_at_allocations(&self, pass: u64, panic: u64) {
        *self.shared.allocations_panic.lock() = Panics { pass, panic };
    }

    /// After `pass` more enqueuings the next `panic` ones panic.
    pub(crate) fn panic_at_enqueues(&self, pass: u64, panic: u64) {
        *self.shared.enqueues_panic.lock() = Panics { pass, panic };
    }

    /// After `pass` more waits the next `panic` ones panic.
    pub(crate) fn panic_at_waits(&self, pass: u64, panic: u64) {
        *self.shared.waits_panic.lock() = Panics { pass, panic };
    }

    /// After `pass` more polls the next `panic` ones panic.
    pub(crate) fn panic_at_polls(&self, pass: u64, panic: u64) {
        *self.shared.polls_panic.lock() = Panics { pass, panic };
    }

    /// After `pass` more calls of `reached` the next `panic` ones panic.
    pub(crate) fn panic_at_looks(&self, pass: u64, panic: u64) {
        *self.shared.reached_panics.lock() = Panics { pass, panic };
    }

    /// Returns the calls of `reached` left to panic.
    pub(crate) fn looks_to_panic(&self) -> u64 {
        self.shared.reached_panics.lock().panic
    }

    /// Returns the pinned allocations left to fail.
    pub(crate) fn pinned_to_fail(&self) -> u64 {
        self.shared.pinned.lock().fail
    }

    pub(crate) fn wakers_registered(&self) -> u64 {
        self.shared.wakers_registered.load(Ordering::SeqCst)
    }

    /// Returns the allocations freed while an operation used them.
    pub(crate) fn freed_in_use(&self) -> u64 {
        self.shared.freed_in_use.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// What a copy takes by the device's clock.
    pub(crate) fn moving(&self) -> Duration {
        let planted = self.planted_micros.load(Ordering::SeqCst);
        Duration::from_micros(if planted == 0 { 10 } else { planted })
    }

    /// Records that an operation uses a range. One of a lost device uses nothing.
    pub(crate) fn uses(&self, device: DeviceId, used: Range<usize>) {
        let lost = self.lost.lock();
        if !lost.contains(&device) {
            self.in_use.lock().push((device, used));
        }
    }

    pub(crate) fn uses_no_more(&self, device: DeviceId, start: usize) {
        let mut in_use = self.in_use.lock();
        let found = in_use.iter().position(|(user, used)| *user == device && used.start == start);
        found.map(|at| in_use.swap_remove(at));
    }
}

/// Which pinned allocations fail: after `succeed` ones the next `fail` ones.
#[derive(Default)]
pub(crate) struct Pinned {
    pub(crate) succeed: u64,
    pub(crate) fail: u64,
    /// Threads that are allocating, and how many a failing one waits for, so that several fail at once.
    pub(crate) inside: u64,
    pub(crate) meet: u64,
}

/// Returns a read-only buffer.
pub(crate) fn read_only(bytes: usize) -> RawBuffer {
    let shared = Arc::new(Shared::default());
    let place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    RawBuffer::new(Box::new(Memory::new(place, vec![0; bytes], false, &shared)), &Arc::new(Reclaimer::new()))
}

/// Returns the bytes of a buffer of any kind, once idle.
pub(crate) fn bytes(buffer: &RawBuffer) -> Vec<u8> {
    buffer.wait_idle().ok();
    let memory = buffer.storage().unwrap().as_any().downcast_ref::<Memory>().unwrap();
    // SAFETY: the buffer is idle, and tests that look at it so do not use it from other threads.
    let all = unsafe { std::slice::from_raw_parts(memory.address(), memory.bytes.len()) };
    all[buffer.offset()..][..buffer.len()].to_vec()
}

pub(crate) fn set_bytes(buffer: &RawBuffer, value: u8) {
    buffer.wait_idle().ok();
    let memory = buffer.storage().unwrap().as_any().downcast_ref::<Memory>().unwrap();
    // SAFETY: as above, and within the buffer.
    unsafe { memory.address().add(buffer.offset()).write_bytes(value, buffer.len()) };
}

pub(crate) struct Memory {
    place: Place,
    bytes: Box<[UnsafeCell<u8>]>,
    writable: bool,
    shared: Arc<Shared>,
}

// SAFETY: the buffer's hazards order every access.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(place: Place, bytes: Vec<u8>, writable: bool, shared: &Arc<Shared>) -> Self {
        Panics::may_panic(&shared.allocations_panic);
        shared.allocations.fetch_add(1, Ordering::SeqCst);
        // Not byte by byte: unoptimised, that would take most of these tests' time.
        let bytes = Box::into_raw(bytes.into_boxed_slice()) as *mut [UnsafeCell<u8>];
        // SAFETY: the box was just taken apart, and an `UnsafeCell` has the layout of its content.
        let bytes = unsafe { Box::from_raw(bytes) };
        Self { place, bytes, writable, shared: Arc::clone(shared) }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.bytes.as_ptr())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let own = self.address().addr()..self.address().addr() + self.bytes.len();
        let is_own = |(_, used): &(DeviceId, Range<usize>)| used.start < own.end && own.start < used.end;
        if self.shared.in_use.lock().iter().any(is_own) {
            self.shared.freed_in_use.fetch_add(1, Ordering::SeqCst);
        }
        self.shared.allocations.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: the address is that of `bytes`, which neither moves nor shrinks; alignment does not matter to the tests.
unsafe impl Storage for Memory {
    fn place(&self) -> Place {
        self.place
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.place.kind.is_host_visible().then(|| NonNull::new(self.address()).unwrap())
    }

    fn device_address(&self) -> Option<u64> {
        None
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A queued copy. Addresses suffice: the buffers' hazards keep the memory alive.
pub(crate) struct Work {
    pub(crate) src: usize,
    pub(crate) dst: usize,
    pub(crate) len: usize,
    pub(crate) after: Vec<Fence>,
    pub(crate) timing: Timing,
}

#[derive(Default)]
pub(crate) struct MockLine {
    pub(crate) work: VecDeque<Work>,
    /// Whether a thread runs the first operation.
    pub(crate) performing: bool,
}
