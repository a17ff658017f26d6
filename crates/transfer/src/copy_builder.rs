//! The one verb: a copy, with whatever else is asked of it.

use std::{
    cell::Cell,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use transload_core::{
    Fence, Queue, RawBuffer, Result, StreamPriority, Timing, Transfer, TransferMethod, TransferReport, Turns,
    WorkloadType,
};

use crate::{
    CrossBackendTransferManager, Plan, TransferOptions,
    attempt::{Deferral, Extras, TaskContext},
    context::ManagerContext,
    planning::{copied::Copied, request::PlanInput},
    staging::{REGISTERED_FROM, registered_path},
    strided::{Rows, StridedCopy},
    task_submission::{TaskSubmission, Work, is_pageable},
};

/// Bytes from which a copy may be staged.
const MAY_BE_STAGED: usize = 32 << 10;

/// A copy of all of one buffer over all of another, or of [strided](CrossBackendTransferManager::copy_strided) parts, not yet submitted. [`submit`](Self::submit) it, [`wait`](Self::wait) for it, or
/// `.await` it. To copy a part, slice the buffers.
///
/// ```
/// # use transload_backend_cpu::CpuBackend;
/// # use transload_core::{DeviceId, MemoryKind, StreamPriority};
/// # use transload_transfer::CrossBackendTransferManager;
/// # let manager = CrossBackendTransferManager::new();
/// # manager.register_backend(CpuBackend::new()?)?;
/// # let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096)?;
/// # let dst = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096)?;
/// let report = manager.copy(&src, &dst).priority(StreamPriority::High).wait()?;
/// println!("{report}");
/// # Ok::<(), transload_core::Error>(())
/// ```
///
/// # What blocks, and what keeps order
///
/// | Call | Submits on | Blocks the calling thread | Order of copies that touch common bytes |
/// |---|---|---|---|
/// | [`submit`](Self::submit) | the calling thread | while it submits, as below; not for the bytes | that of the calls |
/// | [`wait`](Self::wait) | the calling thread | until the bytes are in place | that of the calls |
/// | [`submit_async`](Self::submit_async) | the polling thread, or one of the executor if it takes long | no | that in which the futures become ready |
/// | `.await` | like `submit_async` | no | like `submit_async` |
/// | of `transload`: `discover`, `prepare`, `share`, `load`, `drain`, `read`, `write`, `used_on` | – | until it is done; `…_async` does not | – |
/// | of a kernel's launch: `enqueue`; of a stream: `wait_fences` | – | until staged transfers and work of other backends that they conflict with are done; await these before | that of the calls |
/// | of `transload`: `alloc`, `zeros`, `pinned`, `unified`, `fill`, `upload`, `stream`, `HostBuffer::from_array` | – | until it is done, some hundred milliseconds if a context is made or memory pinned; in a task, call it on a thread that may block | – |
///
/// `submit` is the one call that may block *and* returns a future. A [`Transfer`] took its place in the order when it was submitted;
/// when, and whether, it is awaited changes nothing.
///
/// Submitting takes some microseconds. It blocks the thread, or takes it long:
/// * for the first transfer of a path and priority, up to some hundred milliseconds;
///   [`prepare`](CrossBackendTransferManager::prepare) does that beforehand;
/// * for a copy between memories of the host of up to 2 MiB, which is made there and then;
/// * for a DirectCopy of pageable memory, which the driver makes during the call, after all that it must come after;
/// * while the bytes are in use by work of another backend that a device's queue cannot wait for: staging threads, or a copy
///   within the host. From CUDA 12 on, a stream waits for a copy within the host, unless that copy comes after incomplete work,
///   or the transfer is of pageable or unified memory, or memory is being freed;
/// * while a driver's queue is full, from about a thousand operations in flight on.
///
/// So a warm copy between pinned and device memory does not block, unless the host works on its bytes.
///
/// To order copies of several threads or tasks, hold a lock while they are submitted and await them after it was released:
///
/// ```
/// # use transload_core::RawBuffer;
/// # use transload_transfer::CrossBackendTransferManager;
/// async fn swap(
///     manager: &CrossBackendTransferManager,
///     order: &std::sync::Mutex<()>,
///     (slot, evicted, restored): (&RawBuffer, &RawBuffer, &RawBuffer),
/// ) -> transload_core::Result<()> {
///     let (out, back) = {
///         let _order = order.lock();
///         (manager.copy(slot, evicted).submit(), manager.copy(restored, slot).submit())
///     };
///     out.await?;
///     back.await?;
///     Ok(())
/// }
/// ```
#[must_use = "nothing is copied before `submit`, `wait` or `.await`"]
#[derive(Clone)]
pub struct CopyBuilder<'a> {
    manager: &'a CrossBackendTransferManager,
    src: &'a RawBuffer,
    dst: &'a RawBuffer,
    options: TransferOptions,
    /// What few copies ask for: a builder without it is small, and has nothing to drop.
    extras: Option<Box<CopyExtras<'a>>>,
}

