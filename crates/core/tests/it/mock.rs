//! A mock backend: memory that records when it is freed, and queues whose operations are completed by hand.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    BlockList, DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Place, Queue, RawBuffer, Reclaimer,
    Result, Storage, StreamPriority, Timeline, TimelineId, Timing, next_timeline_id, submit,
};

pub(crate) const DEVICE: DeviceId = DeviceId::Other("mock", 0);
/// The device of [`alias`]es.
pub(crate) const ALIASING: DeviceId = DeviceId::Other("mock", 1);

/// Memory of a test.
pub(crate) struct MockStorage {
    device: DeviceId,
    address: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    writable: bool,
    freed: Arc<AtomicBool>,
}

// SAFETY: it owns its bytes.
unsafe impl Send for MockStorage {}
// SAFETY: nothing but the address is reachable.
unsafe impl Sync for MockStorage {}

impl Drop for MockStorage {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::SeqCst);
        let bytes = std::ptr::slice_from_raw_parts_mut(self.address.as_ptr(), self.len);
        // SAFETY: leaked from a boxed slice in `memory`.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

// SAFETY: a boxed slice of this length, leaked until drop. (Bytes need no alignment in these tests.)
unsafe impl Storage for MockStorage {
    fn place(&self) -> Place {
        Place::new(self.device, self.kind)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.kind.is_host_visible().then_some(self.address)
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

/// A buffer, and whether its memory was freed.
pub(crate) fn memory(
    reclaimer: &Arc<Reclaimer>,
    kind: MemoryKind,
    len: usize,
    writable: bool,
) -> (RawBuffer, Arc<AtomicBool>) {
    memory_of(DEVICE, reclaimer, kind, len, writable)
}

fn memory_of(
    device: DeviceId,
    reclaimer: &Arc<Reclaimer>,
    kind: MemoryKind,
    len: usize,
    writable: bool,
) -> (RawBuffer, Arc<AtomicBool>) {
    let (storage, freed) = storage_at(Place::new(device, kind), len, writable);
    (RawBuffer::new(Box::new(storage), reclaimer), freed)
}

pub(crate) fn storage_at(place: Place, len: usize, writable: bool) -> (MockStorage, Arc<AtomicBool>) {
    let address = NonNull::from(Box::leak(vec![0_u8; len].into_boxed_slice())).cast();
    let freed = Arc::new(AtomicBool::new(false));
    let Place { device, kind, .. } = place;
    (MockStorage { device, address, len, kind, writable, freed: Arc::clone(&freed) }, freed)
}

/// Another device's handle of a buffer's bytes, whose storage is memory of its own here.
pub(crate) fn alias(of: &RawBuffer, reclaimer: &Arc<Reclaimer>) -> (RawBuffer, Arc<AtomicBool>) {
    let (place, len) = (Place::new(ALIASING, of.place().kind), of.allocation_len());
    let (storage, freed) = storage_at(place, len, true);
    (RawBuffer::new_alias(Box::new(storage), reclaimer, of).unwrap(), freed)
}

/// A buffer of the host, of a kind.
pub(crate) fn host_buffer(kind: MemoryKind, len: usize) -> RawBuffer {
    memory_of(DeviceId::Cpu, &Arc::default(), kind, len, true).0
}

/// A buffer for tests that do not look at its end.
pub(crate) fn buffer(len: usize) -> RawBuffer {
    memory(&Arc::default(), MemoryKind::Pageable, len, true).0
}

/// A queue that records the fences each operation waits for. Operations do nothing and complete by
/// [`complete`](Self::complete).
pub(crate) struct MockQueue {
    line: Arc<MockLine>,
    timeline: Arc<dyn Timeline>,
    enqueued: Mutex<Vec<Vec<Fence>>>,
    pub(crate) refuse: AtomicBool,
    /// Its refusals are of operations of which a part is done.
    pub(crate) does_parts: AtomicBool,
    /// Ends every operation as it is enqueued.
    pub(crate) at_once: AtomicBool,
    /// Cannot wait for the fences of other queues.
    pub(crate) waits_for_own_only: AtomicBool,
    /// Polls return complete while `reached` stays behind.
    pub(crate) silently_over: Arc<AtomicBool>,
}

pub(crate) type OnWait = Box<dyn FnOnce() + Send>;

pub(crate) struct MockLine {
    id: TimelineId,
    reached: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether its work can fail by itself.
    can_fail: bool,
    device: DeviceId,
    /// Number of polls.
    pub(crate) polls: AtomicU64,
    /// Called once, by the next thread that waits, before it does.
    pub(crate) on_wait: Mutex<Option<OnWait>>,
    silently_over: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    wakers: Vec<(u64, Waker)>,
    failures: Vec<Failure>,
    last: u64,
}

struct Failure {
    point: u64,
    error: Error,
    /// Whether it failed before it changed a byte.
    untouched: bool,
}

impl MockQueue {
    pub(crate) fn new() -> Self {
        Self::made(false, DEVICE)
    }

    /// A queue whose work fails by itself, as that of host threads does.
    pub(crate) fn failing() -> Self {
        Self::made(true, DEVICE)
    }

    /// A queue of a device.
    pub(crate) fn on(device: DeviceId) -> Self {
        Self::made(false, device)
    }

    fn made(can_fail: bool, device: DeviceId) -> Self {
        let silently_over = Arc::new(AtomicBool::new(false));
        let line = Arc::new(MockLine {
            id: next_timeline_id(),
            reached: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            can_fail,
            device,
            polls: AtomicU64::new(0),
            on_wait: Mutex::default(),
            silently_over: Arc::clone(&silently_over),
        });
        let timeline: Arc<dyn Timeline> = line.clone();
        Self {
            line,
            timeline,
            enqueued: Mutex::default(),
            refuse: AtomicBool::new(false),
            does_parts: AtomicBool::new(false),
            at_once: AtomicBool::new(false),
            waits_for_own_only: AtomicBool::new(false),
            silently_over,
        }
    }

    pub(crate) fn line(&self) -> &MockLine {
        &self.line
    }

    /// Submits a copy; returns its fence.
    pub(crate) fn copy(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<Fence> {
        submit(self, &Operation::Copy { src, dst }, Timing::Off)
    }

    /// Submits something that writes.
    pub(crate) fn write(&self, dst: &RawBuffer) -> Result<Fence> {
        submit(self, &Operation::Fill { dst, pattern: transload_core::Pattern::U8(0) }, Timing::Off)
    }

    /// What the last operation had to come after, as timeline and point, sorted.
    pub(crate) fn last_after(&self) -> Vec<(TimelineId, u64)> {
        let enqueued = self.enqueued.lock();
        let mut after: Vec<_> =
            enqueued.last().unwrap().iter().map(|fence| (fence.timeline().id(), fence.point())).collect();
        after.sort();
        after
    }

    /// How many operations were enqueued.
    pub(crate) fn count(&self) -> u64 {
        self.line.state.lock().last
    }

    /// Ends all operations up to a point.
    pub(crate) fn complete(&self, point: u64) {
        let mut state = self.line.state.lock();
        self.line.reached.fetch_max(point, Ordering::SeqCst);
        let (due, waiting) = std::mem::take(&mut state.wakers).into_iter().partition(|(at, _)| *at <= point);
        state.wakers = waiting;
        drop(state);
        self.line.changed.notify_all();
        let due: Vec<(u64, Waker)> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// As `complete`, the last one with an error.
    pub(crate) fn fail(&self, point: u64, text: &'static str) {
        self.fail_as(point, ErrorKind::Device, text);
    }

    /// As `fail`, before it has touched a byte.
    pub(crate) fn fail_untouched(&self, point: u64, text: &'static str) {
        self.end(Failure { point, error: Error::new(ErrorKind::Device, text), untouched: true });
    }

    pub(crate) fn fail_as(&self, point: u64, kind: ErrorKind, text: &'static str) {
        self.end(Failure { point, error: Error::new(kind, text), untouched: false });
    }

    fn end(&self, failure: Failure) {
        let point = failure.point;
        self.line.state.lock().failures.push(failure);
        self.complete(point);
    }
}

pub(crate) fn key(fence: &Fence) -> (TimelineId, u64) {
    (fence.timeline().id(), fence.point())
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Queue for MockQueue {
    fn device(&self) -> DeviceId {
        self.line.device
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        fence.timeline().id() == self.timeline.id() || !self.waits_for_own_only.load(Ordering::SeqCst)
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, after: &[Fence], _: Timing) -> Result<Fence> {
        self.enqueue_any(after)
    }

    unsafe fn enqueue_blocks(&self, _: &BlockList, after: &[Fence], _: Timing) -> Result<Fence> {
        self.enqueue_any(after)
    }

    fn outstanding(&self) -> u64 {
        self.count() - self.timeline.reached()
    }
}

impl MockQueue {
    fn enqueue_any(&self, after: &[Fence]) -> Result<Fence> {
        if self.refuse.load(Ordering::SeqCst) {
            let error = Error::new(ErrorKind::Device, "refused by the test");
            return Err(if self.does_parts.load(Ordering::SeqCst) { error.of_part() } else { error });
        }
        let mut enqueued = self.enqueued.lock();
        // One is enough for `last_after`, and ten thousand would keep as many fences alive.
        enqueued.clear();
        enqueued.push(after.to_vec());
        let mut state = self.line.state.lock();
        state.last += 1;
        let point = state.last;
        drop(state);
        drop(enqueued);
        if self.at_once.load(Ordering::SeqCst) {
            self.complete(point);
        }
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }
}

impl MockLine {
    fn outcome(state: &State, point: u64) -> Result<()> {
        let failure = state.failures.iter().find(|failure| failure.point == point);
        failure.map_or(Ok(()), |failure| Err(failure.error.clone()))
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for MockLine {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::SeqCst)
    }

    fn enqueued(&self) -> u64 {
        self.state.lock().last
    }

    fn poll(&self, point: u64) -> Result<bool> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        if self.reached() < point && !self.silently_over.load(Ordering::SeqCst) {
            return Ok(false);
        }
        Self::outcome(&self.state.lock(), point).map(|()| true)
    }

    fn wait(&self, point: u64) -> Result<()> {
        let on_wait = self.on_wait.lock().take();
        if let Some(on_wait) = on_wait {
            on_wait();
        }
        let mut state = self.state.lock();
        while self.reached() < point {
            self.changed.wait(&mut state);
        }
        Self::outcome(&state, point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.reached() >= point {
            return true;
        }
        state.wakers.push((point, waker.clone()));
        false
    }

    fn can_fail(&self) -> bool {
        self.can_fail
    }

    fn may_have_written(&self, point: u64) -> bool {
        !self.state.lock().failures.iter().any(|failure| failure.point == point && failure.untouched)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
