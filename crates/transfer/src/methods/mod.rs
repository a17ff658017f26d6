//! The transfer methods. Each decides whether it applies to a path, and submits.

use std::{ops::Deref, sync::Arc};

use transload_core::{
    Access, Backend, BlockList, Claims, DeviceId, ErrorKind, Fence, HalfPairs, Operation, PeerAccess, Queue,
    QueueLease, RawBuffer, RejectReason, Result, Submitted, Timing, TransferId, TransferMethod, TransferPath,
    Turns, WorkloadType, submit, submit_after, submit_blocks, try_submit_after,
};

use transload_executor::Executor;

pub(crate) use device_scratch::{CHUNK, DeviceScratch, Purpose, Taken};

use crate::{
    TransferOptions,
    attempt::{Deferral, Extras, NotSubmitted, Staging, TaskContext},
    context::ManagerContext,
    planning::{registry::Registered, request::PlanInput},
    staging::StagingRings,
    strided::Rows,
};

mod device_chunks;
mod device_halves;
pub(crate) mod device_scratch;
pub(crate) mod direct_copy;
mod host_staged;
mod peer_check;
mod peer_to_peer;
mod unified_memory;
mod zero_copy;

/// Creates every method, in the order of [`TransferMethod::ALL`]: of two with equal costs the first is chosen. Each
/// manager has its own, with their threads, pinned memory and verified pairs.
pub(crate) fn all(
    executor: Executor,
    rings: &Arc<StagingRings>,
    context: &Arc<ManagerContext>,
) -> [Arc<dyn Method>; 5] {
    let scratch = &context.scratch;
    [
        Arc::new(direct_copy::DirectCopy { scratch: Arc::clone(scratch) }),
        Arc::new(host_staged::HostStaged::new(executor.clone(), rings, scratch, context)),
        Arc::new(unified_memory::UnifiedMemory::new(executor)),
        Arc::new(peer_to_peer::PeerToPeer::default()),
        Arc::new(zero_copy::ZeroCopy),
    ]
}

