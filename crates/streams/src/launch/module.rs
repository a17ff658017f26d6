//! Loaded modules: compiled from PTX, and unloaded only when no kernel of theirs runs.

use std::{
    ffi::{CString, c_void},
    sync::Arc,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{DeviceId, Error, ErrorKind, Fence, Result};
use transload_memory::CudaDevice;

use super::CudaKernel;
use crate::{submit::loaded_module::LoadedModule, thread_number::thread_number};

/// A module loaded for one device, shared by its clones and kernels. Usable from any thread.
///
/// It is unloaded when the last of them is dropped, if none of its launches can be running then; otherwise with the
/// device's context. It keeps the streams of each thread's last launches alive until that thread's next launch.
#[derive(Clone, Debug)]
pub struct CudaModule {
    code: Arc<Code>,
}

impl CudaModule {
    /// Compiles PTX for the device: some milliseconds unless the driver has the result cached. Captures of other threads
    /// stay valid.
    ///
    /// # Errors
    /// `InvalidArgument` if the text contains a NUL; `Unsupported`, with the compiler's log, if the driver rejects it; the
    /// driver's.
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
    /// `InvalidArgument` for an empty image; `Unsupported` for an image without code for this device; the driver's.
    ///
    /// # Safety
    /// * `image` is complete: the driver reads its length from the image, or up to the NUL.
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
        // SAFETY: the caller's promise.
        let module = unsafe { LoadedModule::load(device.context()?, image, "this module") }?;
        Ok(Self { code: Arc::new(Code { module, entries, launches: Default::default() }) })
    }

    /// Returns the kernel with this name in the PTX (`extern "C"` in the source).
    ///
    /// # Errors
    /// `InvalidArgument` if the module has no such entry; the driver's.
    pub fn kernel(&self, name: &str) -> Result<CudaKernel> {
        CudaKernel::find(&self.code, name)
    }

    /// Returns its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.code.device()
    }
}

/// Returns the names of the kernels in PTX.
fn entries(ptx: &str) -> Vec<String> {
    let is_name = |letter: &char| letter.is_alphanumeric() || matches!(letter, '_' | '$' | '%');
    let name = |text: &str| text.trim_start().chars().take_while(is_name).collect::<String>();
    ptx.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

/// A module and its launches that may be running.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) module: LoadedModule,
    /// Names of its kernels, if known, for error messages.
    pub(crate) entries: Vec<String>,
    launches: [Launches; SHARDS],
}

/// Number of shards of threads.
const SHARDS: usize = 16;

/// The last launch on each stream that is not known to be complete, by one shard of the threads.
// On its own pair of cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Launches(Mutex<SmallVec<[Fence; 4]>>);

impl Code {
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId::Cuda(self.module.context.device().ordinal())
    }

    /// Records a launch that completes with `fence`.
    pub(crate) fn record_launch(&self, fence: &Fence) {
        // Dropped without the lock: a fence may be the last handle of its stream.
        let mut removed = SmallVec::<[Fence; 4]>::new();
        let mut launches = self.launches[thread_number() % SHARDS].0.lock();
        let mut index = 0;
        while let Some(launch) = launches.get(index) {
            let implied = launch.timeline().id() == fence.timeline().id() && launch.point() <= fence.point();
            if implied || launch.is_known_complete() {
                removed.push(launches.swap_remove(index));
            } else {
                index += 1;
            }
        }
        launches.push(fence.clone());
        drop(launches);
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // After a failed launch the context is unusable, so nothing is unloaded.
        let ended = |launch: &Fence| launch.poll().is_ok_and(|over| over);
        let mut all = self.launches.iter_mut().flat_map(|launches| launches.0.get_mut().iter());
        if !all.all(ended) && !transload_core::mutant!("streams/running-modules-stay") {
            self.module.leak();
        }
    }
}
