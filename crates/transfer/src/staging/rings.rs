//! The rings of a manager's devices.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use transload_core::{Backend, DeviceId, DeviceInfo, MemoryKind, PinnedCache};
use transload_executor::Executor;

use super::{
    STAGING_BUFFER, StagingRing, default_workers,
    ring::{Host, Source},
};

/// Staging buffers per thread: the host copies one while the device copies the other.
const BUFFERS_PER_WORKER: usize = 2;

pub(crate) struct StagingRings {
    executor: Executor,
    /// The most bytes of staging buffers of a device, if limited.
    limit: Option<u64>,
    host: Host,
    rings: DashMap<DeviceId, Arc<StagingRing>>,
}

impl StagingRings {
    /// Each device has at most `limit` bytes of staging buffers, but at least one.
    pub(crate) fn new(executor: Executor, limit: Option<u64>) -> Self {
        let limit = limit.filter(|_| !transload_core::mutant!("transfer/staging-limit"));
        Self {
            executor,
            limit: limit.map(|limit| limit.max(STAGING_BUFFER)),
            host: Host::default(),
            rings: DashMap::new(),
        }
    }

    /// Has rings of devices whose backends have no pinned memory use the host's.
    pub(crate) fn set_host(&self, backend: &Arc<dyn Backend>) {
        self.host.get_or_init(|| Arc::clone(backend));
    }

    /// Returns where the memory of a device's ring is from.
    fn source(&self, backend: &Arc<dyn Backend>, lane: DeviceId) -> Source {
        let has_pinned = |info: &DeviceInfo| info.id == lane && info.kinds.contains(&MemoryKind::Pinned);
        let host = (!backend.devices().iter().any(has_pinned)).then(|| Arc::clone(&self.host));
        Source { lane, backend: Arc::clone(backend), host }
    }

    /// Returns the most buffers of a ring.
    pub(crate) fn ring_size(&self) -> usize {
        let most = self.limit.map(|limit| usize::try_from(limit / STAGING_BUFFER).unwrap_or(usize::MAX));
        (default_workers() * BUFFERS_PER_WORKER).min(most.unwrap_or(usize::MAX))
    }

    /// Returns the ring of a device, if there is one yet.
    pub(crate) fn get(&self, device: DeviceId) -> Option<Arc<StagingRing>> {
        self.rings.get(&device).map(|ring| Arc::clone(&ring))
    }

    pub(crate) fn get_or_create(&self, backend: &Arc<dyn Backend>, device: DeviceId) -> Arc<StagingRing> {
        if let Some(ring) = self.get(device) {
            return ring;
        }
        let source = Some(self.source(backend, device));
        let made = Arc::new(StagingRing::new(&self.executor, source, self.ring_size(), self.limit));
        let ring = Arc::clone(self.rings.entry(device).or_insert_with(|| Arc::clone(&made)).value());
        if Arc::ptr_eq(&ring, &made) {
            backend.add_pinned_cache(Arc::downgrade(&made) as Weak<dyn PinnedCache>);
        }
        ring
    }

    /// Returns the bytes of all staging buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.bytes()).sum()
    }

    /// Returns the bytes of the staging buffers in the rings.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.ring_bytes()).sum()
    }

    /// Frees the unused buffers.
    pub(crate) fn release(&self) {
        // Copied first: releasing calls the backend.
        let rings: Vec<_> = self.rings.iter().map(|ring| Arc::clone(&ring)).collect();
        for ring in rings {
            ring.release();
        }
    }
}
