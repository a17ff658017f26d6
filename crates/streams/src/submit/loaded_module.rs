//! Loaded modules: of this crate's kernels and of callers'.

use std::{
    ffi::{CStr, c_void},
    os::raw::c_int,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::{
    Context, DriverError, RawStream, check,
    cust::sys::{CUfunction, CUmodule},
    ffi, record_drop_error,
};
use transload_memory::lift;

use crate::LaunchConfig;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 0;
/// Size of the compiler's log, in bytes.
const LOG_BYTES: usize = 4096;

/// A loaded module, unloaded when dropped unless it was [leaked](Self::leak).
#[derive(Debug)]
pub(crate) struct LoadedModule {
    pub(crate) context: Context,
    raw: CUmodule,
    is_leaked: AtomicBool,
}

// SAFETY: a module's handle belongs to a context, not to a thread.
unsafe impl Send for LoadedModule {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for LoadedModule {}

impl LoadedModule {
    /// Loads an image, or compiles PTX. `what` names it in errors. Captures of other threads stay valid.
    ///
    /// # Errors
    /// `Unsupported`, with the compiler's log, if the driver rejects it; the driver's.
    ///
    /// # Safety
    /// * `image` points to a complete image, or to text that ends with NUL. The driver reads it during the call.
    pub(crate) unsafe fn load(context: &Context, image: *const c_void, what: &str) -> Result<Self> {
        /// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
        const ERROR_LOG: [u32; 2] = [5, 6];
        let mut module = ptr::null_mut();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = ERROR_LOG;
        // The last byte stays NUL; the size is passed instead of a pointer.
        let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut::<c_void>(LOG_BYTES - 1)];
        // SAFETY: a context is current, the out pointer is valid, both options have their values, the log has the given
        // size and outlives the call, and the image is the caller's promise.
        let load = || unsafe {
            ffi::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        context.call("cuModuleLoadDataEx", load).map_err(|error| explain(error, what, &log))?;
        Ok(Self { context: context.clone(), raw: module, is_leaked: AtomicBool::new(false) })
    }

    /// Returns an entry's handle, valid while `self` lives. The context must be current.
    pub(crate) fn function(&self, name: &CStr) -> Result<CUfunction, DriverError> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with NUL, and the out pointer is valid.
        let code = unsafe { ffi::cuModuleGetFunction(&mut function, self.raw, name.as_ptr()) };
        check("cuModuleGetFunction", code).map(|()| function)
    }

    /// Keeps the module loaded until its context is destroyed: its code may still run, and unloading would wait for it.
    pub(crate) fn leak(&self) {
        self.is_leaked.store(true, Ordering::Relaxed);
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        if *self.is_leaked.get_mut() {
            return;
        }
        // SAFETY: the module was loaded by `load`, has no other user, and none of its code runs.
        let unload = || unsafe { ffi::cuModuleUnload(self.raw) };
        record_drop_error(self.context.call("cuModuleUnload", unload));
    }
}

/// Returns an attribute of a function.
///
/// # Safety
/// * The function is of a loaded module.
pub(crate) unsafe fn attribute(function: CUfunction, attribute: u32) -> Result<u32, DriverError> {
    let mut value: c_int = 0;
    // SAFETY: the out pointer is valid, and the function is the caller's promise.
    let code = unsafe { ffi::cuFuncGetAttribute(&mut value, attribute, function) };
    check("cuFuncGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
}

/// Enqueues a launch.
///
/// # Safety
/// * The pointers are valid for the kernel's parameters during the call, and all that the kernel does with them is valid
///   until it is complete. Its context is current, and the stream is of that context.
pub(crate) unsafe fn launch(
    function: CUfunction,
    config: LaunchConfig,
    parameters: &mut [*mut c_void],
    stream: RawStream,
) -> Result<(), DriverError> {
    let ((x, y, z), (a, b, c), shared) = (config.grid, config.block, config.shared_bytes);
    let (parameters, none) = (parameters.as_mut_ptr(), ptr::null_mut());
    // SAFETY: the caller's promise.
    let code = unsafe { ffi::cuLaunchKernel(function, x, y, z, a, b, c, shared, stream, parameters, none) };
    check("cuLaunchKernel", code)
}

/// Like [`launch`], for a kernel that may begin as soon as the launch before it on the stream, if that is of a kernel, says so.
///
/// # Safety
/// * As for [`launch`]. Nothing that the kernel does before it waits for that launch has to come after it.
pub(crate) unsafe fn launch_early(
    function: CUfunction,
    config: LaunchConfig,
    parameters: &mut [*mut c_void],
    stream: RawStream,
) -> Result<(), DriverError> {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
    const EARLY: u32 = 6;
    let attribute = ffi::LaunchAttribute { id: EARLY, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };
    let config = ffi::LaunchConfig {
        grid: config.grid.into(),
        block: config.block.into(),
        shared_bytes: config.shared_bytes,
        stream,
        attributes: &raw const attribute,
        attribute_count: 1,
    };
    // SAFETY: the caller's promise; the driver reads the attribute during the call.
    let code = unsafe {
        ffi::cuLaunchKernelEx(&raw const config, function, parameters.as_mut_ptr(), ptr::null_mut())
    };
    check("cuLaunchKernelEx", code)
}

/// Converts the error of a rejected module to `Unsupported`.
///
/// Source: `CUresult` in the CUDA driver API: invalid image (200), no binary for the device (209), invalid PTX (218),
/// unsupported PTX version (222), no compiler for PTX (221), compiling is disabled (223), capability not supported (801).
fn explain(error: DriverError, what: &str, log: &[u8]) -> Error {
    const REJECTED: [u32; 7] = [200, 209, 218, 221, 222, 223, 801];
    let is_missing = matches!(error, DriverError::MissingFunction { .. });
    if !is_missing && !error.code().is_some_and(|code| REJECTED.contains(&code)) {
        return lift(error);
    }
    let log = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default());
    let text = match log.trim() {
        "" => format!("the CUDA driver rejects {what}"),
        log => format!("the CUDA driver rejects {what} ({log})"),
    };
    Error::caused_by(ErrorKind::Unsupported, text, error)
}

#[cfg(test)]
#[path = "../../tests/unit/loaded.rs"]
mod tests;
