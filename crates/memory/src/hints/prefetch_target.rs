//! A place in the mode of the running driver, and the one call that moves managed memory there.

use transload_core::Result;
use transload_cuda_sys::{
    DriverError, RawStream, check,
    ffi::{self, MemLocation},
};

use super::{MemoryLocation, calls::has_v2};

/// A [`MemoryLocation`] that the running driver can be told: everything that can be refused without it was refused. For those
/// who enqueue by themselves; [`ManagedMemoryHints`](crate::ManagedMemoryHints) is for everyone else.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchTarget(DriverLocation);

/// A place as the running driver's calls name it.
#[derive(Clone, Copy, Debug)]
pub(super) enum DriverLocation {
    /// By type and number: CUDA 12.2 and newer.
    V2(MemLocation),
    V1(i32),
}

impl DriverLocation {
    pub(super) fn new(location: MemoryLocation) -> Result<Self> {
        Ok(if has_v2()? { Self::V2(location.to_v2()?) } else { Self::V1(location.to_v1()?) })
    }
}

impl PrefetchTarget {
    /// The place in the running driver's mode.
    ///
    /// # Errors
    /// `UnknownDevice` for an ordinal that no driver can have, `MissingFunction` for a NUMA node on a driver before CUDA 12.2;
    /// those of a driver that cannot be loaded.
    pub fn new(location: MemoryLocation) -> Result<Self> {
        DriverLocation::new(location).map(Self)
    }

    /// Enqueues the migration of a range. Its content stays; the driver refuses a range that is not managed memory.
    ///
    /// # Errors
    /// The driver's; [`explain_hint`](crate::explain_hint) says what a refusal means.
    ///
    /// # Safety
    /// * `stream` is a stream that is alive, and a context is current.
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
