//! The verb for many copies, with whatever else is asked of them.

use std::{
    borrow::Cow,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
};

use transload_core::{Error, ErrorKind, Fence, ListWay, Queue, RawBuffer, Result, StreamPriority};

use super::{
    CopyManyError, CopyManyReport, CopyManyTransfer, ListOptions, Listed,
    submit::{ManyCopies, OwnedList},
};
use crate::{
    CrossBackendTransferManager, RecordedTransfers, TransferOptions,
    attempt::{Extras, would_block},
    copy_builder::{BuilderExtras, SharedQueue},
    task_submission::TaskSubmission,
};

/// Copies of all of each source over all of its destination, not yet submitted. [`submit`](Self::submit) them, [`wait`](Self::wait) for
/// them, or `.await` them.
///
/// ```
/// # use transload_backend_cpu::CpuBackend;
/// # use transload_core::{DeviceId, MemoryKind};
/// # use transload_transfer::CrossBackendTransferManager;
/// # let manager = CrossBackendTransferManager::new();
/// # manager.register_backend(CpuBackend::new()?)?;
/// # let cache = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096)?;
/// # let batch = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 512)?;
/// // Blocks 7, 2 and 5 of a cache, one after another.
/// let pairs = [7, 2, 5].into_iter().enumerate().map(|(to, from)| {
///     Ok((cache.slice(from * 128..(from + 1) * 128)?, batch.slice(to * 128..(to + 1) * 128)?))
/// });
/// let pairs = pairs.collect::<Result<Vec<_>, transload_core::Error>>()?;
/// let report = manager.copy_many(&pairs).wait()?;
/// println!("{report:#}");
/// # assert_eq!((report.pairs, report.bytes), (3, 384));
/// # Ok::<(), transload_core::Error>(())
/// ```
///
/// # What is copied how
/// Pairs may be of any places, kinds of memory and lengths. Those of 0 bytes copy nothing. The pairs of one source and one destination
/// place are one piece of work, which joins pairs that follow each other on both sides: of one queue between pinned or mapped memory
/// and a device, within a device, between peers, and within the host; staged between pageable memory and a device, and between devices
/// that are no peers. Unified memory is copied pair by pair, without waiting in between, unless a kernel may copy it to or from pinned and
/// mapped memory, after [`exclusive`](Self::exclusive).
///
/// Short pieces of pinned or mapped memory that lie there in long stretches, of an upload also with short gaps, and lists of up to 32 MiB of short pieces of pageable
/// memory, go through scratch memory of the device: at most 195 MiB for each device and direction, as much for pageable memory, and less
/// than as much again while lists still use buffers that were too short for later ones.
/// [`drain`](CrossBackendTransferManager::drain) frees it. Reports say [so](transload_core::TransferReport::through_device).
///
/// # What is refused
/// The list is checked before anything is copied: lengths are equal, destinations are writable, and no destination overlaps another
/// destination or a source, since the pairs are copied in no defined order. Otherwise [`CopyManyError::pairs`] says which pairs are
/// wrong, and nothing is copied.
///
/// # Order
/// Each piece of work takes its place in the order like a [`CopyBuilder`](crate::CopyBuilder)'s, and blocks the thread where that does;
/// several are submitted one after another. To repeat a list, [record](Self::record) it: that, too, is one submission for each.
/// A stream that is being captured takes no list (`Busy`).
#[must_use = "nothing is copied before `submit`, `wait` or `.await`"]
#[derive(Clone)]
pub struct CopyManyBuilder<'a> {
    manager: &'a CrossBackendTransferManager,
    pairs: Listed<'a>,
    options: TransferOptions,
    wanted: ListOptions,
    extras: BuilderExtras<'a>,
}

/// The end of many copies, as an awaited [`CopyManyBuilder`] gives it. It owns what it needs.
pub type CopyManyFuture =
    Pin<Box<dyn Future<Output = Result<CopyManyReport, CopyManyError>> + Send + 'static>>;

impl CrossBackendTransferManager {
    /// Copies of all of each source over all of its destination, which must have equal lengths: many at once. Takes a slice, or a
    /// vector, which a task need not copy.
    pub fn copy_many<'a>(
        &'a self,
        pairs: impl Into<Cow<'a, [(RawBuffer, RawBuffer)]>>,
    ) -> CopyManyBuilder<'a> {
        self.copy_list(Listed::Pairs(pairs.into()))
    }

    pub(crate) fn copy_list<'a>(&'a self, pairs: Listed<'a>) -> CopyManyBuilder<'a> {
        CopyManyBuilder {
            manager: self,
            pairs,
            options: TransferOptions::new(),
            wanted: ListOptions::default(),
            extras: BuilderExtras::default(),
        }
    }
}

impl<'a> CopyManyBuilder<'a> {
    /// Enqueues all on this stream, like [`CopyBuilder::on`](crate::CopyBuilder::on).
    ///
    /// # Errors
    /// When they are submitted: [`InvalidArgument`](transload_core::ErrorKind) if the stream's device cannot do one of the copies.
    pub fn on<Q: Queue + Clone>(mut self, stream: &'a Q) -> Self {
        self.extras.queue = Some(stream);
        self
    }

