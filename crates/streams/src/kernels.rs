//! Kernels of this crate's own: PTX that the driver compiles when it is loaded, once per context.

use std::{
    ffi::CStr,
    fmt,
    os::raw::c_void,
    ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::{
    Context, DriverError, RawStream, RelaxedCapture, attribute, check,
    cust::sys::{CUfunction, CUmodule},
    ffi, record_drop_error,
};
use transload_memory::lift;

/// What the driver is given: text that ends with NUL. `kernels/copy.cu` tells how it was made.
const COPY: &str = concat!(include_str!("kernels/copy.ptx"), "\0");
const ENTRY: &CStr = c"transload_copy";

/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks per multiprocessor at most. Measured on an H200 (PCIe 5 x16): two keep the link (51 and 52 GB/s) and the device's
/// own memory (2.0 TB/s) busy and leave room for other kernels; eight are no faster, and with sides that cannot be aligned at
/// once a third slower towards the host.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// The kernels of one context. Whoever used them holds them until that work is over, or says that it may not be.
pub(crate) struct Kernels {
    context: Context,
    module: CUmodule,
    copy: CUfunction,
    most_blocks: u32,
    /// Work may still run when the last user is gone.
    left_running: AtomicBool,
}

// SAFETY: module and function handles belong to a context, not to a thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Kernels {}

/// What is loaded. A context whose kernels are alive is alive too, so that its handle is nobody else's.
static LOADED: Mutex<Vec<Weak<Kernels>>> = Mutex::new(Vec::new());

impl Kernels {
    /// The context's kernels: loaded already, or loaded now, which takes the driver some milliseconds where its cache
    /// does not have them. A graph that another thread captures meanwhile stays valid.
    ///
    /// # Errors
    /// `Unsupported` where the driver does not take the module; the driver's.
    pub(crate) fn of(context: &Context) -> Result<Arc<Self>> {
        if let Some(found) = find(context) {
            return Ok(found);
        }
        let made = Arc::new(Self::load(context).map_err(explain)?);
        // Where two threads came first, each uses its own: they do the same.
        let mut loaded = LOADED.lock();
        loaded.retain(|kernels| kernels.strong_count() > 0);
        loaded.push(Arc::downgrade(&made));
        Ok(made)
    }

    fn load(context: &Context) -> Result<Self, DriverError> {
        let multiprocessors = context.device().attribute(attribute::MULTIPROCESSOR_COUNT)?;
        let multiprocessors = u32::try_from(multiprocessors).unwrap_or(1).max(1);
        let _bound = context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: a context is current, the out pointer is valid, and the image is text that ends with NUL.
        check("cuModuleLoadData", unsafe { ffi::cuModuleLoadData(&mut module, COPY.as_ptr().cast()) })?;
        let mut kernels = Self {
            context: context.clone(),
            module,
            copy: ptr::null_mut(),
            most_blocks: multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR),
            left_running: AtomicBool::new(false),
        };
        // SAFETY: the module was just loaded, the name ends with NUL, and the out pointer is valid.
        check("cuModuleGetFunction", unsafe {
            ffi::cuModuleGetFunction(&mut kernels.copy, module, ENTRY.as_ptr())
        })?;
        Ok(kernels)
    }

    /// Enqueues a copy of `bytes` bytes by the device's threads.
    ///
    /// # Safety
    /// * The stream is one of the kernels' context, which is current.
    /// * Both ranges are valid on its device for `bytes` bytes, do not overlap, stay alive, and are not used in conflict
    ///   until the stream has done the copy.
    pub(crate) unsafe fn copy(
        &self,
        src: u64,
        dst: u64,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let bytes = bytes as u64;
        let blocks = blocks(src, dst, bytes, self.most_blocks);
        let mut parameters: [*mut c_void; 3] =
            [&raw const dst, &raw const src, &raw const bytes].map(|parameter| parameter.cast_mut().cast());
        // SAFETY: the kernel takes these three parameters of 8 bytes, which the driver reads during the call; the rest is
        // the caller's promise.
        check("cuLaunchKernel", unsafe {
            ffi::cuLaunchKernel(
                self.copy,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    /// A user is going whose work may still run: the module then stays until its context goes, since to unload it the
    /// driver would have to wait.
    pub(crate) fn leave_running(&self) {
        self.left_running.store(true, Ordering::Relaxed);
    }
}

/// Enough blocks for one unit a thread (the kernel copies by units of 16 bytes where both sides can be aligned at once, else
/// by smaller ones), at most `most`.
fn blocks(src: u64, dst: u64, bytes: u64, most: u32) -> u32 {
    let shift = (src ^ dst).trailing_zeros().min(4);
    let units = bytes >> shift;
    u32::try_from(units.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, most)
}

fn find(context: &Context) -> Option<Arc<Kernels>> {
    LOADED
        .lock()
        .iter()
        .filter_map(Weak::upgrade)
        .find(|kernels| kernels.context.as_raw() == context.as_raw())
}

/// A module that the driver does not take is a capability that is missing, not something that broke.
///
/// Source: `CUresult` in the CUDA driver API: no binary for the device (209), invalid PTX (218), unsupported PTX version
/// (222), no compiler for PTX (221), compiling is disabled (223), compute capability not supported (801).
fn explain(error: DriverError) -> Error {
    const NOT_TAKEN: [u32; 6] = [209, 218, 221, 222, 223, 801];
    let missing = matches!(error, DriverError::MissingFunction { .. });
    if missing || error.code().is_some_and(|code| NOT_TAKEN.contains(&code)) {
        return Error::caused_by(
            ErrorKind::Unsupported,
            "the CUDA driver does not take our copy kernel",
            error,
        );
    }
    lift(error)
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if *self.left_running.get_mut() {
            return;
        }
        record_drop_error(self.context.enter().and_then(|_bound| {
            let _capture = RelaxedCapture::enter()?;
            // SAFETY: the module was loaded by `load`, is used by nobody after this, and nothing that used it runs.
            check("cuModuleUnload", unsafe { ffi::cuModuleUnload(self.module) })
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_text_with_one_entry_and_one_nul() {
        assert_eq!(COPY.find('\0'), Some(COPY.len() - 1));
        assert_eq!(COPY.matches(".entry").count(), 1);
        assert!(COPY.contains(".visible .entry transload_copy("));
        assert!(COPY.contains(".version 6.0\n.target sm_50\n"), "old drivers take an old version only");
    }

    #[test]
    fn a_launch_has_a_thread_for_each_unit_up_to_what_fills_the_device() {
        assert_eq!(blocks(0, 1 << 40, 1, 100), 1);
        assert_eq!(blocks(0, 4096, 4096, 100), 1);
        assert_eq!(blocks(0, 4096, 65_536, 100), 16);
        assert_eq!(blocks(8, 4096, 65_536, 100), 32);
        assert_eq!(blocks(1, 4096, 4096, 100), 16);
        assert_eq!(blocks(3, 3, 1 << 30, 100), 100);
        assert_eq!(blocks(0, 1, u64::MAX, 100), 100);
    }
}
