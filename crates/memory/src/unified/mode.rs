//! The two implementations of a unified buffer.

use std::fmt;

use transload_core::Result;

use crate::{CudaDevice, CudaFeature};

/// How a [`UnifiedBuffer`](crate::UnifiedBuffer) shares memory between host and device. Both modes give the same
/// guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnifiedMode {
    /// The driver's managed memory: one allocation whose pages migrate. Needs concurrent managed access (compute
    /// capability 6.0 or higher on Linux).
    Managed,
    /// Device memory with a copy in pinned host memory. Closing a writable slice uploads it; opening a slice downloads
    /// what devices wrote.
    Explicit,
}

impl UnifiedMode {
    /// Returns the default mode of a device.
    ///
    /// # Errors
    /// The driver's.
    pub fn of(device: &CudaDevice) -> Result<Self> {
        let managed = device.supports_feature(CudaFeature::ManagedMemory)?
            && device.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
        Ok(if managed { Self::Managed } else { Self::Explicit })
    }
}

impl fmt::Display for UnifiedMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Managed => "managed",
            Self::Explicit => "explicit",
        })
    }
}
