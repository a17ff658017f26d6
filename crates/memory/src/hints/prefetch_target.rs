//! A place in the terms of the running driver, and the one call that moves managed memory there.

use transload_core::Result;
use transload_cuda_sys::{
    DriverError, RawStream, check,
    ffi::{self, MemLocation},
};

use super::{MemoryLocation, calls::has_locations};

/// A [`MemoryLocation`] that the running driver can be told: everything that can be refused without it was refused. For those
/// who enqueue by themselves; [`ManagedMemoryHints`](crate::ManagedMemoryHints) is for everyone else.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchTarget(Named);

/// A place as the running driver's calls name it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named {
    /// By type and number: CUDA 12.2 and newer.
    Newer(MemLocation),
    Older(i32),
}

impl Named {
    pub(super) fn new(location: MemoryLocation) -> Result<Self> {
        Ok(if has_locations()? { Self::Newer(location.to_raw()?) } else { Self::Older(location.to_older()?) })
    }
}

impl PrefetchTarget {
    /// The place in the running driver's terms.
    ///
    /// # Errors
    /// `UnknownDevice` for an ordinal that no driver can have, `MissingFunction` for a NUMA node on a driver before CUDA 12.2;
    /// those of a driver that cannot be loaded.
    pub fn new(location: MemoryLocation) -> Result<Self> {
        Named::new(location).map(Self)
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
            Named::Newer(location) => check("cuMemPrefetchAsync_v2", unsafe {
                // SAFETY: the caller's promise; migration keeps the content. The flags must be 0.
                ffi::cuMemPrefetchAsync_v2(address, bytes, location, 0, stream)
            }),
            Named::Older(place) => check("cuMemPrefetchAsync", unsafe {
                // SAFETY: as above.
                ffi::cuMemPrefetchAsync(address, bytes, place, stream)
            }),
        }
    }
}
