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

/// What the driver is given: text that ends with NUL. `kernels/copy.cu` and `fill.cu` tell how it was made.
const MODULE: &str = concat!(include_str!("kernels/copy.ptx"), include_str!("kernels/fill.ptx"), "\0");
const COPY: &CStr = c"transload_copy";
const FILL: &CStr = c"transload_fill";

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS_PER_BLOCK: u32 = 0;

/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks per multiprocessor at most. Measured on an H200 (PCIe 5 x16): two keep the link (51 and 52 GB/s) and the device's
/// own memory (2.0 TB/s) busy and leave room for other kernels; eight are no faster, and with sides that cannot be aligned at
/// once a third slower towards the host.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;
/// Likewise of a fill, which only stores: as many as a multiprocessor has room for (2,048 threads).
const FILL_BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
/// Bytes that a block of a fill stores at a time: four units of 16 a thread.
const FILL_TILE: u64 = 64 * THREADS as u64;

/// The kernels of one context. Whoever used them holds them until that work is over, or says that it may not be.
pub(crate) struct Kernels {
    context: Context,
    module: CUmodule,
    copy: CUfunction,
    fill: CUfunction,
    multiprocessors: u32,
    /// Work may still run when the last user is gone.
    left_running: AtomicBool,
}

// SAFETY: module and function handles belong to a context, not to a thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Kernels {}

/// What is loaded, for each context one at a time: who keeps a context's kernels keeps those that everyone launches. A context
/// whose kernels are alive is alive too, so that its handle is nobody else's.
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// Of which context. Its handle lies here so that none is upgraded, and perhaps dropped, under the lock but the one wanted.
struct Loaded {
    context: usize,
    kernels: Weak<Kernels>,
}

impl Kernels {
    /// The context's kernels: loaded already, or loaded now, which takes the driver some milliseconds where its cache
    /// does not have them. A graph that another thread captures meanwhile stays valid.
    ///
    /// # Errors
    /// `Unsupported` where the driver does not take the module; the driver's.
    pub(crate) fn of(context: &Context) -> Result<Arc<Self>> {
        if let Some(found) = find(&LOADED.lock(), context) {
            return Ok(found);
        }
        let made = Arc::new(Self::load(context).map_err(explain)?);
        let mut loaded = LOADED.lock();
        // Where two threads came first, the loser's go, behind the lock: the driver unloads them.
        if let Some(found) = find(&loaded, context) {
            drop(loaded);
            return Ok(found);
        }
        loaded.retain(|loaded| loaded.kernels.strong_count() > 0);
        loaded.push(Loaded { context: context.as_raw().addr(), kernels: Arc::downgrade(&made) });
        Ok(made)
    }

