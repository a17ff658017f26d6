//! The methods behind one trait. Each decides for itself whether it applies, and submits.

use std::sync::Arc;

use transload_core::{
    Access, Backend, Claims, DeviceId, DeviceInfo, Operation, PeerAccess, Queue, QueueLease, RawBuffer,
    RejectReason, Result, StreamPriority, Submitted, Timing, TransferMethod, TransferPath, TrySubmitError,
    Turns, WorkloadType, submit, try_submit,
};

use transload_executor::Executor;

use crate::planning::{registry::Registered, request::PlanInput};

mod direct_copy;
mod host_staged;
mod peer_check;
mod peer_to_peer;
mod unified_memory;
mod zero_copy;

/// Every method, in the order of [`TransferMethod::ALL`]: of two that cost the same the first is taken. Each manager has
/// its own, with what they keep: threads, pinned memory, pairs that were verified.
pub(crate) fn all() -> [Arc<dyn Method>; 5] {
    let executor = Executor::shared();
    [
        Arc::new(direct_copy::DirectCopy),
        Arc::new(host_staged::HostStaged::new(executor.clone())),
        Arc::new(unified_memory::UnifiedMemory::new(executor)),
        Arc::new(peer_to_peer::PeerToPeer::default()),
        Arc::new(zero_copy::ZeroCopy),
    ]
}

/// A way in which bytes move.
pub(crate) trait Method: Send + Sync + 'static {
    /// Which.
    fn method(&self) -> TransferMethod;

    /// The route that it would take. The answer is kept for the path until a backend is registered or costs change, so
    /// it must not depend on anything else.
    ///
    /// # Errors
    /// Why it cannot be taken on this path.
    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason>;

    /// Makes the path ready before its first transfer: enables access, verifies it, sets memory aside. Called before each
    /// submission, so it must be quick once done. A plan does not call it.
    ///
    /// # Errors
    /// Why the method cannot be taken after all, now or ever; the next best is taken.
    fn prepare(&self, path: TransferPath, route: &Route) -> Result<(), Declined> {
        let _ = (path, route);
        Ok(())
    }

    /// Starts the threads that it works with, so that no submission has to.
    ///
    /// # Errors
    /// The system's.
    fn start(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the device reads and writes the host's memory in place, so that no copy engine takes part.
    fn is_in_place(&self) -> bool {
        false
    }

    /// How many of a transfer's bytes stand in a copy engine's queue at once, at most.
    fn queued(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Into how many pieces it would cut a transfer.
    fn chunks(&self, route: &Route, input: &PlanInput) -> u32 {
        let _ = (route, input);
        1
    }

    /// The one operation that its transfers consist of, if they do and such an operation can be recorded; see
    /// [`Backend::record`].
    fn single_operation(&self, path: TransferPath) -> Option<SingleOperation> {
        let _ = path;
        None
    }

    /// Waits for its own tasks, and gives back what it keeps.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) on a thread of the executor, where it would wait for
    /// its own caller.
    fn drain(&self) -> Result<()> {
        Ok(())
    }

    /// Submits a transfer on a route that it gave, or does it at once. Does not wait for it.
    /// Allocates nothing once warm.
    ///
    /// # Errors
    /// The queue's, and what is in the way where the request must not block the thread. On an error nothing is under way.
    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, TrySubmitError>;
}

/// Why a method that applies is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declined {
    /// It will never do on this path, and is not asked again.
    Permanently(RejectReason),
    /// Not for this transfer, since it could not be verified; the next one may ask again.
    ThisTime,
}

/// What a submission does about earlier work that is in its way, and that its queue cannot wait for by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnConflict<'a> {
    /// It blocks the calling thread.
    Block,
    /// The obstacle is returned; these turns are taken.
    Return(&'a Turns),
}

/// Makes an operation of a source and a destination.
pub(crate) type SingleOperation = for<'a> fn(&'a RawBuffer, &'a RawBuffer) -> Operation<'a>;

/// Whose queues a method would use.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) lane: DeviceId,
    pub(crate) lanes: u32,
    pub(crate) simulated: bool,
    /// How many bytes the backend copies at once, without a queue.
    pub(crate) at_once: usize,
    /// Whether the device can copy in place between itself and the memory that the method stages in.
    pub(crate) stages_in_place: bool,
    /// The other device's backend and queues, for a method that needs those of both.
    pub(crate) second: Option<(Arc<dyn Backend>, DeviceId)>,
}

