//! Memory allocated directly by the driver, and how its bytes are set and read.

use std::{ptr, ptr::NonNull};

use anyhow::{Context as _, Result, bail};
use transload_core::MemoryKind;
use transload_cuda_sys::{Context, Device, check, ffi};

use crate::address::Address;

/// Memory allocated by the driver.
#[derive(Debug)]
pub struct RawMemory {
    kind: MemoryKind,
    address: Address,
    bytes: usize,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above; users of the bytes synchronise access.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Allocates in the current context.
    ///
    /// # Errors
    /// If the driver fails or does not allocate this kind.
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
            MemoryKind::Unified => {
                const ATTACH_GLOBAL: u32 = 1;
                let mut address = 0;
                // SAFETY: the out pointer is valid and a context is current.
                let code = unsafe { ffi::cuMemAllocManaged(&mut address, bytes, ATTACH_GLOBAL) };
                check("cuMemAllocManaged", code)?;
                let address = NonNull::new(ptr::with_exposed_provenance_mut(usize::try_from(address)?));
                Address::Host(address.context("cuMemAllocManaged gave no address")?)
            }
            other => bail!("the reference allocates no {other} memory"),
        };
        Ok(Self { kind, address, bytes })
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for RawMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed only here, and nothing is in flight. Errors cannot be handled in a drop.
        unsafe {
            match self.address {
                Address::Host(address) if self.kind == MemoryKind::Unified => {
                    ffi::cuMemFree_v2(address.addr().get() as u64)
                }
                Address::Host(address) => ffi::cuMemFreeHost(address.as_ptr().cast()),
                Address::Device(address) => ffi::cuMemFree_v2(address),
            };
        }
    }
}

/// Runs `work` with the context bound that owns the memory.
fn bound_to_owner<T>(address: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
    const DEVICE_ORDINAL: u32 = 9;
    let mut ordinal = 0_u32;
    // SAFETY: the attribute is an integer of that size and the out pointer is valid.
    let code = unsafe { ffi::cuPointerGetAttribute((&raw mut ordinal).cast(), DEVICE_ORDINAL, address) };
    check("cuPointerGetAttribute", code)?;
    let context = Context::primary(Device::new(ordinal)?)?;
    let _bound = context.enter()?;
    work()
}

pub(crate) fn synchronize() -> Result<()> {
    // Fills and small uploads return early, and non-blocking streams do not wait for them.
    // SAFETY: a context is current.
    Ok(check("cuCtxSynchronize", unsafe { ffi::cuCtxSynchronize() })?)
}

/// Fills device memory and waits.
///
/// # Errors
/// If a driver call fails.
pub(crate) fn fill_device(address: u64, byte: u8, bytes: usize) -> Result<()> {
    bound_to_owner(address, || {
        // SAFETY: the callers own the memory, which is not in use; the driver checks the range.
        check("cuMemsetD8", unsafe { ffi::cuMemsetD8_v2(address, byte, bytes) })?;
        synchronize()
    })
}

/// Writes device memory and waits.
///
/// # Errors
/// If a driver call fails.
pub(crate) fn write_device(address: u64, bytes: &[u8]) -> Result<()> {
    bound_to_owner(address, || {
        // SAFETY: the source is a slice; for the rest as in `fill_device`.
        check("cuMemcpyHtoD", unsafe { ffi::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) })?;
        synchronize()
    })
}

/// Reads device memory.
///
/// # Errors
/// If a driver call fails.
pub(crate) fn read_device(address: u64, bytes: &mut [u8]) -> Result<()> {
    bound_to_owner(address, || {
        synchronize()?;
        // SAFETY: the destination is a slice; for the rest as in `fill_device`.
        let code = unsafe { ffi::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()) };
        Ok(check("cuMemcpyDtoH", code)?)
    })
}
