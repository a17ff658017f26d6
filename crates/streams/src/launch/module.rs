//! Kernels' code as the driver loaded it: compiled from PTX, found by name, unloaded only when nothing of it runs.

use std::{
    ffi::{CString, c_void},
    fmt, ptr,
    sync::Arc,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{DeviceId, Error, ErrorKind, Fence, Result};
use transload_cuda_sys::{
    Context, DriverError, RelaxedCapture, check,
    cust::sys::{CUfunction, CUmodule},
    ffi, record_drop_error,
};
use transload_memory::{CudaDevice, lift};

use super::CudaKernel;
use crate::thread_number::thread_number;

/// Room for what the driver's compiler says of a text that it does not take.
const LOG_BYTES: usize = 4096;

/// Code loaded for one device. Clones and the kernels found in it share it. Usable from any thread.
///
/// It is unloaded when the last of them is gone, if none of its launches can be running then; else it goes with the device's
/// context. Until a thread's next launch of it, it keeps the streams that this thread launched it on last.
#[derive(Clone, Debug)]
pub struct CudaModule {
    loaded: Arc<Loaded>,
}

impl CudaModule {
    /// Has the driver compile PTX for the device: some milliseconds where its cache does not have the result. A graph that
    /// another thread captures meanwhile stays valid.
    ///
    /// # Errors
    /// `InvalidArgument` for a text with a NUL in it; `Unsupported`, with what the compiler says, for a text that the driver
    /// does not take; the driver's.
    pub fn from_ptx(device: &CudaDevice, ptx: &str) -> Result<Self> {
        let text = CString::new(ptx).map_err(|error| {
            let at = error.nul_position();
            Error::new(ErrorKind::InvalidArgument, format!("byte {at} of the PTX is NUL; a text has none"))
        })?;
        // SAFETY: the image is text that ends with NUL.
        unsafe { Self::load(device, text.as_ptr().cast(), entries(ptx)) }
    }

    /// Loads a binary image (a cubin or a fat binary), or text that ends with NUL.
    ///
    /// # Errors
    /// `InvalidArgument` for no bytes; `Unsupported` for an image that has nothing for this device; the driver's.
    ///
    /// # Safety
    /// * `image` is complete: the driver finds its length in the image itself, or by the NUL.
    pub unsafe fn from_image(device: &CudaDevice, image: &[u8]) -> Result<Self> {
        if image.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "an image has at least 1 byte"));
        }
        // SAFETY: the caller's promise.
        unsafe { Self::load(device, image.as_ptr().cast(), Vec::new()) }
    }

    /// # Safety
    /// * `image` points to a complete image, which the driver reads during the call.
    unsafe fn load(device: &CudaDevice, image: *const c_void, entries: Vec<String>) -> Result<Self> {
        /// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
        const ERROR_LOG: [u32; 2] = [5, 6];
        let context = device.context()?.clone();
        let mut module = ptr::null_mut();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = ERROR_LOG;
        // The last byte stays NUL whatever the driver writes; the size is passed in the pointer's place.
        let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut::<c_void>(LOG_BYTES - 1)];
        let loaded = {
            let _bound = context.enter().map_err(lift)?;
            let _capture = RelaxedCapture::enter().map_err(lift)?;
            // SAFETY: a context is current, the out pointer is valid, both options have their values, the log has the room
            // that is said and outlives the call, and the image is the caller's promise.
            check("cuModuleLoadDataEx", unsafe {
                ffi::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
            })
        };
        loaded.map_err(|error| explain(error, &log))?;
        let loaded = Loaded { context, raw: module, entries, launches: Default::default() };
        Ok(Self { loaded: Arc::new(loaded) })
    }

    /// A kernel by its entry's name, as the PTX spells it (`extern "C"` in the source).
    ///
    /// # Errors
    /// `InvalidArgument` where the module has no such entry; the driver's.
    pub fn kernel(&self, name: &str) -> Result<CudaKernel> {
        CudaKernel::find(&self.loaded, name)
    }

    /// The device that the code is for.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.loaded.device()
    }
}

