//! An owned CUDA stream, or a wrapped foreign one.

mod buffer_use;
mod copies;
mod event;
mod fence_event;
pub(crate) mod handle;
pub(crate) mod metrics;
mod raw_copies;
mod wait_fences;

use std::{
    any::Any,
    fmt,
    sync::{Arc, atomic::Ordering},
    thread::{self, ThreadId},
};

use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, StreamPriority, Timeline, events::report};
use transload_cuda_sys::{AsStream, Context, RawEvent, RawStream, Stream, StreamOptions, ffi};
use transload_memory::{CudaDevice, lift, lift_in};

use self::handle::StreamHandle;
pub use self::{
    buffer_use::StreamUse,
    event::CudaEvent,
    fence_event::FenceEvent,
    metrics::{MetricsSampling, StreamMetrics},
};
use crate::completion::{callbacks, timeline::StreamTimeline};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// A CUDA stream. Clones share it; it is destroyed with the last clone and the last fence of its work. Usable from
/// any thread.
///
/// While the stream is being captured into a graph through its handle, operations with a fence fail with `Busy`: they
/// would not run, and no event could complete them. The raw forms, [`wait_event`](Self::wait_event) and
/// [`CudaEvent::record`] become part of the capture.
#[derive(Clone)]
pub struct CudaStream {
    pub(crate) own: Arc<StreamTimeline>,
    /// The same, as core sees it.
    pub(crate) timeline: Arc<dyn Timeline>,
}

