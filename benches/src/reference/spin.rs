//! A kernel that does nothing for a given time, launched by hand.

use std::{
    ffi::{CStr, CString},
    os::raw::c_void,
    ptr,
};

use anyhow::Result;
use transload_cuda_sys::{
    check,
    cust::sys::{CUfunction, CUmodule, CUstream},
    ffi,
};

/// `transload_spin(nanoseconds, out)`: the same text that the library's examples and tests load.
pub const SPIN: &str = include_str!("../../../crates/streams/examples/kernels/spin.ptx");

/// The kernel that keeps the device busy.
#[derive(Debug)]
pub struct Spin {
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: module and function belong to a context, not to a thread.
unsafe impl Send for Spin {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Spin {}

impl Spin {
    /// Loads it into the current context.
    ///
    /// # Errors
    /// The driver's.
    pub fn load() -> Result<Self> {
        const NAME: &CStr = c"transload_spin";
        let text = CString::new(SPIN)?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text ends with NUL, the out pointer is valid and a context is current.
        check("cuModuleLoadData", unsafe { ffi::cuModuleLoadData(&mut module, text.as_ptr().cast()) })?;
        // SAFETY: the name ends with NUL and the out pointer is valid.
        check("cuModuleGetFunction", unsafe {
            ffi::cuModuleGetFunction(&mut function, module, NAME.as_ptr())
        })?;
        Ok(Self { module, function })
    }

    /// Launches so many blocks of so many threads, each busy for so many nanoseconds.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// * The stream is one of the module's context.
    #[inline]
    pub unsafe fn launch(&self, stream: CUstream, blocks: u32, threads: u32, nanoseconds: u64) -> Result<()> {
        let out = 0_u64;
        let mut parameters: [*mut c_void; 2] =
            [(&raw const nanoseconds).cast_mut().cast(), (&raw const out).cast_mut().cast()];
        // SAFETY: the kernel takes these two parameters of 8 bytes, which the driver reads during the call; with an
        // address of 0 it stores nothing.
        Ok(check("cuLaunchKernel", unsafe {
            ffi::cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })?)
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        // SAFETY: the module is owned, and streams that ran it have been waited for. What the driver answers helps nobody.
        unsafe { ffi::cuModuleUnload(self.module) };
    }
}
