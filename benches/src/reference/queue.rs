//! Streams and events of the driver, used by hand.

use std::{os::raw::c_void, ptr};

use anyhow::Result;
use transload_core::Pitched;
use transload_cuda_sys::{
    check,
    cust::sys::{CUDA_MEMCPY2D, CUevent, CUmemorytype_enum, CUstream},
    ffi,
};

/// One side of a copy of rows: its kind, and its address on the host or the device.
type Side = (CUmemorytype_enum, *mut c_void, u64);

/// A stream of a context, which the caller's thread has bound.
#[derive(Debug)]
pub struct RawQueue {
    pub(super) raw: CUstream,
}

// SAFETY: a stream may be used from any thread that has its context bound.
unsafe impl Send for RawQueue {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for RawQueue {}

impl RawQueue {
    /// With the driver's number of a priority; smaller is more urgent.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn new(priority: i32) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        let code = unsafe { ffi::cuStreamCreateWithPriority(&mut raw, NON_BLOCKING, priority) };
        check("cuStreamCreateWithPriority", code)?;
        Ok(Self { raw })
    }

    /// The driver's handle.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Enqueues a copy to the device.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * Both ranges have `bytes` bytes, stay alive, and are not used otherwise until the copy completes.
    #[inline]
    pub unsafe fn copy_up(&self, dst: u64, src: *const c_void, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        Ok(check("cuMemcpyHtoDAsync", unsafe { ffi::cuMemcpyHtoDAsync_v2(dst, src, bytes, self.raw) })?)
    }

    /// Like [`copy_up`](Self::copy_up), to the host.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * As there.
    #[inline]
    pub unsafe fn copy_down(&self, dst: *mut c_void, src: u64, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        Ok(check("cuMemcpyDtoHAsync", unsafe { ffi::cuMemcpyDtoHAsync_v2(dst, src, bytes, self.raw) })?)
    }

    /// Enqueues many copies by the batch call of CUDA 13.0.
    ///
    /// # Errors
    /// If the driver call fails.
    ///
    /// # Safety
    /// * The three lists have equal lengths. All ranges stay alive, and are not used otherwise until the copies complete.
    pub unsafe fn copy_batch(&self, to: &[u64], from: &[u64], sizes: &[usize]) -> Result<()> {
        /// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
        const STREAM_ORDER: u32 = 1;
        let nowhere = ffi::MemLocation { kind: 0, id: 0 };
        let mut attributes = ffi::MemcpyAttributes {
            src_access_order: STREAM_ORDER,
            src_location: nowhere,
            dst_location: nowhere,
            flags: 0,
        };
        let mut first = 0;
        // SAFETY: the driver reads the arrays during the call; the rest is the caller's promise.
        let code = unsafe {
            ffi::cuMemcpyBatchAsync_v2(
                to.as_ptr().cast_mut(),
                from.as_ptr().cast_mut(),
                sizes.as_ptr().cast_mut(),
                sizes.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                self.raw,
            )
        };
        Ok(check("cuMemcpyBatchAsync_v2", code)?)
    }