/// A way to move bytes.
pub(crate) trait Method: Send + Sync + 'static {
    /// Returns the method's identifier.
    fn method(&self) -> TransferMethod;

    /// Returns its route for a path. The result is cached until a backend is registered or costs change, so it must not
    /// depend on anything else.
    ///
    /// # Errors
    /// Why it does not apply to this path.
    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason>;

    /// Prepares the path for its first transfer, such as by enabling and verifying peer access. Called before each
    /// submission, so it must be quick once done. A plan does not call it.
    ///
    /// # Errors
    /// Why the method cannot be used after all, now or permanently; the next best is chosen.
    fn prepare(&self, path: &TransferPath, route: &Route) -> Result<(), Declined> {
        let _ = (path, route);
        Ok(())
    }

    /// Starts its threads, and allocates what its transfers on the route need, so that no submission has to.
    ///
    /// # Errors
    /// The operating system's, or the backend's.
    fn start(&self, route: &Route) -> Result<()> {
        let _ = route;
        Ok(())
    }

    /// Returns the most bytes of a transfer that are in a copy engine's queue at once, or that threads of the host copy in place.
    fn queued(&self, route: &Route, bytes: u64) -> u64 {
        let _ = route;
        bytes
    }

    /// Returns the number of chunks of a transfer.
    fn chunks(&self, route: &Route, input: &PlanInput) -> u32 {
        let _ = (route, input);
        1
    }

    /// Whether its transfers are enqueued on one queue of the lane as a whole, so that a queue of the caller's can take them.
    fn is_of_one_queue(&self, path: TransferPath) -> bool {
        let _ = path;
        true
    }

    /// Whether the memory that its transfers on the route need is there, so that none allocates it.
    fn is_ready(&self, route: &Route) -> bool {
        let _ = route;
        true
    }

    /// Whether the calling thread's processor copies the bytes, or the driver blocks it, while a transfer is submitted.
    fn copies_during_call(&self, route: &Route, input: &PlanInput) -> bool {
        let _ = (route, input);
        false
    }

    /// Returns the single operation that a transfer is, if it is one that can be recorded; see [`Backend::record`].
    fn single_operation(&self, path: TransferPath) -> Option<SingleOperation> {
        let _ = path;
        None
    }

    /// Whether it copies many pairs of a path as one transfer, by [`submit_many`](Self::submit_many).
    fn takes_many(&self, path: &TransferPath) -> bool {
        let _ = path;
        false
    }

    /// Like [`submit`](Self::submit), for many pairs of one path that it [takes](Self::takes_many). The request has the first that is not
    /// empty. By default one operation of a queue of the lane: a copy kernel's if the request says so and the driver takes it, else copies.
    ///
    /// # Errors
    /// Those of `submit`; [`ErrorKind::Overlap`] if two pairs overlap; [`ErrorKind::Unsupported`] if the queue can only copy them one by one.
    fn submit_many(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: &[(RawBuffer, RawBuffer)],
    ) -> Result<Submitted, NotSubmitted> {
        let (workload, operation) = if request.goes_by_kernel(route)? {
            (WorkloadType::Compute, Operation::CopyBatchInPlace { pairs })
        } else {
            (WorkloadType::Memory, Operation::CopyBatch { pairs })
        };
        let queue = request.queue(&*route.backend, route.lane, workload)?;
        request.enqueue(&*queue, &operation, request.timing)
    }

    /// Like [`submit_many`](Self::submit_many), for blocks. `None` if nothing was submitted, since their pairs are to be.
    ///
    /// # Errors
    /// Those of `submit_many`.
    fn submit_blocks(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        blocks: &BlockList,
    ) -> Result<Option<Submitted>, NotSubmitted> {
        if request.goes_by_kernel(route)? { request.enqueue_blocks(route, blocks) } else { Ok(None) }
    }

    /// Like [`submit_many`](Self::submit_many), through device memory, for pairs in the order of the host's memory. `None` if nothing was
    /// submitted, since it cannot be done so.
    ///
    /// # Errors
    /// Those of `submit_many`.
    fn submit_through_device(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: HalfPairs<'_>,
    ) -> Result<Option<Submitted>, NotSubmitted> {
        let _ = (route, request, pairs);
        Ok(None)
    }

    /// Waits for its own tasks, and releases cached memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) on a thread of the executor, where it would wait for
    /// its own caller.
    fn drain(&self) -> Result<()> {
        Ok(())
    }

    /// Submits a transfer on a route that it returned, or runs it inline. Does not wait for it. Allocates nothing once
    /// warm.
    ///
    /// # Errors
    /// The queue's; the conflict, if the request must not block the thread. On an error nothing was submitted; after an
    /// [`ErrorKind::OutOfMemory`](transload_core::ErrorKind::OutOfMemory) of HostStaged or DirectCopy the next best method is tried.
    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, NotSubmitted>;
}

/// Why a method that applies is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declined {
    /// It cannot be used on this path, and is not tried again.
    Permanently(RejectReason),
    /// It could not be verified for this transfer; the next one may try again.
    ThisTime,
}

/// A queue for one transfer.
enum RequestQueue<'a> {
    Leased(QueueLease),
    Given(&'a dyn Queue),
}

impl Deref for RequestQueue<'_> {
    type Target = dyn Queue;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Leased(lease) => &**lease,
            Self::Given(queue) => *queue,
        }
    }
}

/// Creates an operation from a source and a destination.
pub(crate) type SingleOperation = for<'a> fn(&'a RawBuffer, &'a RawBuffer) -> Operation<'a>;

/// The backend and device whose queues a method uses.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) lane: DeviceId,
    pub(crate) lanes: u32,
    pub(crate) simulated: bool,
    /// Largest copy, in bytes, that the backend runs inline, without a queue.
    pub(crate) at_once: usize,
    /// Whether a copy kernel can do what a copy engine does: between the device and the staging buffers, within the device, or between peers.
    pub(crate) has_kernel: bool,
    /// The other device and its backend, for a method that uses the queues of both.
    pub(crate) second: Option<(Arc<dyn Backend>, DeviceId)>,
}

/// A transfer for a method to submit.
pub(crate) struct TransferRequest<'a> {
    pub(crate) src: &'a RawBuffer,
    pub(crate) dst: &'a RawBuffer,
    pub(crate) options: &'a TransferOptions,
    /// As the options have it, or else as the manager samples.
    pub(crate) timing: Timing,
    /// Whether to use a copy kernel instead of a copy engine; only if the route has both.
    pub(crate) by_kernel: bool,
    pub(crate) extras: Option<&'a Extras<'a>>,
}

