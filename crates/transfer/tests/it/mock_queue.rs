//! The queues of the backend in memory.

use std::{
    any::Any,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    DeviceId, Error, ErrorKind, Fence, Operation, Place, Queue, RawBuffer, Result, StreamPriority, Timeline,
    TimelineId, Timing, next_timeline_id,
};

use crate::mock_memory::{Memory, MockLine, Panics, Shared, Work};

pub(crate) struct MockTimeline {
    id: TimelineId,
    pub(crate) device: DeviceId,
    reached: AtomicU64,
    enqueued: AtomicU64,
    line: Mutex<MockLine>,
    changed: Condvar,
    errors: Mutex<HashMap<u64, Error>>,
    durations: Mutex<HashMap<u64, Duration>>,
    shared: Arc<Shared>,
}

pub(crate) struct MockQueue {
    pub(crate) timeline: Arc<MockTimeline>,
    erased: Arc<dyn Timeline>,
    shared: Arc<Shared>,
}

impl MockQueue {
    pub(crate) fn new(device: DeviceId, shared: &Arc<Shared>) -> Arc<Self> {
        let timeline = Arc::new(MockTimeline {
            id: next_timeline_id(),
            device,
            reached: AtomicU64::new(0),
            enqueued: AtomicU64::new(0),
            line: Mutex::default(),
            changed: Condvar::new(),
            errors: Mutex::default(),
            durations: Mutex::default(),
            shared: Arc::clone(shared),
        });
        Arc::new(Self { erased: Arc::clone(&timeline) as _, timeline, shared: Arc::clone(shared) })
    }
}

impl MockTimeline {
    /// Runs operations on the calling thread, or waits for a thread that does. Under no lock: one may wait for another queue's.
    pub(crate) fn perform_until(&self, point: u64) {
        let mut line = self.line.lock();
        while self.performed() < point {
            if line.performing {
                self.changed.wait(&mut line);
                continue;
            }
            let Some(next) = line.work.pop_front() else { return };
            line.performing = true;
            drop(line);
            self.perform(&next, self.performed() + 1);
            line = self.line.lock();
            line.performing = false;
            self.reached.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }

    fn performed(&self) -> u64 {
        self.reached.load(Ordering::SeqCst)
    }

    fn is_lost(&self) -> bool {
        self.shared.lost.lock().contains(&self.device)
    }

    fn perform(&self, work: &Work, point: u64) {
        if !self.is_lost() {
            work.after.iter().for_each(|fence| drop(fence.wait()));
        }
        // Held, so that a lost device does not use memory.
        let lost = self.shared.lost.lock();
        let loss = lost.contains(&self.device).then_some(ErrorKind::DeviceLost);
        let planted = self.shared.failures.lock().pop_front().flatten();
        match loss.or(planted) {
            Some(kind) => {
                let error = Error::new(kind, format!("planted failure of operation {point}"));
                self.errors.lock().insert(point, error);
            }
            None => {
                // SAFETY: the submitter's claims keep the memory alive and others away until `reached` says so; the
                // ranges were checked not to overlap.
                unsafe {
                    std::ptr::copy_nonoverlapping(work.src as *const u8, work.dst as *mut u8, work.len)
                };
            }
        }
        drop(lost);
        [work.src, work.dst].into_iter().for_each(|start| self.shared.uses_no_more(self.device, start));
        if work.timing == Timing::Measured {
            self.durations.lock().insert(point, self.shared.moving());
        }
        self.shared.performed.fetch_add(1, Ordering::SeqCst);
    }

    fn outcome(&self, point: u64) -> Result<()> {
        self.errors.lock().get(&point).map_or(Ok(()), |error| Err(error.clone()))
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for MockTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        Panics::may_panic(&self.shared.reached_panics);
        if self.is_lost() { self.enqueued.load(Ordering::SeqCst) } else { self.performed() }
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Panics::may_panic(&self.shared.polls_panic);
        // Who was told that they are open asks no second time for the work behind them.
        if self.shared.closed.lock().as_ref().is_some_and(Fence::is_known_complete) {
            self.perform_until(point);
        }
        self.outcome(point).map(|()| self.performed() >= point)
    }

    fn wait(&self, point: u64) -> Result<()> {
        Panics::may_panic(&self.shared.waits_panic);
        self.perform_until(point);
        self.outcome(point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        self.shared.wakers_registered.fetch_add(1, Ordering::SeqCst);
        let closed = self.shared.closed.lock().clone();
        if let Some(closed) = closed
            && self
                .line
                .lock()
                .work
                .iter()
                .any(|work| work.after.iter().any(|fence| fence.timeline().id() == closed.timeline().id()))
            && !closed.timeline().wake_at(closed.point(), waker)
        {
            return false;
        }
        self.perform_until(point);
        true
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        Ok(self.durations.lock().remove(&point))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Queue for MockQueue {
    fn device(&self) -> DeviceId {
        self.timeline.device
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.erased
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        fence.timeline().as_any().is::<MockTimeline>()
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        Panics::may_panic(&self.shared.enqueues_panic);
        if let Some(kind) = self.shared.refusals.lock().pop_front() {
            return Err(Error::new(kind, "planted refusal"));
        }
        if self.shared.breaks.swap(false, Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Device, "planted failure midway").of_part());
        }
        let (src, dst, len) = match operation {
            Operation::Copy { src, dst } => (src, dst, src.len()),
            Operation::CopyInPlace { src, dst } if self.timeline.device.is_cpu() => (src, dst, src.len()),
            // Its memory is everywhere.
            Operation::Prefetch { buffer, .. } => (buffer, buffer, 0),
            _ => return Err(Error::new(ErrorKind::Unsupported, "the mock only copies")),
        };
        let address = |buffer: &RawBuffer| match buffer.storage().unwrap().as_any().downcast_ref::<Memory>() {
            Some(memory) => memory.address() as usize + buffer.offset(),
            None => buffer.host_address().unwrap().as_ptr() as usize,
        };
        self.shared.used.lock().push(self.timeline.id);
        let is_other = |fence: &&Fence| fence.timeline().id() != self.timeline.id;
        self.shared.after_others.fetch_add(after.iter().filter(is_other).count() as u64, Ordering::SeqCst);
        let down = src.place().device == self.timeline.device && dst.place().device.is_cpu();
        let closed = self.shared.closed.lock().clone().filter(|_| down);
        let after = after.iter().cloned().chain(closed).collect();
        let work = Work { src: address(src), dst: address(dst), len, after, timing };
        let uses = |start| self.shared.uses(self.timeline.device, start..start + len);
        [work.src, work.dst].into_iter().for_each(uses);
        self.shared.enqueued.fetch_add(1, Ordering::SeqCst);
        let mut line = self.timeline.line.lock();
        line.work.push_back(work);
        let point = self.timeline.enqueued.fetch_add(1, Ordering::SeqCst) + 1;
        drop(line);
        if self.shared.at_once.load(Ordering::SeqCst) {
            self.timeline.perform_until(point);
        }
        Ok(Fence::new(Arc::clone(&self.erased), point))
    }

    fn occupy(&self, _: Duration) -> Result<Fence> {
        let none = || Error::new(ErrorKind::Unsupported, "the mock has no kernel");
        self.shared.kernel.lock().clone().ok_or_else(none)
    }

    fn outstanding(&self) -> u64 {
        // In this order: the first never exceeds what the second reads later.
        self.timeline.performed().abs_diff(self.timeline.enqueued.load(Ordering::SeqCst))
    }

    fn released(&self) {
        self.shared.leases.fetch_sub(1, Ordering::SeqCst);
    }
}
