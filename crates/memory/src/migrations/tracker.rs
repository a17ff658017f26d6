//! The counters as a program sees them.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result};

use super::{
    MigrationCounts,
    regions::Regions,
    self_test,
    session::{self, SharedRegions},
};
use crate::CudaDevice;

/// Counts how unified memory migrates between the host and one device, and the page faults of both, from its start until it
/// is dropped.
///
/// The numbers are the driver's own, told to its tools library CUPTI. It is opened by the first start: by its usual names, in
/// the usual folders of a CUDA toolkit under `/usr/local`, or as the variable `TRANSLOAD_CUPTI` names it. It must be there
/// before the process makes its first CUDA context, so start a tracker before the device is used otherwise; later ones work
/// as well then. Each start proves by a migration of its own that migrations are counted.
///
/// One user of CUPTI per process is possible, so no tracker starts beside a profiler, and no profiler beside a tracker;
/// several trackers share one use. While no tracker lives, nothing is counted and nothing costs anything; while one does,
/// each migration and fault costs the driver a record (on an H200 a kernel that faults on every page took twice as long),
/// and a question costs 10 ms.
///
/// Work is counted once it is over and the host knows: wait for its fence before asking. Counts are by address, so memory
/// that lay where a buffer lies now counts as the buffer's; [`reset`](Self::reset) begins anew.
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
    /// `Unsupported` ("unavailable", with what was tried) where CUPTI is not found, is of an unknown version, belongs to
    /// another tool, was opened too late, or has no such counters on this system; the driver's.
    pub fn start(device: &CudaDevice) -> Result<Self> {
        let regions = Arc::new(Mutex::new(Regions::of(device.ordinal())));
        // Before the context is made, where it is not made yet: the library knows only contexts that it saw being made.
        session::add_listener(&regions)?;
        let tracker = Self { device: device.id(), regions };
        if !session::is_verified(device.ordinal()) {
            self_test::run(device, &tracker.regions)?;
            session::record_verified(device.ordinal());
            tracker.regions.lock().clear();
        }
        Ok(tracker)
    }

    /// The device whose migrations and faults are counted, beside the host's faults.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// What touched a buffer's bytes so far. A page fault of the host, and a group of faults of the device by the one address that
    /// its record names, counts for every buffer, or slice of one, that has bytes of that page; see [`MigrationCounts`].
    ///
    /// # Errors
    /// `InvalidArgument` for memory that does not migrate, `Unsupported` where the driver does not deliver its records.
    pub fn counts(&self, buffer: &RawBuffer) -> Result<MigrationCounts> {
        let place = buffer.place();
        let address = buffer.device_address().filter(|_| place.kind == MemoryKind::Unified);
        let Some(address) = address else {
            let text = format!("{place} memory does not migrate; only unified memory does");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        session::flush()?;
        let end = address.saturating_add(buffer.len() as u64);
        Ok(self.regions.lock().within(&(address..end)))
    }

    /// All counts so far, of whatever memory of the process.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn total(&self) -> Result<MigrationCounts> {
        session::flush()?;
        Ok(self.regions.lock().total())
    }

    /// Forgets what was counted so far.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn reset(&self) -> Result<()> {
        session::flush()?;
        self.regions.lock().clear();
        Ok(())
    }
}

impl Drop for MigrationTracker {
    fn drop(&mut self) {
        session::remove_listener(&self.regions);
    }
}

impl fmt::Debug for MigrationTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MigrationTracker").field("device", &self.device).finish_non_exhaustive()
    }
}
