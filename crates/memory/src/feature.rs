//! What a device can do, asked of the running driver.

use std::fmt;

use transload_cuda_sys::attribute;

/// A capability that [`CudaDevice::supports_feature`](crate::CudaDevice::supports_feature) answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CudaFeature {
    /// Unified (managed) memory; compute capability 3.0 or higher.
    ManagedMemory,
    /// One address space for host and device.
    UnifiedAddressing,
    /// Host and device may use managed memory at the same time: full support, compute capability 6.0 or higher on Linux.
    ConcurrentManagedAccess,
    /// Ordinary host memory is accessible to the device.
    PageableMemoryAccess,
    /// Stream-ordered memory pools.
    MemoryPools,
    /// Host memory can be registered.
    HostRegister,
    /// Host memory can be mapped into the device's address space.
    MapHostMemory,
    /// Streams have priorities.
    StreamPriorities,
    /// The device shares its memory with the host.
    Integrated,
}

impl CudaFeature {
    /// Every feature.
    pub const ALL: [Self; 9] = [
        Self::ManagedMemory,
        Self::UnifiedAddressing,
        Self::ConcurrentManagedAccess,
        Self::PageableMemoryAccess,
        Self::MemoryPools,
        Self::HostRegister,
        Self::MapHostMemory,
        Self::StreamPriorities,
        Self::Integrated,
    ];

    pub(crate) fn attribute(self) -> u32 {
        match self {
            Self::ManagedMemory => attribute::MANAGED_MEMORY,
            Self::UnifiedAddressing => attribute::UNIFIED_ADDRESSING,
            Self::ConcurrentManagedAccess => attribute::CONCURRENT_MANAGED_ACCESS,
            Self::PageableMemoryAccess => attribute::PAGEABLE_MEMORY_ACCESS,
            Self::MemoryPools => attribute::MEMORY_POOLS_SUPPORTED,
            Self::HostRegister => attribute::HOST_REGISTER_SUPPORTED,
            Self::MapHostMemory => attribute::CAN_MAP_HOST_MEMORY,
            Self::StreamPriorities => attribute::STREAM_PRIORITIES_SUPPORTED,
            Self::Integrated => attribute::INTEGRATED,
        }
    }
}

impl fmt::Display for CudaFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
