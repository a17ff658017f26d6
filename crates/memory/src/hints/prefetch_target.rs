//! A prefetch destination in the running driver's format, and the call that enqueues a prefetch.

use transload_core::Result;
use transload_cuda_sys::{DriverError, RawStream, check, ffi};

use super::{MemoryLocation, driver_location::DriverLocation};

/// A [`MemoryLocation`] validated for and converted to the running driver. For callers who enqueue prefetches
/// themselves; otherwise use [`ManagedMemoryHints`](crate::ManagedMemoryHints).
#[derive(Clone, Copy, Debug)]
pub struct PrefetchTarget(DriverLocation);

impl PrefetchTarget {
    /// Converts a location for the running driver.
    ///
    /// # Errors
    /// `UnknownDevice` for an ordinal that no driver can have, `MissingFunction` for a NUMA node on a driver before CUDA 12.2;
    /// those of a driver that cannot be loaded.
    pub fn new(location: MemoryLocation) -> Result<Self> {
        DriverLocation::new(location).map(Self)
    }

    /// Enqueues the migration of a range. Its content does not change; the driver refuses memory that is not managed.
    ///
    /// # Errors
    /// The driver's; [`explain_hint`](crate::explain_hint) explains them.
    ///
    /// # Safety
    /// * `stream` is a valid stream, and a context is current.
    pub unsafe fn enqueue(self, address: u64, bytes: usize, stream: RawStream) -> Result<(), DriverError> {
        match self.0 {
            DriverLocation::V2(location) => check("cuMemPrefetchAsync_v2", unsafe {
                // SAFETY: the caller's promise; migration keeps the content. The flags must be 0.
                ffi::cuMemPrefetchAsync_v2(address, bytes, location, 0, stream)
            }),
            DriverLocation::V1(place) => check("cuMemPrefetchAsync", unsafe {
                // SAFETY: as above.
                ffi::cuMemPrefetchAsync(address, bytes, place, stream)
            }),
        }
    }
}
