//! Device capabilities, queried from the driver.

use std::fmt;

use transload_cuda_sys::attribute;

macro_rules! features {
    ($( $(#[$doc:meta])* $name:ident = $attribute:expr; )*) => {
        /// A capability that [`CudaDevice::supports_feature`](crate::CudaDevice::supports_feature) queries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CudaFeature { $( $(#[$doc])* $name, )* }

        impl CudaFeature {
            /// Every feature.
            pub const ALL: [Self; 16] = [$( Self::$name ),*];

            /// The device attribute to query; `None` for a feature that depends on other devices.
            pub(crate) fn attribute(self) -> Option<u32> {
                match self { $( Self::$name => $attribute, )* }
            }
        }
    };
}

features! {
    /// Unified (managed) memory; compute capability 3.0 or higher.
    ManagedMemory = Some(attribute::MANAGED_MEMORY);
    /// One address space for host and device.
    UnifiedAddressing = Some(attribute::UNIFIED_ADDRESSING);
    /// Host and device may use managed memory concurrently (compute capability 6.0 or higher on Linux).
    ConcurrentManagedAccess = Some(attribute::CONCURRENT_MANAGED_ACCESS);
    /// Ordinary host memory is accessible to the device.
    PageableMemoryAccess = Some(attribute::PAGEABLE_MEMORY_ACCESS);
    /// Stream-ordered memory pools.
    MemoryPools = Some(attribute::MEMORY_POOLS_SUPPORTED);
    /// Host memory can be registered.
    HostRegister = Some(attribute::HOST_REGISTER_SUPPORTED);
    /// Host memory can be registered read-only.
    ReadOnlyHostRegister = Some(attribute::READ_ONLY_HOST_REGISTER_SUPPORTED);
    /// The device uses registered host memory at the host's own addresses.
    CanUseHostPointerForRegisteredMem = Some(attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    /// Peer access to at least one other device of this machine.
    P2P = None;
    /// Device atomics on host memory are atomic for the host too.
    HostNativeAtomics = Some(attribute::HOST_NATIVE_ATOMIC_SUPPORTED);
    /// The device uses the host's page tables: hardware-coherent memory.
    PageableMemoryAccessUsesHostPageTables = Some(attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    /// The host accesses managed memory on the device without migrating it.
    DirectManagedMemAccessFromHost = Some(attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
    /// Virtual memory management: reserving addresses and mapping memory to them.
    VirtualMemoryManagement = Some(attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    /// Host memory can be mapped into the device's address space.
    MapHostMemory = Some(attribute::CAN_MAP_HOST_MEMORY);
    /// Streams have priorities.
    StreamPriorities = Some(attribute::STREAM_PRIORITIES_SUPPORTED);
    /// The device shares its memory with the host.
    Integrated = Some(attribute::INTEGRATED);
}

/// Level of unified-memory support of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnifiedSupport {
    /// No managed memory.
    None,
    /// Managed memory that the driver migrates as a whole at a kernel launch; the host must not access it while the
    /// device works. Compute capability 3.0 or higher, and newer devices on Windows.
    Basic,
    /// Pages migrate on access by either side at any time; prefetch and advice are supported. Compute capability 6.0 or
    /// higher.
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
