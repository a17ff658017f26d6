//! A CUDA stream of the library's own, or a foreign one taken in.

use std::{fmt, sync::Arc};

use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, StreamPriority, Timeline};
use transload_cuda_sys::{AsStream, Context, RawStream, Stream, StreamOptions};
use transload_memory::{CudaDevice, lift};

use crate::{CudaEvent, priority, timeline::StreamTimeline};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// A stream. Clones share it; it is destroyed when the last clone and the last fence of its work are gone. Usable from
/// any thread.
#[derive(Clone)]
pub struct CudaStream {
    pub(crate) own: Arc<StreamTimeline>,
    /// The same, as core sees it.
    pub(crate) timeline: Arc<dyn Timeline>,
}

impl CudaStream {
    /// A stream of normal priority that does not take part in the default stream's implicit ordering.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Self::new_with_priority(device, StreamPriority::Normal)
    }

    /// A stream of a priority. The driver orders kernels by it, not copies.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_with_priority(device: &CudaDevice, priority: StreamPriority) -> Result<Self> {
        let context = device.context()?;
        let options = StreamOptions { priority: priority::of(context, priority)?, blocking: false };
        Self::over(device, priority, Stream::new(context, options).map_err(lift)?)
    }

    /// Takes in a stream that someone else owns; it is not destroyed.
    ///
    /// # Errors
    /// `InvalidArgument` for the per-thread default stream, whose handle (2) means another stream in each thread; the
    /// driver's.
    ///
    /// # Safety
    /// * `raw` is a stream of the device's primary context, or the legacy default stream's handle (0 or 1).
    /// * Nobody captures it into a graph meanwhile.
    /// * It outlives the returned value, its clones, and every fence and buffer that was used through them.
    /// * Allocators that it was used with are gone or have [released](crate::StreamOrderedAllocator::release_stream) it.
    pub unsafe fn from_raw(device: &CudaDevice, raw: RawStream, priority: StreamPriority) -> Result<Self> {
        if raw.addr() == PER_THREAD {
            let text =
                "the per-thread default stream is another stream in each thread; use a stream of your own";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // SAFETY: the caller promises a stream of this context that lives long enough.
        let stream = unsafe { Stream::from_raw(device.context()?, raw) };
        Self::over(device, priority, stream)
    }

    fn over(device: &CudaDevice, priority: StreamPriority, stream: Stream) -> Result<Self> {
        let own = StreamTimeline::new(device.id(), priority, stream)?;
        let timeline = Arc::clone(&own) as Arc<dyn Timeline>;
        Ok(Self { own, timeline })
    }

    /// An identity within the process, never used again.
    #[must_use]
    pub fn id(&self) -> transload_core::TimelineId {
        self.timeline.id()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.timeline.device()
    }

    /// The driver's stream.
    #[must_use]
    pub fn driver(&self) -> &Stream {
        self.own.stream()
    }

    /// The priority that the driver gave the stream: smaller is more urgent.
    ///
    /// # Errors
    /// The driver's.
    pub fn driver_priority(&self) -> Result<i32> {
        self.driver().priority().map_err(lift)
    }

    /// Whether everything enqueued so far is done.
    ///
    /// # Errors
    /// The driver's, also one that the stream's work caused.
    pub fn is_ready(&self) -> Result<bool> {
        self.own.check()?;
        self.driver().is_idle().map_err(lift)
    }

    /// Blocks until everything enqueued so far is done.
    ///
    /// # Errors
    /// The driver's, also one that the stream's work caused.
    pub fn synchronize(&self) -> Result<()> {
        self.own.synchronize()
    }

    /// Makes later work wait for an event, on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_event(&self, event: &CudaEvent) -> Result<()> {
        self.driver().wait_event(event.driver()).map_err(lift)
    }

    /// A fence of everything enqueued so far, by whomever: for work that was enqueued through the raw handle.
    ///
    /// # Errors
    /// The driver's.
    pub fn fence(&self) -> Result<Fence> {
        self.own.check()?;
        let point = self.own.record_end(None).map_err(lift)?;
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }
}

// SAFETY: the handle belongs to a stream that lives as long as `own`.
unsafe impl AsStream for CudaStream {
    fn as_raw(&self) -> RawStream {
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
