//! An ordered line of asynchronous work on a device: a CUDA stream, a wgpu queue, a line of the CPU's workers.

pub(crate) mod fence;
pub(crate) mod observer;
pub(crate) mod source;
pub(crate) mod transfer;

use std::{fmt, ops::Deref, sync::Arc};

use crate::{DeviceId, Error, ErrorKind, Fence, Operation, Place, Result, Timeline};

/// How urgent work is. On CUDA it orders kernels, not copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamPriority {
    /// Before everything else.
    High,
    /// The usual.
    #[default]
    Normal,
    /// When nothing else is to do.
    Low,
}

/// What a queue is mostly used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WorkloadType {
    /// Kernels.
    Compute,
    /// Copies and fills.
    #[default]
    Memory,
    /// Both.
    Mixed,
    /// Little work, many waits: fences and barriers.
    Coordination,
}

/// Whether an operation's time on the device is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Timing {
    /// Not measured.
    #[default]
    Off,
    /// Measured around the operation by the lane's own clock, which for the host's lanes is the host's; see
    /// [`Timeline::take_duration`].
    Measured,
}

/// An ordered line of work. All methods may be called from any thread; operations enqueued from several threads take
/// effect in some order.
///
/// # Safety
/// [`submit`](crate::submit) trusts an implementation with memory:
/// * Operations take effect in the order in which they were enqueued, each after every fence that it was given in `after`.
/// * A fence that [`enqueue`](Self::enqueue) answers is one of [`timeline`](Self::timeline), later than those before it, and
///   over only when the operation and all before it are.
/// * An operation touches no bytes but those of its buffers, and none after its fence is over; after an error none at all.
/// * [`raw_handle`](Self::raw_handle) of a CUDA device's queue, and what [`with_raw_handle`](Self::with_raw_handle) lends, is a
///   `CUstream` of that device's primary context in the calling thread, valid while the queue lives.
pub unsafe trait Queue: Send + Sync + 'static {
    /// The device that does the work.
    fn device(&self) -> DeviceId;

    /// The priority it was made with.
    fn priority(&self) -> StreamPriority;

    /// Counts the completion of its operations.
    fn timeline(&self) -> &Arc<dyn Timeline>;

    /// Whether it can copy directly from `src` to `dst`.
    fn can_copy(&self, src: Place, dst: Place) -> bool;

    /// Whether it can wait for the fence without the host.
    fn can_wait_for(&self, fence: &Fence) -> bool;

    /// Enqueues the operation behind everything enqueued before and behind the fences in `after`, without waiting for it
    /// to be done. (CUDA's driver copies pageable memory during the call.) Fences of its own timeline need not be in `after`:
    /// [`submit`](crate::submit) leaves them out.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for an operation that the queue cannot do; the driver's errors.
    /// On an error nothing was enqueued that touches the buffers.
    ///
    /// # Safety
    /// * The operation passed [`Operation::validate`].
    /// * The operation's buffers must stay alive, and nothing else may use their bytes in conflict with it, until the
    ///   returned fence is over. [`submit`](crate::submit) sees to both.
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence>;

    /// How many operations are enqueued and not known to be over.
    fn outstanding(&self) -> u64;

    /// The driver's handle as an integer (a `CUstream`), for interop; `None` where there is no such thing, or where it means
    /// another queue in the calling thread (a per-thread default stream of another one).
    fn raw_handle(&self) -> Option<usize> {
        None
    }

    /// Calls `call` once with the driver's handle, for one enqueueing of work that the queue does not track. The handle must not
    /// be kept: whoever keeps it takes it from [`raw_handle`](Self::raw_handle), after which the queue may have to do more for
    /// each operation.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for a queue without a handle; `InvalidArgument` where the handle means
    /// another queue in the calling thread; the driver's. `call` was not called then.
    fn with_raw_handle(&self, call: &mut dyn FnMut(usize)) -> Result<()> {
        let Some(handle) = self.raw_handle() else {
            let text = format!("a queue of {} has no driver handle in this thread", self.device());
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        call(handle);
        Ok(())
    }

    /// Called when a lease of the queue ends.
    fn released(&self) {}
}

/// A queue that was leased; ends when dropped, with work still in flight if need be. May outlive the backend's handle.
pub struct QueueLease {
    queue: Arc<dyn Queue>,
}

impl QueueLease {
    /// A lease of `queue`. Ends with [`Queue::released`].
    #[must_use]
    pub fn new(queue: Arc<dyn Queue>) -> Self {
        Self { queue }
    }
}

impl Deref for QueueLease {
    type Target = dyn Queue;

    fn deref(&self) -> &Self::Target {
        &*self.queue
    }
}

impl Drop for QueueLease {
    fn drop(&mut self) {
        self.queue.released();
    }
}

impl fmt::Debug for QueueLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueLease")
            .field("device", &self.device())
            .field("priority", &self.priority())
            .finish_non_exhaustive()
    }
}
