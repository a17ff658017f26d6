//! The CUDA side: which driver there is, the device that is measured, and memory straight from the driver.

use std::{ptr, ptr::NonNull, sync::OnceLock, time::Instant};

use anyhow::{Context as _, Result, bail};
use transload_core::{DeviceId, MemoryKind, Place};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{Context, Device, Driver, DriverError, check, ffi};

use crate::{
    case::Kit,
    machine::kernel_driver,
    memory::{Address, Memory, Pages},
    reference::{ByHand, DriverCopy},
};

/// The process's driver, and how many seconds its first use took.
///
/// # Errors
/// Why there is none.
pub fn driver() -> Result<(Driver, f64), DriverError> {
    static LOADED: OnceLock<(Result<Driver, DriverError>, f64)> = OnceLock::new();
    let (driver, seconds) = LOADED.get_or_init(|| {
        let begun = Instant::now();
        let driver = Driver::get();
        (driver, begun.elapsed().as_secs_f64())
    });
    driver.clone().map(|driver| (driver, *seconds))
}

/// Why the machine's own driver cannot be used; `None` where it can. Asking binds this process to that driver.
#[must_use]
pub fn absence() -> Option<String> {
    match driver().and_then(|(driver, _)| driver.device_count()) {
        Ok(0) => Some(DriverError::NoDevice.to_string()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Puts the software driver in the place of the machine's, with one device.
///
/// # Errors
/// Where a driver was used before.
pub fn simulate(seed: u64) -> Result<u32> {
    transload_cuda_sim::install().context("the software driver comes too late")?;
    Ok(SimDevice::builder().total_memory(4 << 30).seed(seed).build().ordinal())
}

/// The device that is measured, its primary context bound to the thread that made this.
#[derive(Debug)]
pub struct Session {
    device: Device,
    context: Context,
    driver: Driver,
}

impl Session {
    /// Opens the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(ordinal: u32) -> Result<Self> {
        let ((driver, _), device) = (driver()?, Device::new(ordinal)?);
        let session = Self { device, context: Context::primary(device)?, driver };
        session.bind()?;
        Ok(session)
    }

    /// What the results call the machine's devices, its kernel driver and its CUDA version.
    ///
    /// # Errors
    /// The driver's.
    pub fn describe(&self) -> Result<(String, Option<String>, Option<String>)> {
        let name = self.device.name()?;
        if self.driver.is_simulated() {
            return Ok((format!("{name} ({}: a software driver, no GPU)", self.driver.origin()), None, None));
        }
        let count = self.driver.device_count()?;
        let memory = self.device.total_memory()? >> 20;
        let version = Some(self.driver.version().to_string());
        Ok((format!("{count} x {name}, {memory} MiB"), kernel_driver(), version))
    }
}

impl Kit for Session {
    fn device(&self) -> DeviceId {
        DeviceId::Cuda(self.device.ordinal())
    }

    fn is_simulated(&self) -> bool {
        self.driver.is_simulated()
    }

    fn reference(&self) -> &'static str {
        "raw driver"
    }

    fn has_clock(&self) -> bool {
        true
    }

    fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained by this value.
        Ok(check("cuCtxSetCurrent", unsafe { ffi::cuCtxSetCurrent(self.context.as_raw()) })?)
    }

    fn unbind(&self) -> Result<()> {
        // SAFETY: null unbinds the thread.
        Ok(check("cuCtxSetCurrent", unsafe { ffi::cuCtxSetCurrent(ptr::null_mut()) })?)
    }

    fn memory(&self, place: Place, bytes: usize) -> Result<Memory> {
        if place.kind == MemoryKind::Pageable {
            return Ok(Memory::Pageable(Pages::new(bytes)?));
        }
        Ok(Memory::Cuda(RawMemory::new(place.kind, bytes)?))
    }

    unsafe fn by_hand(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn ByHand>> {
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { DriverCopy::new(src, dst, bytes) }?))
    }
}

/// Memory straight from the driver.
#[derive(Debug)]
pub struct RawMemory {
    address: Address,
    bytes: usize,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above; whoever uses the bytes keeps others away.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Of one kind, in the current context.
    ///
    /// # Errors
    /// The driver's; a kind that the driver does not allocate.
    pub fn new(kind: MemoryKind, bytes: usize) -> Result<Self> {
        const DEVICE_MAP: u32 = 2;
        let address = match kind {
            MemoryKind::Device => {
                let mut address = 0;
                // SAFETY: the out pointer is valid and a context is current.
                check("cuMemAlloc", unsafe { ffi::cuMemAlloc_v2(&mut address, bytes) })?;
                Address::Device(address)
            }
            MemoryKind::Pinned | MemoryKind::Mapped => {
                let flags = if kind == MemoryKind::Mapped { DEVICE_MAP } else { 0 };
                let mut address = ptr::null_mut();
                // SAFETY: the out pointer is valid and a context is current.
                check("cuMemHostAlloc", unsafe { ffi::cuMemHostAlloc(&mut address, bytes, flags) })?;
                Address::Host(NonNull::new(address.cast()).context("cuMemHostAlloc gave no address")?)
            }
            other => bail!("the reference allocates no {other} memory"),
        };
        Ok(Self { address, bytes })
    }

    /// Its beginning.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for RawMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed only here, and nothing is in flight. What the driver answers helps nobody.
        unsafe {
            match self.address {
                Address::Host(address) => ffi::cuMemFreeHost(address.as_ptr().cast()),
                Address::Device(address) => ffi::cuMemFree_v2(address),
            };
        }
    }
}

fn settle() -> Result<()> {
    // Fills and small uploads return before the device has done them, and streams of ours do not wait for that.
    // SAFETY: a context is current.
    Ok(check("cuCtxSynchronize", unsafe { ffi::cuCtxSynchronize() })?)
}

/// Fills device memory and waits.
///
/// # Errors
/// The driver's.
pub(crate) fn fill_device(address: u64, byte: u8, bytes: usize) -> Result<()> {
    // SAFETY: the callers own the memory and have nothing in flight on it; the driver checks the range.
    check("cuMemsetD8", unsafe { ffi::cuMemsetD8_v2(address, byte, bytes) })?;
    settle()
}

/// Puts bytes into device memory and waits.
///
/// # Errors
/// The driver's.
pub(crate) fn write_device(address: u64, bytes: &[u8]) -> Result<()> {
    // SAFETY: the source is a slice; for the rest as in `fill_device`.
    check("cuMemcpyHtoD", unsafe { ffi::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) })?;
    settle()
}

/// Reads device memory.
///
/// # Errors
/// The driver's.
pub(crate) fn read_device(address: u64, bytes: &mut [u8]) -> Result<()> {
    settle()?;
    // SAFETY: the destination is a slice; for the rest as in `fill_device`.
    Ok(check("cuMemcpyDtoH", unsafe {
        ffi::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len())
    })?)
}