impl Extras<'_> {
    fn enqueue(
        &self,
        queue: &dyn Queue,
        operation: &Operation<'_>,
        timing: Timing,
    ) -> Result<Submitted, NotSubmitted> {
        Ok(Submitted::Until(match self.task {
            None => submit_after(queue, operation, self.after, timing)?,
            Some(task) => {
                if task.may_be_slow {
                    operation.prepare(queue);
                }
                try_submit_after(queue, operation, self.after, timing, task.turns)?
            }
        }))
    }
}

impl<'a> TransferRequest<'a> {
    pub(crate) fn id(&self) -> Option<TransferId> {
        self.extras.and_then(|extras| extras.id)
    }

    /// Whether no other method is left, so that memory which was short a moment ago is tried again.
    fn insists(&self) -> bool {
        self.extras.is_some_and(|extras| extras.staging == Staging::LastResort)
    }

    /// Returns what is copied of the source and the destination, if it is not all.
    fn rows(&self) -> Option<&'a Rows> {
        self.extras.and_then(|extras| extras.rows)
    }

    fn task(&self) -> Option<&'a TaskContext<'a>> {
        self.extras.and_then(|extras| extras.task)
    }

    /// If there is a task, its turns: conflicting work that a queue cannot wait for is returned then. Otherwise the calling
    /// thread is blocked until that work is complete.
    fn turns(&self) -> Option<&'a Turns> {
        self.task().map(|task| task.turns)
    }

    /// Enqueues an operation.
    #[inline(always)]
    fn enqueue(
        &self,
        queue: &dyn Queue,
        operation: &Operation<'_>,
        timing: Timing,
    ) -> Result<Submitted, NotSubmitted> {
        match self.extras {
            None => Ok(Submitted::Until(submit(queue, operation, timing)?)),
            Some(extras) => extras.enqueue(queue, operation, timing),
        }
    }

    /// Returns whether a copy kernel is to copy. If the driver rejects it, a copy engine does.
    fn goes_by_kernel(&self, route: &Route) -> Result<bool, NotSubmitted> {
        Ok(self.by_kernel && self.prepare_kernel(route)?.is_ok())
    }

    /// Enqueues blocks on a queue of kernels of the route's lane. `None` if it takes pairs only, or pools overlap.
    fn enqueue_blocks(&self, route: &Route, blocks: &BlockList) -> Result<Option<Submitted>, NotSubmitted> {
        let queue = self.queue(&*route.backend, route.lane, WorkloadType::Compute)?;
        match submit_blocks(&*queue, blocks, self.timing) {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            submitted => Ok(Some(Submitted::Until(submitted?))),
        }
    }

    /// Returns whether the calling thread waits for the end as soon as this is submitted.
    fn waits(&self) -> bool {
        self.extras.is_some_and(|extras| extras.waits)
    }

    /// Returns whether the first step may be left to the calling thread's wait.
    fn begins_by_waiting(&self) -> bool {
        self.extras.is_some_and(Extras::begins_by_waiting)
    }

    /// What the bytes move after, besides conflicting work.
    fn after(&self) -> &'a [Fence] {
        self.extras.map_or(&[], |extras| extras.after)
    }

    /// Claims both buffers.
    fn claim(&self) -> Result<Claims<'a>, NotSubmitted> {
        let mut uses = [(self.src, Access::Read), (self.dst, Access::Write)];
        Ok(match self.turns() {
            None => Claims::acquire(&mut uses)?,
            Some(turns) => Claims::try_acquire(&mut uses, turns)?,
        })
    }

    /// Checks and claims these pairs.
    fn claim_all<'b>(&self, pairs: &'b [(RawBuffer, RawBuffer)]) -> Result<Claims<'b>, NotSubmitted> {
        Ok(match self.turns() {
            None => Claims::acquire_batch(pairs)?,
            Some(turns) => Claims::try_acquire_batch(pairs, turns)?,
        })
    }

    /// Claims the pairs of a list of blocks, which a task submits as pairs: this may block. `None` if pools overlap.
    fn claim_blocks(blocks: &BlockList) -> Result<Option<Claims<'_>>, NotSubmitted> {
        match Claims::acquire_blocks(blocks) {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            claims => Ok(Some(claims?)),
        }
    }

    /// The caller's queue, or one of the lane for the caller's workload or else the method's own.
    #[inline]
    fn queue(
        &self,
        backend: &dyn Backend,
        lane: DeviceId,
        usual: WorkloadType,
    ) -> Result<RequestQueue<'a>, NotSubmitted> {
        if let Some(&Extras { queue: Some(queue), .. }) = self.extras {
            return Ok(RequestQueue::Given(queue));
        }
        self.lease(backend, lane, usual, false).map(RequestQueue::Leased)
    }

    /// Leases a queue for the executor's workers, which other users' work must not delay.
    fn lease_for_workers(
        &self,
        backend: &dyn Backend,
        lane: DeviceId,
        usual: WorkloadType,
    ) -> Result<QueueLease, NotSubmitted> {
        self.lease(backend, lane, usual, true)
    }

    /// Loads the route's copy kernel, which waits for the whole device: where a task must not take its thread long, another one does.
    fn prepare_kernel(&self, route: &Route) -> Result<Result<()>, NotSubmitted> {
        let Route { backend, lane, .. } = route;
        // Either of two peers.
        let lane = self.extras.and_then(|extras| extras.queue).map_or(*lane, |queue| queue.device());
        if self.task().is_some_and(|task| !task.may_be_slow)
            && !backend.is_prepared_in_place(lane)
            && !transload_core::mutant!("transfer/polled-list-loads-no-kernel")
        {
            return Err(NotSubmitted::Deferred(Deferral::Slow(lane)));
        }
        Ok(backend.prepare_in_place(lane))
    }

    #[inline]
    fn lease(
        &self,
        backend: &dyn Backend,
        lane: DeviceId,
        usual: WorkloadType,
        reserved: bool,
    ) -> Result<QueueLease, NotSubmitted> {
        let TransferOptions { priority, workload, .. } = *self.options;
        let workload = workload.unwrap_or(usual);
        if self.task().is_some_and(|task| !task.may_be_slow)
            && !transload_core::mutant!("transfer/task-creates-no-queue")
        {
            let lease = backend.lease_existing_queue(lane, priority, workload, reserved)?;
            return lease.ok_or(NotSubmitted::Deferred(Deferral::Slow(lane)));
        }
        let lease = if reserved { Backend::lease_reserved_queue } else { Backend::lease_queue };
        Ok(lease(backend, lane, priority, workload)?)
    }
}

