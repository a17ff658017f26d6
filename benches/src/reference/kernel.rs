//! A kernel loaded and launched by hand.

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

/// A module with one entry of interest.
#[derive(Debug)]
pub struct RawKernel {
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: module and function belong to a context, not to a thread.
unsafe impl Send for RawKernel {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for RawKernel {}

impl RawKernel {
    /// Loads a text into the current context.
    ///
    /// # Errors
    /// The driver's; a text with a NUL in it.
    pub fn load(text: &str, entry: &CStr) -> Result<Self> {
        let text = CString::new(text)?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text ends with NUL, the out pointer is valid and a context is current.
        check("cuModuleLoadData", unsafe { ffi::cuModuleLoadData(&mut module, text.as_ptr().cast()) })?;
        // SAFETY: the name ends with NUL and the out pointer is valid.
        check("cuModuleGetFunction", unsafe {
            ffi::cuModuleGetFunction(&mut function, module, entry.as_ptr())
        })?;
        Ok(Self { module, function })
    }

    /// Launches so many blocks of so many threads.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * The stream is one of the module's context.
    /// * The parameters are addresses of values of the types that the kernel takes, and what the kernel does with them is all
    ///   right until it is over.
    #[inline]
    pub unsafe fn launch(
        &self,
        stream: CUstream,
        (blocks, threads): (u32, u32),
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let (own, none) = (parameters.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the caller's promise; the driver reads the parameters during the call.
        let code =
            unsafe { ffi::cuLaunchKernel(self.function, blocks, 1, 1, threads, 1, 1, 0, stream, own, none) };
        Ok(check("cuLaunchKernel", code)?)
    }
}

impl Drop for RawKernel {
    fn drop(&mut self) {
        // SAFETY: the module is owned, and streams that ran it have been waited for. Errors cannot be handled in a drop.
        unsafe { ffi::cuModuleUnload(self.module) };
    }
}
