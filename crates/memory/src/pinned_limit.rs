//! A limit on pinned host memory.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use transload_core::{DeviceId, Error, ErrorKind, MemoryInfo, MemoryKind, MemoryShortage, Place, Result};

/// How many bytes of host memory managers may have pinned together: pinned and mapped allocations, also those that are only kept
/// for reuse, and registrations.
#[derive(Debug)]
pub struct PinnedLimit {
    limit: u64,
    bytes: AtomicU64,
    /// The part of `bytes` that is registrations.
    registered: AtomicU64,
}

/// What pinned memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    Allocated,
    Registered,
}

/// Bytes that count against a limit until dropped.
#[derive(Debug)]
pub(crate) struct PinnedBytes {
    limit: Arc<PinnedLimit>,
    bytes: u64,
    pinned: Pinned,
}

impl PinnedLimit {
    /// Creates a limit in bytes; `u64::MAX` only counts.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit: bytes, bytes: AtomicU64::new(0), registered: AtomicU64::new(0) })
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many bytes are pinned.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many of the pinned bytes are registrations.
    #[must_use]
    pub fn registered(&self) -> u64 {
        self.registered.load(Ordering::Relaxed)
    }

    /// Adds to an [`OutOfMemory`](ErrorKind::OutOfMemory) of pinned memory what holds it, if the limit is the reason.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        let (limit, held) = (self.limit, self.bytes());
        let requested = error.memory_shortage().map_or(0, |shortage| shortage.requested);
        if error.kind() != ErrorKind::OutOfMemory || held.saturating_add(requested) <= limit {
            return error;
        }
        let registered = self.registered().min(held);
        let allocated = held - registered;
        let text = format!(
            "{requested} bytes requested, and {held} of the limit of {limit} bytes of pinned memory are held: {allocated} allocated, {registered} registered"
        );
        Error::caused_by(ErrorKind::OutOfMemory, text, error)
    }

    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if `bytes` exceed the limit, whatever else is pinned.
    pub fn check(&self, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        if bytes <= self.limit { Ok(()) } else { Err(self.explain(self.shortage(bytes, self.bytes()))) }
    }

    fn shortage(&self, requested: u64, held: u64) -> Error {
        let free = Some(self.limit.saturating_sub(held));
        let shortage = MemoryShortage { requested, free, total: Some(self.limit) };
        Error::out_of_memory(Place::new(DeviceId::Cpu, MemoryKind::Pinned), shortage)
    }

    /// Returns how much of the host's memory may be pinned.
    pub(crate) fn cap(&self, host: MemoryInfo) -> MemoryInfo {
        let free = self.limit.saturating_sub(self.bytes());
        MemoryInfo { free: host.free.min(free), total: host.total.min(self.limit) }
    }

    /// # Errors
    /// `OutOfMemory` with the numbers if the limit would be exceeded.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize, pinned: Pinned) -> Result<PinnedBytes> {
        let bytes = bytes as u64;
        let limit = if transload_core::mutant!("memory/pinned-limit") { u64::MAX } else { self.limit };
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            Ok(_) => {
                if pinned == Pinned::Registered {
                    self.registered.fetch_add(bytes, Ordering::Relaxed);
                }
                Ok(PinnedBytes { limit: Arc::clone(self), bytes, pinned })
            }
            Err(held) => Err(self.shortage(bytes, held)),
        }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if self.pinned == Pinned::Registered {
            self.limit.registered.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.limit.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