/// The registered backends and devices, as methods see them.
#[derive(Debug)]
pub(crate) struct Topology<'a> {
    pub(crate) backends: &'a [Registered],
}

impl Topology<'_> {
    /// Returns the first registered backend with a device whose queues copy directly along the path.
    fn copier(&self, path: TransferPath) -> Option<Route> {
        self.backends.iter().find_map(|registered| {
            let lane = registered.backend.copier(path.src, path.dst)?;
            let info = registered.device(lane)?;
            let at_once = registered.backend.host_copy_limit(path.src, path.dst);
            let backend = Arc::clone(&registered.backend);
            Some(Route {
                backend,
                lane,
                lanes: 1,
                simulated: info.simulated,
                at_once,
                has_kernel: false,
                second: None,
            })
        })
    }

    /// Returns the first registered backend with a device whose queues copy along the path in place.
    fn in_place_copier(&self, path: TransferPath) -> Option<Route> {
        self.backends.iter().find_map(|registered| {
            let lane = registered.backend.in_place_copier(path.src, path.dst)?;
            self.route(lane)
        })
    }

    /// Returns the backend of a device.
    fn registered(&self, device: DeviceId) -> Option<&Registered> {
        self.backends.iter().find(|registered| registered.device(device).is_some())
    }

    /// Returns a route by one queue of the device's backend.
    fn route(&self, device: DeviceId) -> Option<Route> {
        let registered = self.registered(device)?;
        let simulated = registered.device(device)?.simulated;
        Some(Route {
            backend: Arc::clone(&registered.backend),
            lane: device,
            lanes: 1,
            at_once: 0,
            simulated,
            has_kernel: false,
            second: None,
        })
    }

    /// Returns whether peer access between the devices is enabled or available both ways. Only a backend that has both
    /// can tell.
    fn are_peers(&self, a: DeviceId, b: DeviceId) -> bool {
        let Some(registered) = self.registered(a).filter(|registered| registered.device(b).is_some()) else {
            return false;
        };
        [(a, b), (b, a)].into_iter().all(|(device, peer)| {
            let access = registered.backend.peer_access(device, peer);
            access.is_ok_and(|access| access != PeerAccess::Unavailable)
        })
    }
}