    fn load(context: &Context) -> Result<Self, DriverError> {
        let multiprocessors = context.device().attribute(attribute::MULTIPROCESSOR_COUNT)?;
        let multiprocessors = u32::try_from(multiprocessors).unwrap_or(1).max(1);
        let _bound = context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: a context is current, the out pointer is valid, and the image is text that ends with NUL.
        check("cuModuleLoadData", unsafe { ffi::cuModuleLoadData(&mut module, MODULE.as_ptr().cast()) })?;
        let mut kernels = Self {
            context: context.clone(),
            module,
            copy: ptr::null_mut(),
            fill: ptr::null_mut(),
            multiprocessors,
            left_running: AtomicBool::new(false),
        };
        for (function, name) in [(&mut kernels.copy, COPY), (&mut kernels.fill, FILL)] {
            // SAFETY: the module was just loaded, the name ends with NUL, and the out pointer is valid.
            check("cuModuleGetFunction", unsafe {
                ffi::cuModuleGetFunction(function, module, name.as_ptr())
            })?;
            // The driver loads a kernel when it is first used (CUDA Programming Guide, "Lazy Loading"), and waits for the whole
            // device to do so: a query makes it load now, so that no launch waits for the work that it is to overtake.
            let mut _threads = 0;
            // SAFETY: the function was just found, and the out pointer is valid.
            check("cuFuncGetAttribute", unsafe {
                ffi::cuFuncGetAttribute(&mut _threads, MAX_THREADS_PER_BLOCK, *function)
            })?;
        }
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
        let most = self.multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR);
        let mut parameters: [*mut c_void; 3] =
            [&raw const dst, &raw const src, &raw const bytes].map(|parameter| parameter.cast_mut().cast());
        // SAFETY: the kernel takes these three parameters of 8 bytes; the rest is the caller's promise.
        unsafe { launch(self.copy, blocks(src, dst, bytes, most), &mut parameters, stream) }
    }

    /// Enqueues a fill of `bytes` bytes with 16 over and over, as they lie from `dst` on.
    ///
    /// # Safety
    /// * The stream is one of the kernels' context, which is current.
    /// * The range is valid on its device for `bytes` bytes, stays alive, and is not used in conflict until the stream has
    ///   done the fill.
    pub(crate) unsafe fn fill(
        &self,
        dst: u64,
        repeated: [u8; 16],
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let bytes = bytes as u64;
        let most = self.multiprocessors.saturating_mul(FILL_BLOCKS_PER_MULTIPROCESSOR);
        let blocks = u32::try_from(bytes.div_ceil(FILL_TILE)).unwrap_or(u32::MAX).clamp(1, most);
        // Devices are little-endian, and so is every host of theirs.
        let both = u128::from_le_bytes(repeated);
        let (low, high) = (both as u64, (both >> 64) as u64);
        let mut parameters: [*mut c_void; 4] =
            [&raw const dst, &raw const bytes, &raw const low, &raw const high]
                .map(|parameter| parameter.cast_mut().cast());
        // SAFETY: the kernel takes these four parameters of 8 bytes; the rest is the caller's promise.
        unsafe { launch(self.fill, blocks, &mut parameters, stream) }
    }

    /// A user is going whose work may still run: the module then stays until its context goes, since to unload it the
    /// driver would have to wait.
    pub(crate) fn leave_running(&self) {
        self.left_running.store(true, Ordering::Relaxed);
    }
}

/// # Safety
/// * The kernel takes parameters as those behind the pointers, which the driver reads during the call, and may do with them
///   what it does until the stream has done it. Its context is current, and the stream is one of it.
unsafe fn launch(
    kernel: CUfunction,
    blocks: u32,
    parameters: &mut [*mut c_void],
    stream: RawStream,
) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    check("cuLaunchKernel", unsafe {
        ffi::cuLaunchKernel(
            kernel,
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

/// Enough blocks for one unit a thread (the kernel copies by units of 16 bytes where both sides can be aligned at once, else
/// by smaller ones), at most `most`.
fn blocks(src: u64, dst: u64, bytes: u64, most: u32) -> u32 {
    let shift = (src ^ dst).trailing_zeros().min(4);
    let units = bytes >> shift;
    u32::try_from(units.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, most)
}

fn find(loaded: &[Loaded], context: &Context) -> Option<Arc<Kernels>> {
    let of_context = loaded.iter().filter(|loaded| loaded.context == context.as_raw().addr());
    of_context.filter_map(|loaded| loaded.kernels.upgrade()).next()
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
            "the CUDA driver does not take our copy kernel, nor that for fills beside it",
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
    fn the_module_is_text_with_two_entries_one_header_and_one_nul() {
        assert_eq!(MODULE.find('\0'), Some(MODULE.len() - 1));
        assert_eq!(MODULE.matches(".entry").count(), 2);
        for entry in [COPY, FILL] {
            let entry = entry.to_str().unwrap();
            assert!(MODULE.contains(&format!(".visible .entry {entry}(")), "{entry}");
        }
        assert!(MODULE.contains(".version 6.0\n.target sm_50\n"), "old drivers take an old version only");
        assert_eq!(MODULE.matches(".version").count(), 1, "a module has one");
        assert!(MODULE.is_ascii(), "the driver's compiler takes no other letters");
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
