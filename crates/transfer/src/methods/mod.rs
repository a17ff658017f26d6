//! The methods behind one trait. Each decides for itself whether it applies, and submits.

use std::sync::Arc;

use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, Fence, PeerAccess, QueueLease, RawBuffer, RejectReason,
    Result, StreamPriority, Timing, TransferMethod, TransferPath, WorkloadType,
};

use crate::{registry::Registered, request::Request, staging::Hire};

mod direct_copy;
mod host_staged;
mod peer_check;
mod peer_to_peer;
mod unified_memory;
mod zero_copy;

/// Every method, in the order of [`TransferMethod::ALL`]: of two that cost the same the first is taken. Each manager has
/// its own, with what they keep: threads, pinned memory, pairs that were verified.
pub(crate) fn all() -> [Arc<dyn Method>; 5] {
    let hire = Hire::default();
    [
        Arc::new(direct_copy::DirectCopy),
        Arc::new(host_staged::HostStaged::new(hire.clone())),
        Arc::new(unified_memory::UnifiedMemory::new(hire)),
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
    fn applicable(&self, path: TransferPath, context: &Context<'_>) -> Result<Route, RejectReason>;

    /// Makes the path ready before its first transfer: enables access, verifies it, sets memory aside. Called before each
    /// submission, so it must be quick once done. A plan does not call it.
    ///
    /// # Errors
    /// Why the method cannot be taken after all; it is not asked again for this path, and the next best is taken.
    fn prepare(&self, path: TransferPath, route: &Route) -> Result<(), RejectReason> {
        let _ = (path, route);
        Ok(())
    }

    /// Whether its bytes stand in the line of a copy engine, behind whatever was enqueued there before.
    fn uses_copy_engine(&self) -> bool {
        true
    }

    /// Into how many pieces it would cut a transfer.
    fn chunks(&self, route: &Route, request: &Request) -> u32 {
        let _ = (route, request);
        1
    }

    /// Waits for its own threads' work, and gives back what it keeps.
    fn drain(&self) {}

    /// Submits a transfer on a route that it gave. Does not wait for it. Allocates nothing once warm.
    ///
    /// # Errors
    /// The queue's. On an error nothing is under way.
    fn submit(&self, route: &Route, job: &Job<'_>) -> Result<Fence> {
        let _ = (route, job);
        Err(Error::new(ErrorKind::Unsupported, format!("{} is not implemented yet", self.method())))
    }
}

/// Whose queues a method would use.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) lane: DeviceId,
    pub(crate) lanes: u32,
    pub(crate) simulated: bool,
    /// The other device's backend and queues, for a method that needs those of both.
    pub(crate) second: Option<(Arc<dyn Backend>, DeviceId)>,
}

/// A transfer for a method to submit.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) src: &'a RawBuffer,
    pub(crate) dst: &'a RawBuffer,
    pub(crate) priority: StreamPriority,
    /// As the caller wants it counted.
    pub(crate) workload: Option<WorkloadType>,
    pub(crate) timing: Timing,
}

impl Job<'_> {
    /// A queue for copies of the device's copy engines, where the caller wants nothing else.
    fn lease_to_copy(&self, backend: &dyn Backend, lane: DeviceId) -> Result<QueueLease> {
        backend.lease_queue(lane, self.priority, self.workload.unwrap_or(WorkloadType::Memory))
    }
}

/// What a method may look at.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) backends: &'a [Registered],
}

impl Context<'_> {
    /// The first registered backend with a device whose queues copy directly along the path.
    fn copier(&self, path: TransferPath) -> Option<Route> {
        self.backends.iter().find_map(|registered| {
            let lane = registered.backend.copier(path.src, path.dst)?;
            let info = registered.device(lane)?;
            let backend = Arc::clone(&registered.backend);
            Some(Route { backend, lane, lanes: 1, simulated: info.simulated, second: None })
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
            simulated,
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
