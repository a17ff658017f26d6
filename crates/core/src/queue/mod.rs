//! Queues: ordered, asynchronous work on a device, such as a CUDA stream, a wgpu queue, or a queue of the CPU
//! backend.

pub(crate) mod fence;
pub(crate) mod observer;
pub(crate) mod room;
pub(crate) mod source;
pub(crate) mod transfer;
pub(crate) mod unobserved;

use std::{
    fmt,
    ops::{Deref, Range},
    sync::Arc,
    time::Duration,
};

use crate::{
    BlockList, DeviceId, Error, ErrorKind, Fence, Operation, Place, RawBuffer, Result, Stamp, Timeline,
};

/// The priority of a queue's work. On CUDA it affects kernels, not copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum StreamPriority {
    /// Runs before all other work.
    High,
    /// The default.
    #[default]
    Normal,
    /// Runs when no other work is pending.
    Low,
}

/// What a queue is mostly used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum WorkloadType {
    /// Kernels.
    Compute,
    /// Copies and fills.
    #[default]
    Memory,
    /// Kernels and copies.
    Mixed,
    /// Little work, many waits: fences and barriers.
    Coordination,
}

/// Whether an operation's time on the device is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Timing {
    /// Not measured.
    #[default]
    Off,
    /// Measured by the lane's own clock, which is the host's for the host's lanes; see
    /// [`Timeline::take_duration`].
    Measured,
}

/// A half of a batch whose bytes pass through scratch memory, where its pairs lie in their order, those of 0 bytes left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchHalf {
    /// From the sources to the scratch memory, end to end.
    Gather,
    /// From the scratch memory to the destinations.
    Scatter {
        /// A pair lies as many bytes after the one before as its source does after that one's, if those are [at most](RawBuffer::gap_to) so
        /// many; else where that one ends.
        gap: usize,
    },
}

/// The pairs of a [half of a batch](BatchHalf).
#[derive(Clone, Debug)]
pub enum HalfPairs<'a> {
    /// These.
    Pairs(&'a [(RawBuffer, RawBuffer)]),
    /// Some of a list of blocks, in the order of the pools, then of the indices: end to end in scratch memory, without gaps.
    Blocks(&'a BlockList, Range<usize>),
}

impl<'a> HalfPairs<'a> {
    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Pairs(pairs) => pairs.len(),
            Self::Blocks(_, range) => range.len(),
        }
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns those in a range of them, as far as there are any.
    #[must_use]
    pub fn part(&self, part: Range<usize>) -> HalfPairs<'a> {
        let part = part.start.min(self.len())..part.end.min(self.len());
        match self {
            Self::Pairs(pairs) => HalfPairs::Pairs(pairs.get(part).unwrap_or_default()),
            Self::Blocks(blocks, range) => {
                HalfPairs::Blocks(blocks, range.start + part.start..range.start + part.end)
            }
        }
    }
}