impl CudaStream {
    /// Creates a stream of normal priority that does not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Self::new_with_priority(device, StreamPriority::Normal)
    }

    /// Creates a stream with a priority. The driver applies priorities to kernels, not to copies.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_with_priority(device: &CudaDevice, priority: StreamPriority) -> Result<Self> {
        let context = device.context()?;
        let options = StreamOptions { priority: priority_number(context, priority)?, blocking: false };
        let stream = Stream::new(context, options).map_err(|error| lift_in(context, error))?;
        Self::over(device, priority, stream.into(), false, None)
    }

    /// Like [`adopt`](Self::adopt), but without an owner, for streams that outlive all uses by themselves, and with the given
    /// priority. The handle of the per-thread default stream (2) means the calling thread's, as in
    /// [`per_thread_default`](Self::per_thread_default).
    ///
    /// Every operation on it has its own event, since other code may enqueue work that waits for the host.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another context, as of another device, where the driver can tell; the driver's.
    ///
    /// # Safety
    /// * `raw` is a stream of the device's primary context, or the handle of a default stream (0, 1 or 2).
    /// * Nobody captures it into a graph meanwhile.
    /// * It outlives the returned value, its clones, and every fence and buffer that was used through them.
    /// * Allocators that it was used with have [released](crate::StreamOrderedAllocator::release_stream) it, also where they
    ///   are gone by then: segments that they gave back may be parked behind its fences. Buffers that they allocated for other
    ///   streams while its work was in flight are gone: they may have its memory, behind its fence.
    /// * Backends and managers whose buffers were used on it have been drained since: memory of buffers that were dropped
    ///   while that work was in flight is kept with its fences, until it serves another request.
    /// * [`CudaModule`](crate::CudaModule)s whose kernels were launched on it are gone, or have been used for a launch since
    ///   its work was over by each thread that launched them on it: a module keeps the fences of its launches.
    pub unsafe fn from_raw(device: &CudaDevice, raw: RawStream, priority: StreamPriority) -> Result<Self> {
        let context = device.context()?;
        let thread = (raw.addr() == PER_THREAD).then(|| thread::current().id());
        check_context(context, raw, device)?;
        // SAFETY: the caller promises a stream of this context that lives long enough.
        let stream = unsafe { Stream::from_raw(context, raw) };
        Self::over(device, priority, stream.into(), true, thread)
    }

    /// Takes in a stream of other code: cust's (`Stream::as_inner`), cudarc's (`cu_stream`), PyTorch's (`cuda_stream`), or a default
    /// stream's handle (0 or 1; 2 is that of the calling thread, as in [`per_thread_default`](Self::per_thread_default)). The other
    /// code may go on using it; every operation on it has its own event.
    ///
    /// `owner` keeps the stream alive. It is dropped when the last clone and the last fence of the stream's work were dropped, on a
    /// thread of this library and under no lock, so it may destroy the stream. If adopting fails, it is dropped there at once.
    /// [`CudaMemoryManager::drain`](transload_memory::CudaMemoryManager::drain) of the device waits for these drops.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a stream of another context, such as another device's, where the driver can tell; the
    /// driver's.
    ///
    /// # Safety
    /// * `raw` is a live stream, or the handle of a default stream, and is not destroyed before `owner` is dropped.
    /// * No capture into a graph begins on it while this library enqueues an operation on it. (During a capture, operations are
    ///   refused with [`ErrorKind::Busy`].)
    pub unsafe fn adopt(device: &CudaDevice, raw: RawStream, owner: impl Any + Send) -> Result<Self> {
        let owner: Box<dyn Any + Send> = Box::new(owner);
        let described = (|| {
            let context = device.context()?;
            check_context(context, raw, device)?;
            // SAFETY: the owner lives as long as the stream's last use.
            let stream = unsafe { Stream::from_raw(context, raw) };
            Ok((priority_of(&stream)?, stream))
        })();
        match described {
            Ok((priority, stream)) => {
                let thread = (raw.addr() == PER_THREAD).then(|| thread::current().id());
                let handle = StreamHandle::with_owner(stream, owner, device);
                Self::over(device, priority, handle, true, thread)
            }
            Err(error) => {
                device.drop_later(owner, Vec::new());
                Err(error)
            }
        }
    }

    /// Returns the device's legacy default stream, which synchronises with every blocking stream of the context. For
    /// programs that rely on its order; its work cannot overlap theirs.
    ///
    /// # Errors
    /// The driver's.
    pub fn legacy_default(device: &CudaDevice) -> Result<Self> {
        // SAFETY: the handle means the default stream of whichever context is current, which is the device's own in every
        // call; that stream lives as long as the context, and cannot be captured.
        let stream = unsafe { Stream::from_raw(device.context()?, std::ptr::null_mut()) };
        Self::over(device, StreamPriority::Normal, stream.into(), true, None)
    }

    /// Returns the calling thread's default stream. Its handle names another stream in each thread, so in other
    /// threads enqueueing, [`fence`](Self::fence), [`synchronize`](Self::synchronize),
    /// [`add_callback`](Self::add_callback) and the like fail with `InvalidArgument`. Fences of its work can be
    /// waited for, awaited and polled from any thread, also after this one has ended.
    ///
    /// # Errors
    /// The driver's.
    pub fn per_thread_default(device: &CudaDevice) -> Result<Self> {
        // SAFETY: the handle means the calling thread's default stream of the context that is current, which is the
        // device's own in every call; the timeline refuses other threads, and completion is found by events.
        let stream =
            unsafe { Stream::from_raw(device.context()?, std::ptr::without_provenance_mut(PER_THREAD)) };
        Self::over(device, StreamPriority::Normal, stream.into(), true, Some(thread::current().id()))
    }

    fn over(
        device: &CudaDevice,
        priority: StreamPriority,
        stream: StreamHandle,
        is_shared: bool,
        thread: Option<ThreadId>,
    ) -> Result<Self> {
        let own = StreamTimeline::new(device, priority, stream, is_shared, thread)?;
        let timeline = Arc::clone(&own) as Arc<dyn Timeline>;
        Ok(Self { own, timeline })
    }

    /// Returns an identity unique in the process and never reused.
    #[must_use]
    pub fn id(&self) -> transload_core::TimelineId {
        self.timeline.id()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.own.device
    }

    /// Returns the driver's stream. From now on every operation has its own event, since other code may enqueue work.
    #[must_use]
    pub fn driver(&self) -> &Stream {
        self.own.share();
        self.own.stream()
    }

    /// Returns the driver's handle, a `CUstream`, as an integer. Like [`driver`](Self::driver) otherwise.
    #[must_use]
    pub fn handle(&self) -> usize {
        self.driver().as_raw().expose_provenance()
    }

    /// Returns the stream's driver priority: smaller is more urgent.
    ///
    /// # Errors
    /// The driver's.
    pub fn driver_priority(&self) -> Result<i32> {
        self.own.check_usable()?;
        self.own.stream().priority().map_err(lift)
    }

    /// Returns whether everything enqueued so far is complete; `false` during a capture.
    ///
    /// # Errors
    /// The driver's, also one that the stream's work caused.
    pub fn is_ready(&self) -> Result<bool> {
        self.own.check_usable()?;
        if self.own.is_captured() {
            return Ok(false);
        }
        self.own.stream().is_idle().map_err(|error| self.own.lift(error))
    }

    /// Blocks until everything enqueued so far is complete, and every callback added so far has run. Within a
    /// callback it does not wait for callbacks.
    ///
    /// # Errors
    /// `Busy` while the stream is being captured: waiting would invalidate the capture. The driver's, also one that
    /// the stream's work caused.
    pub fn synchronize(&self) -> Result<()> {
        let outcome = self.synchronize_under_guard();
        report::emit_deferred();
        outcome
    }

    /// Like [`synchronize`](Self::synchronize), but emits no events, so that it may be called under an allocator's guards.
    pub(crate) fn synchronize_under_guard(&self) -> Result<()> {
        let point = self.own.events.points.issued();
        let outcome = self.own.synchronize();
        if self.own.events.points.reached() >= point {
            self.own.wait_for_callbacks(point);
        }
        outcome
    }

    /// Makes later work wait, on the device, for what an event recorded last; the event may be another device's. No
    /// wait for an event that was never recorded.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_event(&self, event: &CudaEvent) -> Result<()> {
        // SAFETY: the event lives during the call.
        unsafe { self.wait_raw_event(event.driver().as_raw()) }
    }

    /// Like [`wait_event`](Self::wait_event), for an event of other code. It may be destroyed once this returns. For a fence of the event
    /// alone, make a stream wait for it that does nothing else, and take its [`fence`](Self::fence).
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// * `event` is a live event of this process.
    pub unsafe fn wait_raw_event(&self, event: RawEvent) -> Result<()> {
        self.own.check_usable()?;
        if transload_core::mutant!("streams/foreign-event-is-waited-for") {
            return Ok(());
        }
        if !transload_core::mutant!("streams/batch-ends-before-a-wait") {
            self.own.flush_batch().map_err(|error| self.own.lift(error))?;
        }
        self.own.note_possible_capture();
        // SAFETY: the caller's promise.
        unsafe { self.own.stream().wait_raw_event(event) }.map_err(|error| self.own.lift(error))
    }

    /// Makes all later work of this stream wait for the fences: on the device for those of streams, on the host,
    /// blocking, for those of other backends. Failed work counts as complete.
    ///
    /// # Errors
    /// `Busy` while this stream is being captured: a graph cannot wait for work outside it. The driver's.
    pub fn wait_fences(&self, fences: &[Fence]) -> Result<()> {
        let own = &*self.own;
        if fences.iter().all(Fence::is_known_complete) {
            return Ok(());
        }
        own.check_not_captured()?;
        let _bound = own.context().enter().map_err(lift)?;
        for fence in fences {
            match own.wait_for_fence(fence).or_else(|| own.wait_for_external(fence)) {
                Some(waited) => _ = waited?,
                None => _ = fence.wait(), // Its transfer reports the error.
            }
        }
        Ok(())
    }

    /// Sets for all clones whether operations wait for copies within the host on the device (default), or the submitting thread waits.
    /// On the device, a submission does not block, but while other code frees memory synchronously, as by `cuMemFreeHost`, nearly every
    /// driver call of the process blocks until that copy is complete.
    pub fn set_device_waits(&self, device_waits: bool) {
        self.own.device_waits.store(device_waits, Ordering::Relaxed);
    }

    /// Returns a fence of everything enqueued so far, also through the raw handle.
    ///
    /// # Errors
    /// `Busy` while the stream is being captured; the driver's.
    pub fn fence(&self) -> Result<Fence> {
        self.own.check_not_captured()?;
        let point = self.own.record_fence().map_err(|error| self.own.lift(error))?;
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }

    /// Runs `callback` once everything enqueued so far is complete, also through the raw handle: with `Ok`, or with
    /// the stream's error. No thread needs to wait or poll for that, and the stream's handles may be dropped
    /// meanwhile.
    ///
    /// All callbacks of the process run on one thread, those of a stream in order. They may call the driver, enqueue
    /// on any stream and add callbacks. A slow one delays only other callbacks. A panic ends only its callback;
    /// [`metrics`](Self::metrics) counts it and [`last_callback_panic`](Self::last_callback_panic) keeps its text.
    /// Callbacks that have not run when the process ends never do.
    ///
    /// # Errors
    /// The driver's, and the stream's if it has failed already; the callback is dropped, not called.
    pub fn add_callback(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.own.check_not_captured()?;
        callbacks::prepare()?;
        let point = self.own.record_fence().map_err(|error| self.own.lift(error))?;
        callbacks::register(&self.own, point, Box::new(callback));
        Ok(())
    }

    /// Returns the text of the last panic in a callback of this stream.
    #[must_use]
    pub fn last_callback_panic(&self) -> Option<String> {
        self.own.callbacks.counts().last_panic
    }

    /// Turns the timing of operations on or off for all clones: `true` times one in 32, `false` is the default. They are counted
    /// in any case. See [`MetricsSampling`] for what it costs.
    pub fn enable_metrics(&self, sampling: impl Into<MetricsSampling>) {
        self.own.metrics.enable(sampling.into());
    }

    /// Returns the stream's metrics, without calling the driver. Counts include operations in flight, and times those that are
    /// known to be complete.
    #[must_use]
    pub fn metrics(&self) -> StreamMetrics {
        let measured = self.own.events.pending.lock().measured();
        let tally = self.own.callbacks.counts();
        StreamMetrics {
            callbacks_run: tally.run,
            callbacks_panicked: tally.panicked,
            ..self.own.metrics.read(self.own.events.points.issued(), measured)
        }
    }

    /// Counts a kernel launched through the raw handle.
    pub fn record_kernel_launch(&self) {
        self.own.metrics.count_foreign_launch();
    }

    /// Reports the bytes currently held for the stream; metrics keep the peak.
    pub fn update_peak_memory(&self, bytes: u64) {
        self.own.metrics.raise_peak(bytes);
    }
}