    /// The bytes move after this fence, whether its work succeeds or fails. May be called several times.
    pub fn after(mut self, fence: &Fence) -> Self {
        self.extras.after.push(fence.clone());
        self
    }

    /// See [`TransferOptions::priority`].
    pub fn priority(mut self, priority: StreamPriority) -> Self {
        self.options = self.options.priority(priority);
        self
    }

    /// Says that the device has no other work meanwhile. Then the way is chosen by what lists take on an idle device, else by what they take, and
    /// delay kernels, beside others that compute, once a calibration has measured both. Before, short pieces of host memory are copied by a kernel only after `exclusive`, which reads or writes
    /// pinned memory in place: up to ten times faster than copy engines, but next to other kernels it would hold them up, and wait for them.
    /// Kernels that copy both ways at once disturb each other: a list of 4 MiB or more that can go through device memory, or
    /// has long pieces, goes as without `exclusive` while this manager copies at least half as many bytes the other way over the device's link.
    pub fn exclusive(mut self) -> Self {
        self.wanted.exclusive = true;
        self
    }

    /// Copies by this way only, instead of the one that is predicted to be the fastest, at every
    /// [`priority`](Self::priority): `Unsupported` if a path has no such way, such as those within the host, or if the driver
    /// rejects the kernel that it needs. Then nothing is copied, but the pairs of other places where a peer's memory grants no access.
    pub fn way(mut self, way: ListWay) -> Self {
        self.wanted.way = Some(way);
        self
    }

    /// Replaces all options set so far. They hold for each piece of work; it is measured only if
    /// [`timing`](TransferOptions::timing) says so.
    pub fn options(mut self, options: TransferOptions) -> Self {
        self.options = options;
        self
    }

    /// Submits them, on the calling thread. What is wrong with them is told by the [`CopyManyTransfer`], as is how they went.
    pub fn submit(self) -> CopyManyTransfer {
        self.submit_for(false)
    }

    /// Submits them. The caller says whether it then waits for their end at once.
    fn submit_for(self, waits: bool) -> CopyManyTransfer {
        let Self { manager, pairs, options, wanted, extras: BuilderExtras { after, queue } } = self;
        let extras =
            Extras { after: &after, queue: queue.map(|queue| queue as _), waits, ..Extras::default() };
        let mut id = None;
        if let Listed::Blocks(blocks) = &pairs
            && let Some(transfer) = manager.submit_blocks(blocks, wanted, (&options, &extras), &mut id)
        {
            return transfer;
        }
        let submitted =
            ManyCopies::new(pairs.into_pairs(), wanted, id).attempt(manager, (&options, &extras), None);
        // Only tasks are deferred.
        submitted.unwrap_or_else(|_| CopyManyTransfer::refused(&manager.context, would_block()))
    }

    /// Submits them, and blocks the thread until all bytes are in place.
    ///
    /// # Errors
    /// As [`CopyManyTransfer::wait`].
    pub fn wait(self) -> Result<CopyManyReport, CopyManyError> {
        self.submit_for(true).wait()
    }

    /// Records them, to be submitted together any number of times: see [`CrossBackendTransferManager::record`]. After
    /// [`exclusive`](Self::exclusive) a kernel copies pinned and mapped memory, if it is predicted to be faster. A device's pairs are one
    /// launch of it, whose list is written now, if it copies every one of them, or all are within the device.
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::record`]; [`ErrorKind::InvalidArgument`] if this builder was given a stream, a fence or a way.
    pub fn record(self) -> Result<RecordedTransfers> {
        let has_extras = self.extras.queue.is_some() || !self.extras.after.is_empty();
        if has_extras || self.wanted.way.is_some() {
            let text =
                "a recording has no stream, fences or way; record copies without `on`, `after` and `way`";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.manager.record_with(&self.pairs.into_pairs(), &self.options, self.wanted.exclusive)
    }

    /// Like [`submit`](Self::submit) for a task: ready once all are submitted, or refused. It blocks no thread, like
    /// [`CopyBuilder::submit_async`](crate::CopyBuilder::submit_async); lists of more than 64 pairs are checked and submitted by a
    /// thread of the executor. A future that is dropped before it is ready may have submitted some of the paths.
    pub fn submit_async(self) -> impl Future<Output = CopyManyTransfer> + Send + 'static {
        let Self { manager, pairs, options, wanted, extras: BuilderExtras { after, queue } } = self;
        let task = TaskSubmission {
            id: None,
            manager: manager.clone(),
            options,
            after,
            queue: queue.map(SharedQueue::share),
            waited: false,
            work: OwnedList(ManyCopies::new(pairs.into_pairs().into_owned(), wanted, None)),
        };
        task.submit()
    }
}

impl IntoFuture for CopyManyBuilder<'_> {
    type Output = Result<CopyManyReport, CopyManyError>;
    type IntoFuture = CopyManyFuture;

    fn into_future(self) -> CopyManyFuture {
        let submitted = self.submit_async();
        Box::pin(async move { submitted.await.await })
    }
}

impl fmt::Debug for CopyManyBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyManyBuilder")
            .field("pairs", &self.pairs.len())
            .field("options", &self.options)
            .field("wanted", &self.wanted)
            .field("after", &self.extras.after)
            .field("on", &self.extras.queue.map(|queue| queue.device()))
            .finish()
    }
}
