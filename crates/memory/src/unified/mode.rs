//! Which of two ways a unified buffer works in.

use std::fmt;

use transload_core::Result;

use crate::{CudaDevice, CudaFeature};

/// How a [`UnifiedBuffer`](crate::UnifiedBuffer) is one memory for host and device. What it promises is the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnifiedMode {
    /// The driver's managed memory: one allocation whose pages move. Needs a device that can use it at the same time as the
    /// host (compute capability 6.0 or higher, on Linux).
    Managed,
    /// Device memory with a copy in pinned host memory. What a writable slice holds is copied up when it closes; what devices
    /// wrote is copied down when a slice is opened, and only then.
    Explicit,
}

impl UnifiedMode {
    /// The mode that the device's buffers have unless another one is asked for.
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
