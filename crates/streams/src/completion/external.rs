//! Work of another API on the same GPU: its timeline, for which streams wait on the device by a semaphore of both APIs.
//!
//! A second stream between the user's and the other API would do without any of this. But when two streams and the other API wait for
//! each other, the GPU switches between the APIs only when a time slice ends (docs/architecture.md, "Vulkan").

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, Fence, Result, Timeline, TimelineId, mutant, next_timeline_id};
use transload_cuda_sys::{DriverError, Event, EventTiming, RawStream, record_drop_error};
use transload_memory::{CudaDevice, lift};

use super::timeline::StreamTimeline;

/// Streams for which a semaphore keeps events before it looks which are complete.
const STREAMS: usize = 8;
/// Submissions that are kept before the oldest is polled.
const SUBMISSIONS: usize = 32;

/// The driver's calls for a semaphore that counts for CUDA and another API.
///
/// # Safety
/// * [`wait`](Self::wait) has the stream's later work come after the work before the signal of the value, or of a larger one.
/// * [`signal`](Self::signal) sets the value after all earlier work of the stream.
/// * Neither blocks. The context of the stream is current in both.
pub unsafe trait SemaphoreCalls: Send + Sync + 'static {
    /// Enqueues a wait for a value.
    ///
    /// # Errors
    /// The driver's; nothing was enqueued.
    fn wait(&self, stream: RawStream, value: u64) -> Result<(), DriverError>;

    /// Enqueues a signal of a value.
    ///
    /// # Errors
    /// The driver's; nothing was enqueued.
    fn signal(&self, stream: RawStream, value: u64) -> Result<(), DriverError>;
}

/// A semaphore of CUDA and another API. Its calls are dropped once no stream uses it: in [`CudaDevice::drops`], which waits for that.
pub struct ExternalSemaphore {
    device: CudaDevice,
    calls: Arc<dyn SemaphoreCalls>,
    /// An event after each stream's last use.
    uses: Mutex<Vec<(TimelineId, Event)>>,
}

/// A timeline of another API whose values are those of an [`ExternalSemaphore`]. Streams of the semaphore's device wait for its fences on
/// the device.
pub struct ExternalTimeline {
    id: TimelineId,
    inner: Arc<dyn Timeline>,
    semaphore: ExternalSemaphore,
    /// The last point known to be reached before the other API lost its device.
    reached: AtomicU64,
    /// Work of CUDA that a point waits for, by points.
    earlier: Mutex<VecDeque<(u64, Fence)>>,
}

/// What a semaphore leaves. Waits for the streams when it is dropped.
struct Uses {
    calls: Arc<dyn SemaphoreCalls>,
    uses: Vec<(TimelineId, Event)>,
}

impl ExternalSemaphore {
    /// Takes in a semaphore that streams of the device's primary context can use.
    pub fn new(device: &CudaDevice, calls: impl SemaphoreCalls) -> Self {
        Self { device: device.clone(), calls: Arc::new(calls), uses: Mutex::default() }
    }

    /// Has the stream of the fence signal a value after the fence's work, and returns whether it does: not if the fence is not that of the
    /// last operation of its stream, or not of a stream of the device which the calling thread can use; nor if other code has the stream's
    /// handle or the stream waited for other code's event, since that work may wait for the host to act.
    ///
    /// What another thread enqueues meanwhile may come before the signal, and so may waits for fences and what was enqueued by
    /// [`with_raw_handle`](transload_core::Queue::with_raw_handle). None of these waits for what comes after the signal, as nobody has a
    /// fence of that yet.
    ///
    /// # Errors
    /// The driver's. The signal may be enqueued even so.
    pub fn signal_after(&self, fence: &Fence, value: u64) -> Result<bool> {
        let Some(stream) = fence.timeline().as_any().downcast_ref::<StreamTimeline>() else {
            return Ok(false);
        };
        let points = &stream.events.points;
        let is_last = points.issued() == fence.point() || mutant!("streams/signal-after-last");
        let has_others_work = points.is_shared() || stream.joins.load(Ordering::Relaxed);
        if !is_last || has_others_work || !self.serves(stream) || stream.check_not_captured().is_err() {
            return Ok(false);
        }
        // Waiters of the open batch must not wait for later work.
        stream.flush_batch().map_err(|error| stream.lift(error))?;
        self.enqueue(stream, |raw| self.calls.signal(raw, value))?;
        Ok(true)
    }

