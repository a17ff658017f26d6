//! The CUDA driver, the measured device, and memory allocated directly by the driver.

use std::{ptr, sync::OnceLock, time::Instant};

use anyhow::{Context as _, Result};
use transload_core::{DeviceId, MemoryKind, Place};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{Context, Device, Driver, DriverError, check, ffi};

use crate::{
    address::Address,
    case::{Location, Testbed},
    machine::kernel_driver,
    memory::{Memory, Pages},
    raw_memory::{RawMemory, synchronize},
    reference::{DriverCopy, Reference},
};

/// Returns the process's driver and the seconds that loading it took.
///
/// # Errors
/// If there is no driver.
pub fn driver() -> Result<(Driver, f64), DriverError> {
    static LOADED: OnceLock<(Result<Driver, DriverError>, f64)> = OnceLock::new();
    let (driver, seconds) = LOADED.get_or_init(|| {
        let begun = Instant::now();
        let driver = Driver::get();
        (driver, begun.elapsed().as_secs_f64())
    });
    driver.clone().map(|driver| (driver, *seconds))
}

/// Returns why the machine's driver cannot be used; `None` if it can. Binds this process to that driver.
#[must_use]
pub fn absence() -> Option<String> {
    match driver().and_then(|(driver, _)| driver.device_count()) {
        Ok(0) => Some(DriverError::NoDevice.to_string()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Installs the software driver with two devices and returns the ordinal of the first.
///
/// # Errors
/// If a driver was used before.
pub fn simulate(seed: u64) -> Result<u32> {
    transload_cuda_sim::install().context("installing the software driver")?;
    let [first, _second] = [0, 1].map(|n| SimDevice::builder().total_memory(4 << 30).seed(seed ^ n).build());
    Ok(first.ordinal())
}

/// Returns this ordinal and the next one, if that device exists.
///
/// # Errors
/// If a driver call fails.
pub fn pair(ordinal: u32) -> Result<Vec<u32>> {
    let count = driver()?.0.device_count()?;
    Ok((ordinal..count.max(ordinal + 1)).take(2).collect())
}

/// The measured device. Its primary context is bound to the thread that created this value.
#[derive(Debug)]
pub struct Session {
    device: Device,
    context: Context,
    peer: Option<Context>,
    driver: Driver,
}

impl Session {
    /// Opens the device.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn open(ordinal: u32) -> Result<Self> {
        let ((driver, _), device) = (driver()?, Device::new(ordinal)?);
        let peer = match *pair(ordinal)? {
            [_, peer] => Some(Context::primary(Device::new(peer)?)?),
            _ => None,
        };
        let session = Self { device, context: Context::primary(device)?, peer, driver };
        session.bind()?;
        Ok(session)
    }

    /// Returns the context of a device.
    ///
    /// # Errors
    /// If the device takes no part in this run.
    pub fn context(&self, device: DeviceId) -> Result<&Context> {
        let contexts = [Some(&self.context), self.peer.as_ref()];
        let found = contexts.into_iter().flatten().find(|context| ordinal(context) == device);
        found.with_context(|| format!("{device} takes no part in this run"))
    }

    /// Returns the names of the devices and the versions of the kernel driver and CUDA.
    ///
    /// # Errors
    /// If a driver call fails.
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

fn ordinal(context: &Context) -> DeviceId {
    DeviceId::Cuda(context.device().ordinal())
}

impl Testbed for Session {
    fn device(&self) -> DeviceId {
        DeviceId::Cuda(self.device.ordinal())
    }

    fn is_simulated(&self) -> bool {
        self.driver.is_simulated()
    }

    fn reference_name(&self) -> &'static str {
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

    fn peer(&self) -> Option<DeviceId> {
        self.peer.as_ref().map(ordinal)
    }

    fn migrate(&self, memory: Address, bytes: usize, to: Location) -> Result<()> {
        const HOST: i32 = -1;
        /// Returned by a device without concurrent managed access.
        const INVALID_DEVICE: u32 = 101;
        let address = match memory {
            Address::Host(address) => address.addr().get() as u64,
            Address::Device(address) => address,
        };
        let to = if to == Location::Host { HOST } else { self.device.as_raw() };
        // SAFETY: the driver checks that the range is managed memory; null is the context's default stream.
        match unsafe { ffi::cuMemPrefetchAsync(address, bytes, to, ptr::null_mut()) } {
            INVALID_DEVICE => Ok(()),
            code => {
                check("cuMemPrefetchAsync", code)?;
                synchronize()
            }
        }
    }

    fn memory(&self, place: Place, bytes: usize) -> Result<Memory> {
        if place.kind == MemoryKind::Pageable {
            return Ok(Memory::Pageable(Pages::new(bytes)?));
        }
        let device = if place.device.is_cpu() { self.device() } else { place.device };
        let _bound = self.context(device)?.enter()?;
        Ok(Memory::Cuda(RawMemory::new(place.kind, bytes)?))
    }

    unsafe fn reference(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn Reference>> {
        // SAFETY: guaranteed by the caller.
        Ok(Box::new(unsafe { DriverCopy::new(src, dst, bytes) }?))
    }
}
