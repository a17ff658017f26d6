//! A CUDA device: name, identity, memory and attributes.

use std::os::raw::{c_char, c_int};

use crate::{Driver, DriverError, Result, check, ffi};

/// Device attribute numbers (`CU_DEVICE_ATTRIBUTE_*`) that this workspace uses, as integers.
///
/// Source: `CUdevice_attribute` in the CUDA driver API; numbers are stable across versions.
pub mod attribute {
    /// Number of asynchronous copy engines.
    pub const ASYNC_ENGINE_COUNT: u32 = 40;
    /// Threads that a multiprocessor runs at once, at most.
    pub const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;
    /// Number of multiprocessors.
    pub const MULTIPROCESSOR_COUNT: u32 = 16;
    /// The device shares its memory with the host.
    pub const INTEGRATED: u32 = 18;
    /// The device can map host memory.
    pub const CAN_MAP_HOST_MEMORY: u32 = 19;
    /// Host and device share one address space.
    pub const UNIFIED_ADDRESSING: u32 = 41;
    /// Major number of the compute capability.
    pub const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
    /// Minor number of the compute capability.
    pub const COMPUTE_CAPABILITY_MINOR: u32 = 76;
    /// Streams have priorities.
    pub const STREAM_PRIORITIES_SUPPORTED: u32 = 78;
    /// Managed memory can be allocated.
    pub const MANAGED_MEMORY: u32 = 83;
    /// The device can access pageable host memory.
    pub const PAGEABLE_MEMORY_ACCESS: u32 = 88;
    /// Host and device can access managed memory concurrently.
    pub const CONCURRENT_MANAGED_ACCESS: u32 = 89;
    /// Host memory can be registered.
    pub const HOST_REGISTER_SUPPORTED: u32 = 99;
    /// The device can use registered memory at its host address.
    pub const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: u32 = 91;
    /// Stream-ordered memory pools.
    pub const MEMORY_POOLS_SUPPORTED: u32 = 115;
    /// Native atomic operations on host memory over the link.
    pub const HOST_NATIVE_ATOMIC_SUPPORTED: u32 = 86;
    /// The device uses the host's page tables.
    pub const PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: u32 = 100;
    /// The host can access managed memory on the device without migration.
    pub const DIRECT_MANAGED_MEM_ACCESS_FROM_HOST: u32 = 101;
    /// Virtual memory management is supported.
    pub const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: u32 = 102;
    /// Host memory can be registered read-only.
    pub const READ_ONLY_HOST_REGISTER_SUPPORTED: u32 = 113;
    /// Nearest host NUMA node, -1 if the system has none (CUDA 12.2 and later).
    pub const HOST_NUMA_ID: u32 = 134;
}

/// Returns the text that a call writes to the given buffer of the given length.
fn text(name: &'static str, call: impl FnOnce(*mut c_char, c_int) -> u32) -> Result<String> {
    let mut bytes = [0_u8; 256];
    // Keep the last byte as terminator.
    check(name, call(bytes.as_mut_ptr().cast(), 255))?;
    Ok(bytes
        .split(|byte| *byte == 0)
        .next()
        .map_or_else(String::new, |text| String::from_utf8_lossy(text).into_owned()))
}

/// A device handle. It owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    ordinal: u32,
    handle: c_int,
}

impl Device {
    /// Returns the device with this ordinal, initialising the driver if necessary.
    ///
    /// # Errors
    /// Those of [`Driver::get`]; [`DriverError::NoDevice`] if there is none, [`DriverError::UnknownDevice`] if the
    /// ordinal is too large.
    pub fn new(ordinal: u32) -> Result<Self> {
        let count = Driver::get()?.device_count()?;
        if count == 0 {
            return Err(DriverError::NoDevice);
        }
        let signed = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(signed) = signed else { return Err(DriverError::UnknownDevice { ordinal, count }) };
        let mut handle = 0;
        // SAFETY: the out pointer is valid for the call.
        check("cuDeviceGet", unsafe { ffi::cuDeviceGet(&mut handle, signed) })?;
        Ok(Self { ordinal, handle })
    }

