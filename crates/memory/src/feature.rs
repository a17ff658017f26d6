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
    /// Host memory can be registered that may only be read.
    ReadOnlyHostRegister,
    /// The device uses registered host memory at the host's own addresses.
    CanUseHostPointerForRegisteredMem,
    /// Another device of this machine can be reached directly.
    P2P,
    /// Atomic operations of the device on host memory are atomic for the host, too.
    HostNativeAtomics,
    /// Device and host use one set of page tables: memory is shared by hardware.
    PageableMemoryAccessUsesHostPageTables,
    /// The host uses managed memory where it lies on the device, without moving it.
    DirectManagedMemAccessFromHost,
    /// Addresses can be reserved and memory mapped there piece by piece.
    VirtualMemoryManagement,
    /// Host memory can be mapped into the device's address space.
    MapHostMemory,
    /// Streams have priorities.
    StreamPriorities,
    /// The device shares its memory with the host.
    Integrated,
}

impl CudaFeature {
    /// Every feature.
    pub const ALL: [Self; 16] = [
        Self::ManagedMemory,
        Self::UnifiedAddressing,
        Self::ConcurrentManagedAccess,
        Self::PageableMemoryAccess,
        Self::MemoryPools,
        Self::HostRegister,
        Self::ReadOnlyHostRegister,
        Self::CanUseHostPointerForRegisteredMem,
        Self::P2P,
        Self::HostNativeAtomics,
        Self::PageableMemoryAccessUsesHostPageTables,
        Self::DirectManagedMemAccessFromHost,
        Self::VirtualMemoryManagement,
        Self::MapHostMemory,
        Self::StreamPriorities,
        Self::Integrated,
    ];

    /// The device's attribute that tells; none for what depends on other devices.
    pub(crate) fn attribute(self) -> Option<u32> {
        Some(match self {
            Self::P2P => return None,
            Self::ReadOnlyHostRegister => attribute::READ_ONLY_HOST_REGISTER_SUPPORTED,
            Self::CanUseHostPointerForRegisteredMem => attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
            Self::HostNativeAtomics => attribute::HOST_NATIVE_ATOMIC_SUPPORTED,
            Self::PageableMemoryAccessUsesHostPageTables => {
                attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
            }
            Self::DirectManagedMemAccessFromHost => attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
            Self::VirtualMemoryManagement => attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            Self::ManagedMemory => attribute::MANAGED_MEMORY,
            Self::UnifiedAddressing => attribute::UNIFIED_ADDRESSING,
            Self::ConcurrentManagedAccess => attribute::CONCURRENT_MANAGED_ACCESS,
            Self::PageableMemoryAccess => attribute::PAGEABLE_MEMORY_ACCESS,
            Self::MemoryPools => attribute::MEMORY_POOLS_SUPPORTED,
            Self::HostRegister => attribute::HOST_REGISTER_SUPPORTED,
            Self::MapHostMemory => attribute::CAN_MAP_HOST_MEMORY,
            Self::StreamPriorities => attribute::STREAM_PRIORITIES_SUPPORTED,
            Self::Integrated => attribute::INTEGRATED,
        })
    }
}

/// How much of unified memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnifiedSupport {
    /// None.
    None,
    /// Managed memory that moves as a whole, by the driver, when work begins; the host must not look meanwhile. Compute
    /// capability 3.0 or higher; also what newer devices have where the system cannot do more (Windows, say).
    Basic,
    /// Pages move when they are touched, by either side at any time; prefetch and advice. Compute capability 6.0 or higher.
    Full,
}

impl UnifiedSupport {
    pub(crate) fn of(capability: (i32, i32), managed: bool, concurrent: bool) -> Self {
        match capability {
            (6.., _) if managed && concurrent => Self::Full,
            (3.., _) if managed => Self::Basic,
            _ => Self::None,
        }
    }
}

impl fmt::Display for CudaFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