/// The driver's number for a priority: the ends of the device's range, and its middle for the normal one.
pub(crate) fn priority_number(context: &Context, priority: StreamPriority) -> Result<i32> {
    let (least, greatest) = context.stream_priority_range().map_err(|error| lift_in(context, error))?;
    Ok(match priority {
        StreamPriority::High => greatest,
        // The driver's default, 0, is the least urgent number of the usual range of 0 to -5.
        StreamPriority::Normal => i32::midpoint(least, greatest),
        StreamPriority::Low => least,
    })
}

/// The priority of another owner's stream. The driver's default number is the least urgent one, so only more urgent ones differ.
fn priority_of(stream: &Stream) -> Result<StreamPriority> {
    let lift = |error| lift_in(stream.context(), error);
    let number = stream.priority().map_err(lift)?;
    let (least, greatest) = stream.context().stream_priority_range().map_err(lift)?;
    let is_high = number < i32::midpoint(least, greatest);
    Ok(if is_high { StreamPriority::High } else { StreamPriority::Normal })
}

/// Refuses a stream of another context, where the driver can tell: a default stream's handle belongs to any.
fn check_context(context: &Context, raw: RawStream, device: &CudaDevice) -> Result<()> {
    if raw.addr() <= PER_THREAD {
        return Ok(());
    }
    let mut of = std::ptr::null_mut();
    // SAFETY: the caller of `from_raw` promises a live stream; the out pointer is valid for the call.
    let found = context.call("cuStreamGetCtx", || unsafe { ffi::cuStreamGetCtx(raw, &mut of) });
    found.map_err(|error| lift_in(context, error))?;
    if of == context.as_raw() {
        return Ok(());
    }
    let text = format!(
        "the stream belongs to another context than {}'s primary one; take it in with its own device",
        device.id()
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

// SAFETY: the handle belongs to a stream that lives as long as `own`.
unsafe impl AsStream for CudaStream {
    fn as_raw(&self) -> RawStream {
        self.own.share();
        self.own.raw()
    }

    fn context(&self) -> &Context {
        self.own.context()
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaStream({}, {:?}, {:?})", self.device(), self.own.priority, self.id())
    }
}
