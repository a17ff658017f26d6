//! Locations of unified memory: a device, the host, or one of the host's NUMA nodes.

use std::fmt;

use transload_core::{DeviceId, Error, ErrorKind, Result};
use transload_cuda_sys::ffi::MemLocation;

/// A location that unified memory can be moved to or preferred at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryLocation {
    /// The CUDA device with this ordinal.
    Device(u32),
    /// The host, on any NUMA node.
    Host,
    /// The host's NUMA node with this number. Needs a driver of CUDA 12.2 or newer.
    HostNuma(u32),
    /// The NUMA node nearest to the calling thread's processor. Needs a driver of CUDA 12.2 or newer.
    HostNumaCurrent,
}

/// `CU_DEVICE_CPU`: the host in drivers before CUDA 12.2.
const CPU: i32 = -1;

impl MemoryLocation {
    /// Returns whether this is host memory, on any node.
    #[must_use]
    pub fn is_host(self) -> bool {
        !matches!(self, Self::Device(_))
    }

    /// Converts to `CUmemLocation`. Types: 1 device, 2 host, 3 host NUMA node, 4 the current one.
    #[inline]
    pub(super) fn to_v2(self) -> Result<MemLocation> {
        Ok(match self {
            Self::Device(ordinal) => {
                MemLocation { kind: 1, id: i32::try_from(ordinal).map_err(|_| too_large(ordinal))? }
            }
            Self::Host => MemLocation { kind: 2, id: 0 },
            Self::HostNuma(node) => {
                let id = i32::try_from(node).map_err(|_| {
                    let text = format!("there is no NUMA node {node}; numbers end at {}", i32::MAX);
                    Error::new(ErrorKind::InvalidArgument, text)
                })?;
                MemLocation { kind: 3, id }
            }
            Self::HostNumaCurrent => MemLocation { kind: 4, id: 0 },
        })
    }

    /// Converts to the device number of drivers before CUDA 12.2, which know no NUMA nodes.
    pub(super) fn to_v1(self) -> Result<i32> {
        match self {
            Self::Device(ordinal) => i32::try_from(ordinal).map_err(|_| too_large(ordinal)),
            Self::Host => Ok(CPU),
            Self::HostNuma(_) | Self::HostNumaCurrent => Err(Error::new(
                ErrorKind::MissingFunction,
                format!("{self} needs a CUDA driver of 12.2 or newer; valid on this one are cpu and cuda:N"),
            )),
        }
    }
}

#[cold]
fn too_large(ordinal: u32) -> Error {
    Error::new(ErrorKind::UnknownDevice, format!("there is no CUDA device {ordinal}"))
}

impl TryFrom<DeviceId> for MemoryLocation {
    type Error = Error;

    /// # Errors
    /// `Unsupported` for a device that is neither the host nor CUDA's.
    #[inline]
    fn try_from(device: DeviceId) -> Result<Self> {
        match device {
            DeviceId::Cpu => Ok(Self::Host),
            DeviceId::Cuda(ordinal) => Ok(Self::Device(ordinal)),
            other => Err(unsupported_location(other)),
        }
    }
}

#[cold]
fn unsupported_location(device: DeviceId) -> Error {
    let text = format!("unified memory cannot be at {device}; valid are cpu and cuda:N");
    Error::new(ErrorKind::Unsupported, text)
}

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Host => f.write_str("cpu"),
            Self::HostNuma(node) => write!(f, "NUMA node {node}"),
            Self::HostNumaCurrent => f.write_str("the current NUMA node"),
        }
    }
}