/// A transfer for a method to submit.
#[derive(Debug)]
pub(crate) struct TransferRequest<'a> {
    pub(crate) src: &'a RawBuffer,
    pub(crate) dst: &'a RawBuffer,
    pub(crate) priority: StreamPriority,
    /// As the caller wants it counted.
    pub(crate) workload: Option<WorkloadType>,
    pub(crate) timing: Timing,
    pub(crate) on_conflict: OnConflict<'a>,
    /// Whether the device's own processors copy in the place of a copy engine; only where the route says that they can.
    pub(crate) stage_in_place: bool,
}

impl TransferRequest<'_> {
    /// Puts an operation on a queue.
    fn enqueue(
        &self,
        queue: &dyn Queue,
        operation: &Operation<'_>,
        timing: Timing,
    ) -> Result<Submitted, TrySubmitError> {
        match self.on_conflict {
            OnConflict::Block => submit(queue, operation, timing).map_err(TrySubmitError::Failed),
            OnConflict::Return(turns) => try_submit(queue, operation, timing, turns),
        }
        .map(Submitted::Until)
    }

    /// Claims both sides.
    fn claim(&self) -> Result<Claims<'_>, TrySubmitError> {
        let mut uses = [(self.src, Access::Read), (self.dst, Access::Write)];
        match self.on_conflict {
            OnConflict::Block => Claims::acquire(&mut uses).map_err(TrySubmitError::Failed),
            OnConflict::Return(turns) => Claims::try_acquire(&mut uses, turns),
        }
    }

    /// A queue for copies of the device's copy engines, where the caller wants nothing else.
    fn lease_to_copy(&self, backend: &dyn Backend, lane: DeviceId) -> Result<QueueLease> {
        backend.lease_queue(lane, self.priority, self.workload.unwrap_or(WorkloadType::Memory))
    }

    /// The same for the executor's workers, which nobody else's work must hold up.
    fn lease_for_workers(
        &self,
        backend: &dyn Backend,
        lane: DeviceId,
        usual: WorkloadType,
    ) -> Result<QueueLease> {
        backend.lease_reserved_queue(lane, self.priority, self.workload.unwrap_or(usual))
    }
}

/// What a method may look at.
#[derive(Debug)]
pub(crate) struct Topology<'a> {
    pub(crate) backends: &'a [Registered],
}

impl Topology<'_> {
    /// The first registered backend with a device whose queues copy directly along the path.
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
                stages_in_place: false,
                second: None,
            })
        })
    }

    /// The first registered backend with a device whose queues copy along the path in place.
    fn in_place_copier(&self, path: TransferPath) -> Option<Route> {
        self.backends.iter().find_map(|registered| {
            let lane = registered.backend.in_place_copier(path.src, path.dst)?;
            self.route(lane)
        })
    }

    /// The backend of a device.
    fn registered(&self, device: DeviceId) -> Option<&Registered> {
        self.backends.iter().find(|registered| registered.device(device).is_some())
    }

    /// A route by one queue of the device's backend.
    fn route(&self, device: DeviceId) -> Option<Route> {
        let registered = self.registered(device)?;
        let simulated = registered.device(device)?.simulated;
        Some(Route {
            backend: Arc::clone(&registered.backend),
            lane: device,
            lanes: 1,
            at_once: 0,
            simulated,
            stages_in_place: false,
            second: None,
        })
    }

    /// Whether both devices reach each other's memory, or could. Only a backend that has both can know.
    fn are_peers(&self, a: DeviceId, b: DeviceId) -> bool {
        let Some(registered) = self.registered(a).filter(|registered| registered.device(b).is_some()) else {
            return false;
        };
        [(a, b), (b, a)].into_iter().all(|(device, peer)| {
            let access = registered.backend.peer_access(device, peer);
            access.is_ok_and(|access| access != PeerAccess::Unavailable)
        })
    }

    /// Whether a third device is a peer of this one.
    fn has_peer(&self, device: DeviceId) -> bool {
        self.devices()
            .any(|other| other.id != device && !other.id.is_cpu() && self.are_peers(other.id, device))
    }

    fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.backends.iter().flat_map(|registered| &registered.devices)
    }
}