#[derive(Clone, Default)]
struct CopyExtras<'a> {
    order: BuilderExtras<'a>,
    /// In the place of all bytes of the buffers.
    strided: Option<StridedCopy>,
}

#[derive(Clone, Default)]
pub(crate) struct BuilderExtras<'a> {
    pub(crate) after: Vec<Fence>,
    pub(crate) queue: Option<&'a dyn SharedQueue>,
}

/// The end of a copy, as an awaited [`CopyBuilder`] gives it. It owns what it needs.
pub type CopyFuture = Pin<Box<dyn Future<Output = Result<TransferReport>> + Send + 'static>>;

/// A queue of which clones are handles.
pub(crate) trait SharedQueue: Queue {
    fn share(&self) -> Arc<dyn Queue>;
}

impl<Q: Queue + Clone> SharedQueue for Q {
    fn share(&self) -> Arc<dyn Queue> {
        Arc::new(self.clone())
    }
}

impl CrossBackendTransferManager {
    /// A copy of all of `src` over all of `dst`, which must have equal lengths.
    #[inline]
    pub fn copy<'a>(&'a self, src: &'a RawBuffer, dst: &'a RawBuffer) -> CopyBuilder<'a> {
        let options = TransferOptions::new();
        CopyBuilder { manager: self, src, dst, options, extras: None }
    }
}

impl<'a> CopyBuilder<'a> {
    /// Enqueues it on this stream: after everything enqueued there before, and before everything enqueued there later. A method
    /// that works on several queues is [rejected](transload_core::RejectReason::NotOnQueue) then; the stream's own priority and
    /// workload count.
    ///
    /// # Errors
    /// When it is submitted or planned: [`InvalidArgument`](transload_core::ErrorKind) if the stream's device cannot do this copy, naming the
    /// devices that can. A copy between memories of the host takes no stream; one between the host and a device takes a
    /// stream of that device.
    pub fn on<Q: Queue + Clone>(mut self, stream: &'a Q) -> Self {
        self.extras.get_or_insert_default().order.queue = Some(stream);
        self
    }

    /// The bytes move after this fence, whether its work succeeds or fails. May be called several times. [`submit`](Self::submit)
    /// says whether the thread waits for it.
    pub fn after(mut self, fence: &Fence) -> Self {
        self.extras.get_or_insert_default().order.after.push(fence.clone());
        self
    }

    /// See [`TransferOptions::priority`].
    pub fn priority(mut self, priority: StreamPriority) -> Self {
        self.options = self.options.priority(priority);
        self
    }

    /// See [`TransferOptions::workload`].
    pub fn workload(mut self, workload: WorkloadType) -> Self {
        self.options = self.options.workload(workload);
        self
    }