    /// Enqueues a copy of rows to the device.
    ///
    /// # Errors
    /// If the driver call fails.
    ///
    /// # Safety
    /// * Both sides have the rows, stay alive, and are not used otherwise until the copy completes.
    pub unsafe fn copy_rows_up(&self, dst: u64, src: *const c_void, rows: Pitched) -> Result<()> {
        let (host, device) = (CUmemorytype_enum::CU_MEMORYTYPE_HOST, CUmemorytype_enum::CU_MEMORYTYPE_DEVICE);
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_rows((host, src.cast_mut(), 0), (device, ptr::null_mut(), dst), rows) }
    }

    /// Like [`copy_rows_up`](Self::copy_rows_up), to the host.
    ///
    /// # Errors
    /// If the driver call fails.
    ///
    /// # Safety
    /// * As there.
    pub unsafe fn copy_rows_down(&self, dst: *mut c_void, src: u64, rows: Pitched) -> Result<()> {
        let (host, device) = (CUmemorytype_enum::CU_MEMORYTYPE_HOST, CUmemorytype_enum::CU_MEMORYTYPE_DEVICE);
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_rows((device, ptr::null_mut(), src), (host, dst, 0), rows) }
    }

    /// # Safety
    /// * As for [`copy_rows_up`](Self::copy_rows_up).
    unsafe fn copy_rows(&self, src: Side, dst: Side, rows: Pitched) -> Result<()> {
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: src.0,
            srcHost: src.1,
            srcDevice: src.2,
            srcArray: ptr::null_mut(),
            srcPitch: rows.src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: dst.0,
            dstHost: dst.1,
            dstDevice: dst.2,
            dstArray: ptr::null_mut(),
            dstPitch: rows.dst_pitch,
            WidthInBytes: rows.width,
            Height: rows.height,
        };
        // SAFETY: guaranteed by the caller; the driver reads the structure during the call.
        Ok(check("cuMemcpy2DAsync", unsafe { ffi::cuMemcpy2DAsync_v2(&copy, self.raw) })?)
    }

    /// Enqueues a fill with a byte.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * The range has `bytes` bytes, stays alive, and nobody else uses it until the fill is done.
    #[inline]
    pub unsafe fn fill(&self, dst: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        Ok(check("cuMemsetD8Async", unsafe { ffi::cuMemsetD8Async(dst, byte, bytes, self.raw) })?)
    }

    /// Enqueues a migration of unified memory to a device, or to [`HOST`](super::HOST).
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * The range has `bytes` bytes and stays alive until the migration is done.
    #[inline]
    pub unsafe fn prefetch(&self, address: u64, bytes: usize, to: i32) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        Ok(check("cuMemPrefetchAsync", unsafe { ffi::cuMemPrefetchAsync(address, bytes, to, self.raw) })?)
    }

    /// Blocks until all is done.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the stream is owned.
        Ok(check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(self.raw) })?)
    }

    /// Whether all is done.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn is_idle(&self) -> Result<bool> {
        is_done("cuStreamQuery", || {
            // SAFETY: the stream is owned.
            unsafe { ffi::cuStreamQuery(self.raw) }
        })
    }

    /// Records an event.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn record(&self, event: &RawEvent) -> Result<()> {
        // SAFETY: both are owned.
        Ok(check("cuEventRecord", unsafe { ffi::cuEventRecord(event.raw, self.raw) })?)
    }

    /// Makes later work wait for an event.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn wait(&self, event: &RawEvent) -> Result<()> {
        // SAFETY: both are owned.
        Ok(check("cuStreamWaitEvent", unsafe { ffi::cuStreamWaitEvent(self.raw, event.raw, 0) })?)
    }
}

fn is_done(what: &'static str, ask: impl FnOnce() -> u32) -> Result<bool> {
    const NOT_READY: u32 = 600;
    match ask() {
        NOT_READY => Ok(false),
        code => Ok(check(what, code).map(|()| true)?),
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        // SAFETY: the handle is owned and goes here. Errors cannot be handled in a drop.
        unsafe {
            ffi::cuStreamSynchronize(self.raw);
            ffi::cuStreamDestroy_v2(self.raw);
        }
    }
}

/// An event.
#[derive(Debug)]
pub struct RawEvent {
    raw: CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for RawEvent {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// One that keeps a timestamp.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn timed() -> Result<Self> {
        Self::with(0)
    }

    /// One that only orders.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn ordering() -> Result<Self> {
        const DISABLE_TIMING: u32 = 2;
        Self::with(DISABLE_TIMING)
    }

    fn with(flags: u32) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        check("cuEventCreate", unsafe { ffi::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { raw })
    }

    /// Blocks until what was recorded is done.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the event is owned.
        Ok(check("cuEventSynchronize", unsafe { ffi::cuEventSynchronize(self.raw) })?)
    }

    /// Seconds of device time since an earlier event; both are timed and done.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn since(&self, start: &Self) -> Result<f64> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events are owned and the out pointer is valid.
        let code = unsafe { ffi::cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) };
        check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: the handle is owned and goes here. Errors cannot be handled in a drop.
        unsafe { ffi::cuEventDestroy_v2(self.raw) };
    }
}