    /// Returns whether a stream that used it has lost its context: what it has not signalled by then it never does. Queries the driver and
    /// does not block; may be called from any thread.
    pub fn is_lost(&self) -> bool {
        let is_lost = |event: &Event| {
            event.context().loss().is_some() || event.is_done().is_err_and(|error| error.is_sticky())
        };
        self.uses.lock().iter().any(|(_, event)| is_lost(event))
    }

    /// Returns whether the stream can use it.
    fn serves(&self, stream: &StreamTimeline) -> bool {
        let is_same = |context: &transload_cuda_sys::Context| context.as_raw() == stream.context().as_raw();
        stream.is_usable_here() && self.device.context().is_ok_and(is_same)
    }

    /// Enqueues a use, and an event after it.
    fn enqueue(
        &self,
        stream: &StreamTimeline,
        call: impl FnOnce(RawStream) -> Result<(), DriverError>,
    ) -> Result<()> {
        let _bound = stream.context().enter().map_err(lift)?;
        let mut uses = self.uses.lock();
        if uses.len() >= STREAMS {
            uses.retain(|(_, event)| !event.is_done().is_ok_and(|is_done| is_done));
        }
        let index = match uses.iter().position(|(id, _)| *id == stream.id) {
            Some(index) => index,
            None => {
                uses.push((stream.id, Event::new(stream.context(), EventTiming::Disabled).map_err(lift)?));
                uses.len() - 1
            }
        };
        call(stream.raw()).map_err(lift)?;
        let recorded = uses.get(index).map_or(Ok(()), |(_, event)| event.record(stream.stream()));
        // The use is enqueued, and nobody knows its end: the semaphore stays.
        recorded.inspect_err(|_| std::mem::forget(Arc::clone(&self.calls))).map_err(lift)
    }
}

impl Drop for ExternalSemaphore {
    fn drop(&mut self) {
        let uses = std::mem::take(self.uses.get_mut());
        self.device.drop_later(Uses { calls: Arc::clone(&self.calls), uses }, Vec::new());
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        for (_, event) in self.uses.drain(..).filter(|_| !mutant!("streams/semaphore-outlives-waits")) {
            match event.synchronize() {
                Err(error) if !error.is_sticky() => {
                    record_drop_error(Err(error));
                    std::mem::forget(Arc::clone(&self.calls));
                }
                // A lost context does no more work.
                _over => {}
            }
        }
    }
}

impl ExternalTimeline {
    /// Takes in a timeline.
    ///
    /// # Safety
    /// * The semaphore has a value of at least a point once that point is reached, and not before its work is complete, unless the other
    ///   API lost its device. Then it has reached every point, `u64::MAX` included, and the semaphore may have any value.
    pub unsafe fn new(inner: Arc<dyn Timeline>, semaphore: ExternalSemaphore) -> Arc<Self> {
        let (id, reached, earlier) = (next_timeline_id(), AtomicU64::new(0), Mutex::default());
        Arc::new(Self { id, inner, semaphore, reached, earlier })
    }

    /// Returns a fence of a point, whose work comes after that of `after`, and before which this was called with all smaller points. If
    /// the other API loses its device, the fence is complete once `after` is.
    pub fn fence(self: &Arc<Self>, point: u64, after: Option<Fence>) -> Fence {
        if let Some(after) = after {
            // Dropped without the lock: they may be a stream's last handles.
            let mut over = Vec::new();
            let mut earlier = self.earlier.lock();
            let reached = self.inner.reached();
            let is_over = |point: u64, fence: &Fence| {
                point <= reached && reached < u64::MAX || fence.is_known_complete()
            };
            while earlier.front().is_some_and(|(point, fence)| is_over(*point, fence))
                || earlier.len() >= SUBMISSIONS
                    && earlier.front().is_some_and(|(_, fence)| fence.is_complete())
            {
                over.extend(earlier.pop_front());
            }
            earlier.push_back((point, after));
            drop(earlier);
        }
        Fence::new(Arc::clone(self) as Arc<dyn Timeline>, point)
    }

    /// Returns the work of CUDA that comes before a point and is not known to be complete.
    fn earlier(&self, point: u64) -> Vec<Fence> {
        let earlier = self.earlier.lock();
        let is_open = |(at, fence): &&(u64, Fence)| *at <= point && !fence.is_known_complete();
        earlier.iter().filter(is_open).map(|(_, fence)| fence.clone()).collect()
    }