    /// Takes this method or none; see [`TransferOptions::only`].
    pub fn method(mut self, method: TransferMethod) -> Self {
        self.options = self.options.only(method);
        self
    }

    /// Does not take this method.
    pub fn forbid(mut self, method: TransferMethod) -> Self {
        self.options = self.options.forbid(method);
        self
    }

    /// See [`TransferOptions::timing`].
    pub fn timing(mut self, timing: Timing) -> Self {
        self.options = self.options.timing(timing);
        self
    }

    /// Replaces all options set so far.
    pub fn options(mut self, options: TransferOptions) -> Self {
        self.options = options;
        self
    }

    /// What it would do: nothing is moved and no queue is leased.
    ///
    /// # Errors
    /// Those of submitting it, except [`Busy`](transload_core::ErrorKind) and the backend's.
    pub fn plan(&self) -> Result<Plan> {
        let queue = self.extras.as_ref().and_then(|extras| extras.order.queue).map(|queue| queue.device());
        let strided = self.extras.as_ref().and_then(|extras| extras.strided.as_ref());
        let (mut input, options, copied) = match strided {
            None => {
                (PlanInput::of(self.src, self.dst)?, self.options, Copied::new((self.src, self.dst), None))
            }
            Some(strided) => {
                (strided.input()?, strided.options(self.manager, &self.options, queue), strided.copied())
            }
        };
        if input.bytes >= REGISTERED_FROM && strided.is_none_or(|strided| strided.rows.is_none()) {
            input.path = registered_path(self.src, self.dst, &options);
        }
        self.manager.plan_on(&input, &options, queue, copied)
    }

    /// Copies this instead of all bytes.
    pub(crate) fn strided(mut self, copy: StridedCopy) -> Self {
        self.extras.get_or_insert_default().strided = Some(copy);
        self
    }

    /// Submits it, on the calling thread: what may take long then is [listed above](Self#what-blocks-and-what-keeps-order). What is
    /// wrong with it is told by the [`Transfer`], as is how it went.
    ///
    /// # Errors
    /// By the transfer, as for [`CrossBackendTransferManager::transfer_buffer`];
    /// [`ErrorKind::InvalidArgument`](transload_core::ErrorKind::InvalidArgument) for unequal lengths.
    #[inline]
    pub fn submit(self) -> Transfer {
        let Self { manager, src, dst, options, extras } = self;
        match extras {
            None => manager.start(src, dst, &options),
            Some(extras) => submit_with(manager, (src, dst), &options, (&extras, false)),
        }
    }

    /// Submits it, and blocks the thread until the bytes are in place.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    #[inline]
    pub fn wait(self) -> Result<TransferReport> {
        let Self { manager, src, dst, options, extras } = self;
        if extras.is_none() && src.len() < MAY_BE_STAGED {
            return manager.start(src, dst, &options).wait();
        }
        let none = CopyExtras::default();
        let extras = (extras.as_deref().unwrap_or(&none), true);
        submit_with(manager, (src, dst), &options, extras).wait()
    }