/// An ordered queue of work. All methods may be called from any thread; operations enqueued concurrently take
/// effect in some order.
///
/// # Safety
/// [`submit`](crate::submit) relies on these promises for memory safety:
/// * Operations take effect in the order in which they were enqueued, each after all its fences in `after`.
/// * A fence that [`enqueue`](Self::enqueue) returns is one of [`timeline`](Self::timeline), later than those
///   before it, and completes only after the operation and all before it.
/// * An operation touches no bytes except those of its buffers, and none after its fence is complete, or after an error.
/// * [`raw_handle`](Self::raw_handle) of a CUDA device's queue, and the handle that
///   [`with_raw_handle`](Self::with_raw_handle) passes on, is a `CUstream` of that device's primary context
///   in the calling thread, valid while the queue lives.
pub unsafe trait Queue: Send + Sync + 'static {
    /// Returns the device that does the work.
    fn device(&self) -> DeviceId;

    /// Returns the priority that it was created with.
    fn priority(&self) -> StreamPriority;

    /// Returns the timeline that counts its completed operations.
    fn timeline(&self) -> &Arc<dyn Timeline>;

    /// Returns whether it can copy directly from `src` to `dst`.
    fn can_copy(&self, src: Place, dst: Place) -> bool;

    /// Returns whether it can wait for the fence without the host. Takes no longer than some microseconds: `false` if that needs what
    /// [`prepare_waits`](Self::prepare_waits) sets up, and it was called neither for this queue nor for one that shares it.
    fn can_wait_for(&self, fence: &Fence) -> bool;

    /// Sets up what waits for the host's work need, such as memory; may take long, the first time. [`submit`](crate::submit) calls it
    /// before such a wait. A thread that polls a task does not: until it was called, the task awaits the host's work.
    fn prepare_waits(&self) {}

    /// Sets up what a batch in place of so many pairs and bytes needs, such as memory for a list of them; may take long.
    /// [`submit`](crate::submit) calls it before such a batch. A task's thread does not: without it, the batch may take more driver calls.
    fn prepare_batch(&self, pairs: usize, bytes: u64) {
        let _ = (pairs, bytes);
    }

    /// Enqueues the operation after everything enqueued before and after the fences in `after`, without
    /// waiting for its completion. (CUDA's driver copies pageable memory during the call.) Fences of its own
    /// timeline need not be in `after`: [`submit`](crate::submit) leaves them out.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for an operation that the queue cannot do; the driver's
    /// errors. On an error nothing was enqueued that touches the buffers, unless it [is partial](crate::Error::is_partial): then a part of the
    /// operation is complete.
    ///
    /// # Safety
    /// * The operation passed [`Operation::validate`].
    /// * The operation's buffers stay alive, and nothing else uses their bytes in conflict with it, until the
    ///   returned fence is complete. [`submit`](crate::submit) ensures both. Bytes of pinned or mapped memory from which a queue that
    ///   [takes halves](Self::enqueue_half) copies, without a kernel, may be written meanwhile if their copies are never used.
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence>;

    /// Enqueues a half of a batch, after everything enqueued before and after the fences in `after`: by a kernel that leaves most of the
    /// device to other kernels. Pairs and scratch memory are the queue's device's own memory, as far as the half uses them. A device with
    /// such queues copies pinned and mapped memory by copy engines, which may read what the host or others write meanwhile.
    ///
    /// # Errors
    /// Like [`enqueue`](Self::enqueue). By default [`ErrorKind::Unsupported`](crate::ErrorKind).
    ///
    /// # Safety
    /// * The pairs passed [`Operation::validate`] as a batch, or are blocks of pools that do not overlap, and `scratch` is as long as all of them, and the gaps between them there.
    /// * The buffers that the half uses stay alive, and nothing else uses their bytes in conflict with it, until the returned fence is
    ///   complete.
    unsafe fn enqueue_half(
        &self,
        half: BatchHalf,
        pairs: HalfPairs<'_>,
        scratch: &RawBuffer,
        after: &[Fence],
    ) -> Result<Fence> {
        let _ = (half, pairs, scratch, after);
        let text = format!("a queue of {} copies no batch through scratch memory", self.device());
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Enqueues a list of blocks like a [batch in place](Operation::CopyBatchInPlace).
    ///
    /// # Errors
    /// Like [`enqueue`](Self::enqueue). By default [`ErrorKind::Unsupported`](crate::ErrorKind): it takes their pairs.
    ///
    /// # Safety
    /// * No destination pool overlaps another pool of the list, and all are writable.
    /// * The pools stay alive, and nothing else uses bytes of the blocks in conflict with it, until the returned fence is complete.
    ///   [`submit_blocks`](crate::submit_blocks) ensures all of it.
    unsafe fn enqueue_blocks(&self, blocks: &BlockList, after: &[Fence], timing: Timing) -> Result<Fence> {
        let _ = (blocks, after, timing);
        Err(Error::new(ErrorKind::Unsupported, format!("a queue of {} takes no blocks", self.device())))
    }

    /// Enqueues a kernel that occupies the whole device for `time` and accesses no memory, after everything enqueued before: work next to
    /// which other work can be measured. Its duration is measured. A part of the device that another kernel holds is occupied as much
    /// later, and the kernel takes as much longer.
    ///
    /// # Errors
    /// By default [`ErrorKind::Unsupported`](crate::ErrorKind), also if the driver rejects the kernel; the driver's.
    fn occupy(&self, time: Duration) -> Result<Fence> {
        let _ = time;
        Err(Error::new(ErrorKind::Unsupported, format!("a queue of {} has no kernel", self.device())))
    }

    /// Returns a fence of everything enqueued so far, by whomever, for callers that must not block in a call
    /// which waits for that work; `None` if there is no such fence.
    fn current_fence(&self) -> Option<Fence> {
        None
    }

    /// Returns how many operations are enqueued and not known to be complete: those after the point that the timeline has
    /// [reached](Timeline::reached).
    fn outstanding(&self) -> u64;

    /// Records when the queue reaches this place in its order, by its device's clock. Other threads' operations may come between.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for a device without a clock, which is the default; `Busy` while the queue is being
    /// captured; the driver's.
    fn stamp(&self) -> Result<Stamp> {
        Err(Error::new(ErrorKind::Unsupported, format!("a queue of {} has no clock", self.device())))
    }

    /// Returns the driver's handle as an integer (a `CUstream`), for interop; `None` if there is none, or if
    /// in the calling thread it would mean another queue (a per-thread default stream of another thread).
    fn raw_handle(&self) -> Option<usize> {
        None
    }

    /// Calls `call` once with the driver's handle, to enqueue work that the queue does not track. Do not keep
    /// the handle: to keep one, use [`raw_handle`](Self::raw_handle), after which each operation of the queue
    /// may cost more.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for a queue without a handle; `InvalidArgument` if in the
    /// calling thread the handle would mean another queue; the driver's. `call` was not called then.
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

/// A leased queue. The lease ends on drop, even with work in flight, and may outlive the backend's handle.
pub struct QueueLease {
    queue: Arc<dyn Queue>,
}

impl QueueLease {
    /// Creates a lease of `queue`. It ends with [`Queue::released`].
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