    /// Returns all devices in ordinal order; empty if the driver reports none.
    ///
    /// # Errors
    /// Those of [`Driver::get`].
    pub fn all() -> Result<Vec<Self>> {
        (0..Driver::get()?.device_count()?).map(Self::new).collect()
    }

    /// Returns the device ordinal.
    #[must_use]
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Returns the driver's handle (`CUdevice`).
    #[must_use]
    pub fn as_raw(self) -> c_int {
        self.handle
    }

    /// Returns the same device as cust's type.
    ///
    /// # Errors
    /// The driver's code.
    pub fn to_cust(self) -> Result<cust::device::Device> {
        cust::device::Device::get_device(self.ordinal).map_err(|error| DriverError::Call {
            call: "cuDeviceGet",
            code: error as u32,
            name: error.to_string(),
        })
    }

    /// Returns whether the process has the device's primary context, created by whichever library.
    ///
    /// # Errors
    /// The driver's code.
    pub fn has_primary_context(self) -> Result<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the out pointers are valid for the call.
        let code = unsafe { ffi::cuDevicePrimaryCtxGetState(self.handle, &mut flags, &mut active) };
        check("cuDevicePrimaryCtxGetState", code).map(|()| active != 0)
    }

    /// Returns the marketing name, for example `NVIDIA H200`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn name(self) -> Result<String> {
        // SAFETY: the driver writes at most `len` bytes.
        text("cuDeviceGetName", |to, len| unsafe { ffi::cuDeviceGetName(to, len, self.handle) })
    }

    /// Returns the UUID, which is stable across processes and reboots: of a MIG device its own. Before CUDA 11.4 that of the whole GPU.
    ///
    /// # Errors
    /// The driver's code.
    pub fn uuid(self) -> Result<[u8; 16]> {
        let mut uuid = cust::sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the out pointer is valid for the call.
        match check("cuDeviceGetUuid_v2", unsafe { ffi::cuDeviceGetUuid_v2(&mut uuid, self.handle) }) {
            Err(DriverError::MissingFunction { .. }) => {
                // SAFETY: as above.
                check("cuDeviceGetUuid", unsafe { ffi::cuDeviceGetUuid(&mut uuid, self.handle) })?;
            }
            found => found?,
        }
        Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Returns the PCI bus address, for example `0000:3B:00.0`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn pci_bus_id(self) -> Result<String> {
        // SAFETY: the driver writes at most `len` bytes.
        text("cuDeviceGetPCIBusId", |to, len| unsafe { ffi::cuDeviceGetPCIBusId(to, len, self.handle) })
    }

    /// Returns the size of device memory in bytes.
    ///
    /// # Errors
    /// The driver's code.
    pub fn total_memory(self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: the out pointer is valid for the call.
        check("cuDeviceTotalMem_v2", unsafe { ffi::cuDeviceTotalMem_v2(&mut bytes, self.handle) })?;
        Ok(bytes)
    }

    /// Returns a device attribute by number; [`attribute`] names the common ones.
    ///
    /// # Errors
    /// The driver's code, for example for an attribute that this driver does not know.
    pub fn attribute(self, number: u32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the out pointer is valid for the call; an unknown number is refused by the driver.
        check("cuDeviceGetAttribute", unsafe { ffi::cuDeviceGetAttribute(&mut value, number, self.handle) })?;
        Ok(value)
    }

    /// Returns whether this device can access the memory of `peer`. Creates no context.
    ///
    /// # Errors
    /// The driver's code.
    pub fn can_access_peer(self, peer: Self) -> Result<bool> {
        let mut can = 0;
        // SAFETY: the out pointer is valid for the call and both handles came from the driver.
        check("cuDeviceCanAccessPeer", unsafe {
            ffi::cuDeviceCanAccessPeer(&mut can, self.handle, peer.handle)
        })?;
        Ok(can != 0)
    }

    /// Returns the compute capability as (major, minor).
    ///
    /// # Errors
    /// The driver's code.
    pub fn compute_capability(self) -> Result<(i32, i32)> {
        Ok((
            self.attribute(attribute::COMPUTE_CAPABILITY_MAJOR)?,
            self.attribute(attribute::COMPUTE_CAPABILITY_MINOR)?,
        ))
    }
}