    /// Like [`submit`](Self::submit) for a task: ready once the transfer is submitted, or refused. Copies whose futures are polled
    /// concurrently are in no order. A future that is dropped before it is ready has no effect and holds nothing, unless a thread of
    /// the executor is submitting its copy at that moment.
    ///
    /// It blocks no thread: of what takes `submit` long (the [list](Self#what-blocks-and-what-keeps-order)), it awaits work of other
    /// backends and room in a queue with 256 operations in flight, and leaves the rest, host copies above 64 KiB and the creation of
    /// queues included, to a thread of the executor. It does not see what a given stream has to do that was enqueued through its
    /// handle. Two exceptions, both for a
    /// stream given to [`on`](Self::on): a direct copy of pageable memory is submitted when the work that the stream has is
    /// complete, and if more is enqueued meanwhile keeps one thread of the executor until the stream gets there; a per-thread default
    /// stream is used by the polling thread, however long that takes, and must be that thread's.
    pub fn submit_async(self) -> impl Future<Output = Transfer> + Send + 'static {
        let Self { manager, src, dst, options, extras } = self;
        let CopyExtras { order: BuilderExtras { after, queue }, strided } =
            extras.map(|extras| *extras).unwrap_or_default();
        let options = strided.as_ref().map_or(options, |strided| {
            strided.options(manager, &options, queue.as_ref().map(|queue| queue.device()))
        });
        let StridedCopy { src, dst, rows } =
            strided.unwrap_or_else(|| StridedCopy { src: src.clone(), dst: dst.clone(), rows: None });
        let bytes = rows.as_ref().map_or(src.len() as u64, Rows::bytes);
        let task = TaskSubmission {
            id: manager.context.transfer_id(bytes),
            manager: manager.clone(),
            options,
            after,
            queue: queue.map(SharedQueue::share),
            waited: false,
            work: One { src, dst, rows: rows.map(Box::new), turns: Turns::default() },
        };
        task.submit()
    }
}

#[cold]
fn submit_with(
    manager: &CrossBackendTransferManager,
    (src, dst): (&RawBuffer, &RawBuffer),
    options: &TransferOptions,
    (CopyExtras { order: BuilderExtras { after, queue }, strided }, waits): (&CopyExtras<'_>, bool),
) -> Transfer {
    let bytes = strided.as_ref().map_or(src.len() as u64, StridedCopy::bytes);
    let id = manager.context.transfer_id(bytes);
    let queue = queue.map(|queue| queue as _);
    let extras = Extras { id, after, queue, waits, ..Extras::default() };
    match strided {
        None => manager.attempt(src, dst, options, Some(&extras)),
        Some(strided) => {
            let options = strided.options(manager, options, extras.queue.map(|queue| queue.device()));
            let extras = Extras { rows: strided.rows.as_ref(), ..extras };
            manager.attempt(&strided.src, &strided.dst, &options, Some(&extras))
        }
    }
}

/// A copy that a task submits.
struct One {
    src: RawBuffer,
    dst: RawBuffer,
    rows: Option<Box<Rows>>,
    turns: Turns,
}

impl Work for One {
    type Submitted = Transfer;

    fn attempt(task: &mut TaskSubmission<Self>, may_be_slow: bool) -> Result<Transfer, Deferral> {
        let One { src, dst, rows, turns } = &task.work;
        let context = TaskContext { turns, may_be_slow, deferral: Cell::default() };
        let queue = task.queue.as_deref();
        let (after, rows) = (task.after.as_slice(), rows.as_deref());
        let extras = Extras { id: task.id, after, queue, task: Some(&context), rows, ..Extras::default() };
        let transfer = task.manager.attempt(src, dst, &task.options, Some(&extras));
        context.deferral.take().map_or(Ok(transfer), Err)
    }

    fn uses_pageable(&self) -> bool {
        is_pageable(self.src.place()) || is_pageable(self.dst.place())
    }

    fn refused(_: Option<Self>, _: &Arc<ManagerContext>, transfer: Transfer) -> Transfer {
        transfer
    }
}

impl IntoFuture for CopyBuilder<'_> {
    type Output = Result<TransferReport>;
    type IntoFuture = CopyFuture;

    fn into_future(self) -> CopyFuture {
        let submitted = self.submit_async();
        Box::pin(async move { submitted.await.await })
    }
}

impl fmt::Debug for CopyBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyBuilder")
            .field("src", self.src)
            .field("dst", self.dst)
            .field("options", &self.options)
            .field("strided", &self.extras.as_ref().and_then(|extras| extras.strided.as_ref()))
            .field("after", &self.extras.as_ref().map(|extras| &extras.order.after))
            .field(
                "on",
                &self.extras.as_ref().and_then(|extras| extras.order.queue).map(|queue| queue.device()),
            )
            .finish()
    }
}
