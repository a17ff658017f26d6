//! Counts of live allocations.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use transload_core::Result;

use crate::{
    PinnedLimit,
    pinned_limit::{Pinned, PinnedBytes},
};

/// Live allocations of one manager.
#[derive(Debug)]
pub(crate) struct AllocationCounts {
    allocations: AtomicU64,
    /// Bytes of the device's memory that the manager allocated.
    device_bytes: AtomicU64,
    /// All other bytes.
    other_bytes: AtomicU64,
    /// Bytes of managed memory allocated as oversubscribed.
    oversubscribed: AtomicU64,
    /// Bytes of all other managed memory of the device, shared by its managers.
    reserved: Arc<AtomicU64>,
    pinned: Arc<PinnedLimit>,
}

/// Which count an allocation is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Device,
    Other,
    Reserved,
    Oversubscribed,
}

/// Counts one live allocation until dropped.
#[derive(Debug)]
pub(crate) struct CountGuard {
    counts: Arc<AllocationCounts>,
    bytes: u64,
    part: Part,
    _pinned: Option<PinnedBytes>,
}

/// Returns the managed-memory count shared by all managers of a device, so that one limit covers them. The ordinal
/// identifies the device: a process has one driver, and simulated devices have ordinals of their own.
fn reserved_of(ordinal: u32) -> Arc<AtomicU64> {
    static DEVICES: Mutex<Vec<(u32, Weak<AtomicU64>)>> = Mutex::new(Vec::new());
    let mut devices = DEVICES.lock();
    devices.retain(|(_, reserved)| reserved.strong_count() > 0);
    let mut known = devices.iter().filter(|(of, _)| *of == ordinal);
    known.find_map(|(_, known)| known.upgrade()).unwrap_or_else(|| {
        let reserved = Arc::default();
        devices.push((ordinal, Arc::downgrade(&reserved)));
        reserved
    })
}

impl AllocationCounts {
    pub(crate) fn new(device: u32, pinned: &Arc<PinnedLimit>) -> Arc<Self> {
        Arc::new(Self {
            allocations: AtomicU64::new(0),
            device_bytes: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            oversubscribed: AtomicU64::new(0),
            reserved: reserved_of(device),
            pinned: Arc::clone(pinned),
        })
    }

    /// Counts the device's memory.
    pub(crate) fn add_device(self: &Arc<Self>, bytes: usize) -> CountGuard {
        self.add_as(bytes as u64, Part::Device)
    }

    /// Counts memory of the host, or of other code.
    pub(crate) fn add(self: &Arc<Self>, bytes: usize) -> CountGuard {
        self.add_as(bytes as u64, Part::Other)
    }

    pub(crate) fn pinned(&self) -> &Arc<PinnedLimit> {
        &self.pinned
    }

    /// Counts pinned host memory.
    ///
    /// # Errors
    /// `OutOfMemory` if the limit is reached.
    pub(crate) fn add_pinned(self: &Arc<Self>, bytes: usize, pinned: Pinned) -> Result<CountGuard> {
        let pinned = self.pinned.reserve(bytes, pinned)?;
        let mut counted = self.add(bytes);
        counted._pinned = Some(pinned);
        Ok(counted)
    }

    /// Reserves managed memory. Fails with the bytes in use if all reservations plus this manager's oversubscribed
    /// bytes would exceed `most`.
    pub(crate) fn add_managed(
        self: &Arc<Self>,
        bytes: usize,
        most: u64,
    ) -> std::result::Result<CountGuard, u64> {
        let bytes = bytes as u64;
        let beyond = self.oversubscribed.load(Ordering::Relaxed);
        let room = most.checked_sub(beyond).ok_or(beyond)?;
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= room);
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map_err(|held| held.saturating_add(beyond))?;
        Ok(self.add_as(bytes, Part::Reserved))
    }

    /// Counts managed memory that may exceed the device's memory. It does not count against other managers' limits.
    pub(crate) fn add_oversubscribed(self: &Arc<Self>, bytes: usize) -> CountGuard {
        self.oversubscribed.fetch_add(bytes as u64, Ordering::Relaxed);
        self.add_as(bytes as u64, Part::Oversubscribed)
    }

    fn add_as(self: &Arc<Self>, bytes: u64, part: Part) -> CountGuard {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes_of(part).fetch_add(bytes, Ordering::Relaxed);
        CountGuard { counts: Arc::clone(self), bytes, part, _pinned: None }
    }

    fn bytes_of(&self, part: Part) -> &AtomicU64 {
        match part {
            Part::Device => &self.device_bytes,
            Part::Other | Part::Reserved | Part::Oversubscribed => &self.other_bytes,
        }
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.device_bytes() + self.other_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.counts.allocations.fetch_sub(1, Ordering::Relaxed);
        self.counts.bytes_of(self.part).fetch_sub(self.bytes, Ordering::Relaxed);
        match self.part {
            Part::Device | Part::Other => {}
            Part::Reserved => {
                self.counts.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
            }
            Part::Oversubscribed => {
                self.counts.oversubscribed.fetch_sub(self.bytes, Ordering::Relaxed);
            }
        }
    }
}
