//! A copy by one asynchronous driver call on a non-blocking stream, then `cuStreamSynchronize`.

use std::{os::raw::c_void, ptr};

use anyhow::{Context as _, Result, bail};
use transload_cuda_sys::{check, cust::sys::CUevent, cust::sys::CUstream, ffi};

use super::Reference;
use crate::address::Address;

/// A copy between two addresses, the calling thread's context being that of the device.
#[derive(Debug)]
pub struct DriverCopy {
    stream: CUstream,
    before: CUevent,
    behind: CUevent,
    call: Call,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Up(*const c_void, u64),
    Down(u64, *mut c_void),
    Within(u64, u64),
}

// SAFETY: streams and events may be used from any thread; the constructor's caller promises the memory.
unsafe impl Send for DriverCopy {}

impl DriverCopy {
    /// With a stream and two events of its own.
    ///
    /// # Errors
    /// The driver's; two addresses of the host.
    ///
    /// # Safety
    /// * `bytes` bytes must be readable at `src` and writable at `dst` while the value lives, nobody else may use them
    ///   while a copy is in flight, and none may be in flight when they go.
    pub unsafe fn new(src: Address, dst: Address, bytes: usize) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let call = match (src, dst) {
            (Address::Host(src), Address::Device(dst)) => Call::Up(src.as_ptr().cast(), dst),
            (Address::Device(src), Address::Host(dst)) => Call::Down(src, dst.as_ptr().cast()),
            (Address::Device(src), Address::Device(dst)) => Call::Within(src, dst),
            (Address::Host(_), Address::Host(_)) => bail!("no device takes part in this copy"),
        };
        let null = ptr::null_mut();
        let mut copy = Self { stream: null, before: ptr::null_mut(), behind: ptr::null_mut(), call, bytes };
        // SAFETY: the out pointers are valid; the caller has a context current. 0 makes events with timing.
        unsafe {
            check("cuStreamCreate", ffi::cuStreamCreate(&mut copy.stream, NON_BLOCKING))?;
            check("cuEventCreate", ffi::cuEventCreate(&mut copy.before, 0))?;
            check("cuEventCreate", ffi::cuEventCreate(&mut copy.behind, 0))?;
        }
        Ok(copy)
    }
}

impl Reference for DriverCopy {
    #[inline]
    fn submit(&mut self) -> Result<()> {
        // SAFETY: the memory is promised to `new`; the stream is owned.
        let code = unsafe {
            match self.call {
                Call::Up(src, dst) => ffi::cuMemcpyHtoDAsync_v2(dst, src, self.bytes, self.stream),
                Call::Down(src, dst) => ffi::cuMemcpyDtoHAsync_v2(dst, src, self.bytes, self.stream),
                Call::Within(src, dst) => ffi::cuMemcpyDtoDAsync_v2(dst, src, self.bytes, self.stream),
            }
        };
        check("cuMemcpyAsync", code).context("the reference's copy")
    }

    #[inline]
    fn finish(&mut self) -> Result<()> {
        // SAFETY: the stream is owned.
        check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(self.stream) })
            .context("the reference's copy")
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        // SAFETY: stream and event are owned.
        check("cuEventRecord", unsafe { ffi::cuEventRecord(self.before, self.stream) })?;
        self.submit()?;
        // SAFETY: as above.
        check("cuEventRecord", unsafe { ffi::cuEventRecord(self.behind, self.stream) })?;
        self.finish()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events were recorded and are done; the out pointer is valid.
        check("cuEventElapsedTime", unsafe {
            ffi::cuEventElapsedTime(&mut milliseconds, self.before, self.behind)
        })?;
        Ok(Some(f64::from(milliseconds) / 1e3))
    }
}

impl Drop for DriverCopy {
    fn drop(&mut self) {
        // SAFETY: the handles are owned and go here; null ones were never made. Errors cannot be handled in a drop.
        unsafe {
            if !self.stream.is_null() {
                ffi::cuStreamSynchronize(self.stream);
                ffi::cuStreamDestroy_v2(self.stream);
            }
            for event in [self.before, self.behind] {
                if !event.is_null() {
                    ffi::cuEventDestroy_v2(event);
                }
            }
        }
    }
}
