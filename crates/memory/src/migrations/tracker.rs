//! The public tracker of migrations.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result};

use super::{MigrationCounts, regions::Regions, self_test};
use crate::{
    CudaDevice,
    cupti::session::{self, Listener, SharedRegions},
};

/// Counts migrations of unified memory between the host and one device, and the page faults of both, from its start
/// until it is dropped.
///
/// The counts come from the driver's tools library CUPTI. The first start opens it: by its usual names, in CUDA
/// toolkits under `/usr/local`, or at the path in the variable `TRANSLOAD_CUPTI`. It must be loaded before the process
/// creates its first CUDA context, so start a tracker before using the device; later trackers then work too. Each start
/// verifies the counters with a small migration.
///
/// A process can have one CUPTI subscriber, so a tracker and a profiler exclude each other; several trackers share one.
/// Without a tracker nothing is counted and there is no cost. With one, each migration and fault costs the driver a
/// record (on an H200 a kernel that faults on every page took twice as long), and a query costs 10 ms.
///
/// Work is counted once it is complete and the host knows: wait for its fence first. Counts are by address, so they
/// include memory freed earlier at the same addresses; [`reset`](Self::reset) clears them.
///
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use transload_core::MemoryKind;
/// use transload_memory::{CudaDevice, CudaMemoryManager, MigrationTracker};
///
/// fn touch() -> transload_core::Result<()> {
///     let device = CudaDevice::new(0)?;
///     let unified = CudaMemoryManager::new(&device)?.allocate(MemoryKind::Unified, 1 << 20)?;
///     let tracker = MigrationTracker::start(&device)?;
///     unified.write()?.fill(1);
///     println!("{}", tracker.counts(&unified)?);
///     Ok(())
/// }
///
/// if let Err(error) = touch() {
///     println!("no counts here: {error}");
/// }
/// # }
/// ```
///
/// Usable from any thread.
pub struct MigrationTracker {
    device: DeviceId,
    regions: SharedRegions,
}

impl MigrationTracker {
    /// Starts counting.
    ///
    /// # Errors
    /// `Unsupported` ("unavailable", with the cause) if CUPTI is not found, has an unknown version, is used by another
    /// tool, was loaded too late, or lacks these counters; the driver's.
    pub fn start(device: &CudaDevice) -> Result<Self> {
        let regions = Arc::new(Mutex::new(Regions::of(device.ordinal())));
        // Before the context is created: the library only knows contexts whose creation it saw.
        session::add_listener(Listener::Migrations(Arc::clone(&regions)))?;
        let tracker = Self { device: device.id(), regions };
        if !session::is_verified(device.ordinal()) {
            self_test::run(device, &tracker.regions)?;
            session::record_verified(device.ordinal());
            tracker.regions.lock().clear();
        }
        Ok(tracker)
    }

    /// Returns the device whose migrations and faults are counted, in addition to host faults.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the counts of a buffer's bytes so far. A host fault, and a group of device faults with its one recorded
    /// address, counts for every buffer or slice with bytes of that page; see [`MigrationCounts`].
    ///
    /// # Errors
    /// `InvalidArgument` for memory that does not migrate, `Unsupported` if the driver does not deliver its records.
    pub fn counts(&self, buffer: &RawBuffer) -> Result<MigrationCounts> {
        let place = buffer.place();
        let address = buffer.device_address().filter(|_| place.kind == MemoryKind::Unified);
        let Some(address) = address else {
            let text = format!("{place} memory does not migrate; only unified memory does");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        session::flush(true)?;
        let end = address.saturating_add(buffer.len() as u64);
        Ok(self.regions.lock().within(&(address..end)))
    }

    /// Returns the counts of all memory of the process so far.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn total(&self) -> Result<MigrationCounts> {
        session::flush(true)?;
        Ok(self.regions.lock().total())
    }

    /// Resets the counts.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn reset(&self) -> Result<()> {
        session::flush(true)?;
        self.regions.lock().clear();
        Ok(())
    }
}

impl Drop for MigrationTracker {
    fn drop(&mut self) {
        session::remove_listener(&Listener::Migrations(Arc::clone(&self.regions)));
    }
}

impl fmt::Debug for MigrationTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MigrationTracker").field("device", &self.device).finish_non_exhaustive()
    }
}
