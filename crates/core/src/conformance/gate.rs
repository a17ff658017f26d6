//! A queue of no backend whose work completes on the suite's command, which reveals work that does not wait
//! for it.

use std::{
    any::Any,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    DeviceId, Fence, Operation, Place, PointSignal, Queue, RawBuffer, Result, StreamPriority, Timeline,
    TimelineId, Timing, next_timeline_id, submit,
};

/// The queue. Opens when it is dropped, so that a failed check leaves nothing blocked; and after a timeout,
/// so that a backend that blocks wrongly is reported and does not hang.
pub(super) struct Gate {
    timeline: Arc<dyn Timeline>,
    inner: Arc<GateTimeline>,
}

struct HeldOperation {
    after: Vec<Fence>,
    copy: Option<HostCopy>,
}

struct HostCopy {
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
}

// SAFETY: addresses of buffers that may be used from any thread; the caller of `enqueue` keeps them alive.
unsafe impl Send for HostCopy {}

struct GateTimeline {
    id: TimelineId,
    reached: AtomicU64,
    state: Mutex<GateState>,
    opened: Condvar,
    held: Mutex<Vec<HeldOperation>>,
    was_forced: AtomicBool,
    /// Whether it is of threads of the host.
    is_of_host: bool,
}

#[derive(Default)]
struct GateState {
    enqueued: u64,
    is_open: bool,
    wakers: Vec<Waker>,
    signals: Vec<PointSignal>,
}

impl Gate {
    pub(super) fn closed(timeout: Duration) -> Self {
        Self::new(timeout, false)
    }

    /// Creates a queue of the host, whose work comes after nothing else.
    pub(super) fn of_host(timeout: Duration) -> Self {
        Self::new(timeout, true)
    }

    fn new(timeout: Duration, is_of_host: bool) -> Self {
        let inner = Arc::new(GateTimeline {
            id: next_timeline_id(),
            reached: AtomicU64::new(0),
            state: Mutex::default(),
            opened: Condvar::new(),
            held: Mutex::default(),
            was_forced: AtomicBool::new(false),
            is_of_host,
        });
        let watched = Arc::clone(&inner);
        // Without this thread a backend that blocks hangs; nothing else depends on it.
        let _watch = thread::Builder::new().spawn(move || watched.force_after(timeout));
        Self { timeline: Arc::clone(&inner) as _, inner }
    }

    /// Returns whether the timeout opened the gate.
    pub(super) fn was_forced(&self) -> bool {
        self.inner.was_forced.load(Ordering::Acquire)
    }

    /// Uses the buffer exclusively, without changing it, until the gate opens.
    pub(super) fn hold(&self, buffer: &RawBuffer) -> Result<Fence> {
        submit(self, &Operation::Prefetch { buffer, to: DeviceId::Cpu }, Timing::Off)
    }

    /// Performs everything enqueued so far.
    pub(super) fn open(&self) {
        self.inner.open();
    }
}

impl GateTimeline {
    fn open(&self) {
        // Locked until their points are reached, so that none that comes meanwhile is.
        let mut held = self.held.lock();
        for HeldOperation { after, copy } in held.drain(..) {
            for fence in after {
                let _at_rest_either_way = fence.wait();
            }
            if let Some(HostCopy { src, dst, bytes }) = copy {
                // SAFETY: `enqueue`'s caller keeps both ranges alive and unused by others until the fence
                // below is complete, and they are host memory of this length that does not overlap.
                unsafe { ptr::copy_nonoverlapping(src, dst, bytes) };
            }
        }
        let mut state = self.state.lock();
        state.is_open = true;
        self.reached.store(state.enqueued, Ordering::Release);
        let (wakers, signals) = (std::mem::take(&mut state.wakers), std::mem::take(&mut state.signals));
        drop(state);
        drop(held);
        self.opened.notify_all();
        signals.into_iter().for_each(|signal| signal());
        wakers.into_iter().for_each(crate::hazard::wake);
    }

    fn force_after(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !state.is_open {
            if self.opened.wait_until(&mut state, until).timed_out() {
                drop(state);
                self.was_forced.store(true, Ordering::Release);
                self.open();
                return;
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

// SAFETY: it moves nothing; its fences complete when the suite opens the gate.
unsafe impl Queue for Gate {
    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        false
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], _: Timing) -> Result<Fence> {
        let copy = match operation {
            Operation::Copy { src, dst } => src.host_address().zip(dst.host_address()).map(|(from, to)| {
                HostCopy { src: from.as_ptr(), dst: to.as_ptr(), bytes: src.len().min(dst.len()) }
            }),
            _ => None,
        };
        let mut held = self.inner.held.lock();
        held.push(HeldOperation { after: after.to_vec(), copy });
        let mut state = self.inner.state.lock();
        state.enqueued += 1;
        let (point, is_open) = (state.enqueued, state.is_open);
        drop(state);
        drop(held);
        if is_open {
            self.inner.open();
        }
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }

    fn outstanding(&self) -> u64 {
        self.inner.state.lock().enqueued - self.inner.reached()
    }
}

// SAFETY: its points use no memory.
unsafe impl Timeline for GateTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        if self.is_of_host { DeviceId::Cpu } else { DeviceId::Other("gate", 0) }
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, point: u64) -> Result<()> {
        let mut state = self.state.lock();
        while self.reached() < point {
            self.opened.wait(&mut state);
        }
        Ok(())
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        // Cloning a waker runs a backend's code, so not under the lock.
        let waker = waker.clone();
        let mut state = self.state.lock();
        if self.reached() >= point {
            drop(state);
            return true;
        }
        state.wakers.push(waker);
        false
    }

    fn ends_by_host_alone(&self, _: u64) -> bool {
        self.is_of_host
    }

    fn signal_at(&self, point: u64, signal: PointSignal) {
        let mut state = self.state.lock();
        if self.reached() >= point {
            drop(state);
            signal();
        } else {
            state.signals.push(signal);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
