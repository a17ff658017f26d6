//! Counts what is alive.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Live allocations of one manager.
#[derive(Debug)]
pub(crate) struct AllocationCounts {
    allocations: AtomicU64,
    bytes: AtomicU64,
    /// Managed memory that was asked for beyond what the device has free.
    oversubscribed: AtomicU64,
    /// The other managed memory, with that of all other managers of the device.
    reserved: Arc<AtomicU64>,
}

/// What else than its manager an allocation counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Managed {
    No,
    Reserved,
    Oversubscribed,
}

/// One live allocation in a counts; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct CountGuard {
    counts: Arc<AllocationCounts>,
    bytes: u64,
    managed: Managed,
}

/// Returns the count of managed memory that all managers of a device share: a bound that each kept by itself would be none. A
/// process has one driver, which numbers its devices once, so the ordinal names it; simulated devices have their own as well.
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
    pub(crate) fn new(device: u32) -> Arc<Self> {
        Arc::new(Self {
            allocations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            oversubscribed: AtomicU64::new(0),
            reserved: reserved_of(device),
        })
    }

    pub(crate) fn add(self: &Arc<Self>, bytes: usize) -> CountGuard {
        self.add_as(bytes as u64, Managed::No)
    }

    /// As [`enter`](Self::enter), for managed memory: of all managers together, and of this one what was asked for beyond,
    /// at most `most` bytes at a time. Where that is too much, answers how many bytes there are already.
    pub(crate) fn add_managed(self: &Arc<Self>, bytes: usize, most: u64) -> Result<CountGuard, u64> {
        let bytes = bytes as u64;
        let beyond = self.oversubscribed.load(Ordering::Relaxed);
        let room = most.checked_sub(beyond).ok_or(beyond)?;
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= room);
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map_err(|held| held.saturating_add(beyond))?;
        Ok(self.add_as(bytes, Managed::Reserved))
    }

    /// As [`enter`](Self::enter), for managed memory that may be more than the device has. Other managers' requests are not
    /// refused for it: it is this one that was told to allow it.
    pub(crate) fn add_oversubscribed(self: &Arc<Self>, bytes: usize) -> CountGuard {
        self.oversubscribed.fetch_add(bytes as u64, Ordering::Relaxed);
        self.add_as(bytes as u64, Managed::Oversubscribed)
    }

    fn add_as(self: &Arc<Self>, bytes: u64, managed: Managed) -> CountGuard {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        CountGuard { counts: Arc::clone(self), bytes, managed }
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.counts.allocations.fetch_sub(1, Ordering::Relaxed);
        self.counts.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        match self.managed {
            Managed::No => {}
            Managed::Reserved => {
                self.counts.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
            }
            Managed::Oversubscribed => {
                self.counts.oversubscribed.fetch_sub(self.bytes, Ordering::Relaxed);
            }
        }
    }
}
