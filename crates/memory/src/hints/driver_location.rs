//! Locations as the running driver's calls take them.

use std::sync::OnceLock;

use transload_core::Result;
use transload_cuda_sys::{Driver, ffi::MemLocation};

use super::MemoryLocation;
use crate::lift;

/// A location as the running driver's calls take it.
#[derive(Clone, Copy, Debug)]
pub(super) enum DriverLocation {
    /// `CUmemLocation`: CUDA 12.2 and newer.
    V2(MemLocation),
    V1(i32),
}

impl DriverLocation {
    pub(super) fn new(location: MemoryLocation) -> Result<Self> {
        Ok(if has_v2()? { Self::V2(location.to_v2()?) } else { Self::V1(location.to_v1()?) })
    }
}

/// See [`has_v2`]; empty until first queried.
static HAS_V2: OnceLock<bool> = OnceLock::new();

/// Returns whether the `_v2` calls are known to exist, without querying the driver.
#[inline]
pub(super) fn is_known_v2() -> bool {
    HAS_V2.get().is_some_and(|has| *has)
}

/// Returns whether the driver has the `_v2` calls, which take a `CUmemLocation` (CUDA 12.2 and newer).
pub(super) fn has_v2() -> Result<bool> {
    if let Some(has) = HAS_V2.get() {
        return Ok(*has);
    }
    let driver = Driver::get().map_err(lift)?;
    Ok(*HAS_V2.get_or_init(|| driver.has(c"cuMemAdvise_v2") && driver.has(c"cuMemPrefetchAsync_v2")))
}