    /// Returns whether the other API has lost its device, and work of CUDA may be in flight.
    fn is_lost(&self) -> bool {
        self.inner.reached() == u64::MAX && !mutant!("streams/loss-after-earlier-work")
    }
}

// SAFETY: a point of the inner timeline is reached after its work; if the device was lost, that of CUDA which it waits for is complete too.
unsafe impl Timeline for ExternalTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn is_simulated(&self) -> bool {
        self.inner.is_simulated()
    }

    fn reached(&self) -> u64 {
        let reached = self.inner.reached();
        if reached < u64::MAX {
            self.reached.fetch_max(reached, Ordering::AcqRel);
            return reached;
        }
        if !self.is_lost() {
            return reached;
        }
        let earlier = self.earlier.lock();
        let open = earlier.iter().find(|(_, fence)| !fence.is_known_complete());
        let reached = open.map_or(u64::MAX, |(point, _)| point.saturating_sub(1));
        drop(earlier);
        self.reached.fetch_max(reached, Ordering::AcqRel).max(reached)
    }

    fn enqueued(&self) -> u64 {
        self.inner.enqueued()
    }

    fn poll(&self, point: u64) -> Result<bool> {
        let outcome = self.inner.poll(point);
        let is_open = || self.is_lost() && !self.earlier(point).iter().all(Fence::is_complete);
        if outcome.is_err() && is_open() { Ok(false) } else { outcome }
    }

    fn wait(&self, point: u64) -> Result<()> {
        let outcome = self.inner.wait(point);
        if outcome.is_err() && self.is_lost() {
            for fence in self.earlier(point) {
                // Its own transfer reports the error.
                let _over = fence.wait();
            }
        }
        outcome
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        let is_over = |fence: &Fence| fence.wake_at(waker);
        self.inner.wake_at(point, waker) && (!self.is_lost() || self.earlier(point).iter().all(is_over))
    }

    fn held_by_user(&self, point: u64) -> Option<Error> {
        self.inner.held_by_user(point)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl StreamTimeline {
    /// Returns whether the stream can wait on the device for work that is no stream's.
    #[cold]
    pub(crate) fn can_wait_for_others(&self, fence: &Fence) -> bool {
        self.external(fence).is_some() || self.can_wait_for_host_work(fence)
    }

    /// Makes later work of this stream wait for work that is no stream's. Returns whether the stream waits, or `None` if it cannot.
    #[cold]
    pub(crate) fn wait_for_others(&self, fence: &Fence) -> Option<Result<bool>> {
        self.wait_for_external(fence).or_else(|| self.wait_for_host_work(fence))
    }

    /// Returns the timeline of a fence for which the stream can wait by a semaphore.
    #[cold]
    pub(crate) fn external<'a>(&self, fence: &'a Fence) -> Option<&'a ExternalTimeline> {
        let external = fence.timeline().as_any().downcast_ref::<ExternalTimeline>()?;
        (external.semaphore.serves(self) && !self.is_captured()).then_some(external)
    }

    /// Makes later work of this stream wait for a fence of another API, on the device. Returns whether a wait was needed, or `None` if it
    /// cannot wait so.
    #[cold]
    pub(crate) fn wait_for_external(&self, fence: &Fence) -> Option<Result<bool>> {
        Some(self.wait_by_semaphore(self.external(fence)?, fence.point()))
    }

    fn wait_by_semaphore(&self, external: &ExternalTimeline, point: u64) -> Result<bool> {
        if external.reached() >= point || self.events.pending.lock().waits_for(external.id, point) {
            return Ok(false);
        }
        // The semaphore of a lost device says nothing of CUDA's work. That of this stream comes before anyway.
        for fence in external.earlier(point) {
            match self.wait_for_fence(&fence) {
                Some(waited) => _ = waited?,
                None => _ = fence.wait(), // Its transfer reports the error.
            }
        }
        // Waiters of the open batch must not wait for the other API.
        self.flush_batch().map_err(|error| self.lift(error))?;
        if mutant!("streams/waits-for-semaphores") {
            return Ok(true);
        }
        self.measured_wait((external.id, point), || {
            external.semaphore.enqueue(self, |raw| external.semaphore.calls.wait(raw, point))
        })?;
        self.events.pending.lock().note_wait(external.id, point);
        Ok(true)
    }
}

impl fmt::Debug for ExternalSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalSemaphore").field("device", &self.device.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ExternalTimeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalTimeline({:?} of {})", self.id, self.device())
    }
}
