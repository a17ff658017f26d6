//! A memory pool of the driver, used by hand.

use std::ptr;

use anyhow::Result;
use transload_cuda_sys::{check, cust::sys::CUmemoryPool, ffi};

use super::RawQueue;

/// A memory pool of the driver with an unlimited release threshold.
#[derive(Debug)]
pub struct RawPool {
    raw: CUmemoryPool,
}

// SAFETY: a pool may be used from any thread.
unsafe impl Send for RawPool {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for RawPool {}

impl RawPool {
    /// On the device with this ordinal.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn new(ordinal: i32) -> Result<Self> {
        use transload_cuda_sys::cust::sys::{
            CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps,
        };
        const RELEASE_THRESHOLD: u32 = 4;
        // SAFETY: all fields are integers, enums with a value of 0, or pointers; 0 means their defaults.
        let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location =
            CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal };
        let mut raw = ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        check("cuMemPoolCreate", unsafe { ffi::cuMemPoolCreate(&mut raw, &properties) })?;
        let pool = Self { raw };
        let mut keep = u64::MAX;
        // SAFETY: the attribute is a number of 64 bits.
        check("cuMemPoolSetAttribute", unsafe {
            ffi::cuMemPoolSetAttribute(raw, RELEASE_THRESHOLD, (&raw mut keep).cast())
        })?;
        Ok(pool)
    }

    /// Allocates in the order of a stream.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn allocate(&self, bytes: usize, stream: &RawQueue) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the out pointer is valid; pool and stream are owned.
        let code = unsafe { ffi::cuMemAllocFromPoolAsync(&mut address, bytes, self.raw, stream.raw) };
        check("cuMemAllocFromPoolAsync", code)?;
        Ok(address)
    }

    /// Frees in the order of a stream.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * The address is of [`allocate`](Self::allocate) and is freed once; nobody uses it after the stream's work so far.
    #[inline]
    pub unsafe fn free(&self, address: u64, stream: &RawQueue) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        Ok(check("cuMemFreeAsync", unsafe { ffi::cuMemFreeAsync(address, stream.raw) })?)
    }
}

impl Drop for RawPool {
    fn drop(&mut self) {
        // SAFETY: the handle is owned and goes here. Errors cannot be handled in a drop.
        unsafe { ffi::cuMemPoolDestroy(self.raw) };
    }
}