/// The names of a text's kernels.
fn entries(ptx: &str) -> Vec<String> {
    let is_name = |letter: &char| letter.is_alphanumeric() || matches!(letter, '_' | '$' | '%');
    let name = |text: &str| text.trim_start().chars().take_while(is_name).collect::<String>();
    ptx.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

/// A module that the driver does not take is a capability that is missing, not something that broke.
///
/// Source: `CUresult` in the CUDA driver API: invalid image (200), no binary for the device (209), invalid PTX (218),
/// unsupported PTX version (222), no compiler for PTX (221), compiling is disabled (223), capability not supported (801).
fn explain(error: DriverError, log: &[u8]) -> Error {
    const NOT_TAKEN: [u32; 7] = [200, 209, 218, 221, 222, 223, 801];
    if !error.code().is_some_and(|code| NOT_TAKEN.contains(&code)) {
        return lift(error);
    }
    let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let said = String::from_utf8_lossy(said);
    let text = match said.trim() {
        "" => "the CUDA driver does not take this module".to_owned(),
        said => format!("the CUDA driver does not take this module ({said})"),
    };
    Error::caused_by(ErrorKind::Unsupported, text, error)
}

/// The module itself.
pub(crate) struct Loaded {
    context: Context,
    raw: CUmodule,
    /// The names of its kernels where they are known, for the text of an error.
    pub(crate) entries: Vec<String>,
    launches: [Launches; SHARES],
}

/// How many shares the threads are divided into.
const SHARES: usize = 16;

/// The last launch on each stream that is not known to be over, by one share of the threads.
// On lines of their own, fetched in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Launches(Mutex<SmallVec<[Fence; 4]>>);

// SAFETY: a module's handle belongs to a context, not to a thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Loaded {}

impl Loaded {
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn device(&self) -> DeviceId {
        DeviceId::Cuda(self.context.device().ordinal())
    }

    /// The entry's handle, valid while `self` lives. The context must be current.
    pub(crate) fn function(&self, name: &CString) -> Result<CUfunction, DriverError> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with NUL, and the out pointer is valid.
        check("cuModuleGetFunction", unsafe {
            ffi::cuModuleGetFunction(&mut function, self.raw, name.as_ptr())
        })?;
        Ok(function)
    }

    /// A launch of the module's code was enqueued that is over when `fence` is.
    pub(crate) fn launched(&self, fence: &Fence) {
        // Dropped after the lock: a fence may be the last handle of its stream.
        let mut removed = SmallVec::<[Fence; 4]>::new();
        let mut launches = self.launches[thread_number() % SHARES].0.lock();
        let mut index = 0;
        while let Some(launch) = launches.get(index) {
            let implied = launch.timeline().id() == fence.timeline().id() && launch.point() <= fence.point();
            if implied || launch.is_known_done() {
                removed.push(launches.swap_remove(index));
            } else {
                index += 1;
            }
        }
        launches.push(fence.clone());
        drop(launches);
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // To unload code that runs, the driver would have to wait for it; its context then takes it along.
        // Nor is anything unloaded where a launch failed: the context is unusable then.
        let ended = |launch: &Fence| launch.timeline().poll(launch.point()).is_ok_and(|over| over);
        let mut all = self.launches.iter_mut().flat_map(|launches| launches.0.get_mut().iter());
        if !all.all(ended) && !transload_core::mutant!("streams/running-modules-stay") {
            return;
        }
        record_drop_error(self.context.enter().and_then(|_bound| {
            let _capture = RelaxedCapture::enter()?;
            // SAFETY: the module was loaded by `load`, is used by nobody after this, and none of its launches runs.
            check("cuModuleUnload", unsafe { ffi::cuModuleUnload(self.raw) })
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_of_a_text_are_known_by_name() {
        let text = ".version 6.0\n.visible .entry one(\n.param .u64 a)\n{ ret; }\n.entry  two_2 () { ret; }";
        assert_eq!(entries(text), ["one", "two_2"]);
        assert!(entries("nothing").is_empty());
    }

    #[test]
    fn what_the_compiler_says_is_part_of_the_error() {
        let refused = || DriverError::Call { call: "cuModuleLoadDataEx", code: 218, name: "PTX".to_owned() };
        let error = explain(refused(), b"ptxas: line 3\n\0\0");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("(ptxas: line 3)"), "{error}");
        assert!(!explain(refused(), &[0; 8]).to_string().contains("()"));
    }
}
