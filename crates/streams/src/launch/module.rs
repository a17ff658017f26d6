//! Kernels' code as the driver loaded it: compiled from PTX, found by name, unloaded only when nothing of it runs.

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

/// Code loaded for one device. Clones and the kernels found in it share it. Usable from any thread.
///
/// It is unloaded when the last of them is gone, if none of its launches can be running then; else it goes with the device's
/// context. Until a thread's next launch of it, it keeps the streams that this thread launched it on last.
#[derive(Clone, Debug)]
pub struct CudaModule {
    code: Arc<Code>,
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
        // SAFETY: the caller's promise.
        let module = unsafe { LoadedModule::load(device.context()?, image, "this module") }?;
        Ok(Self { code: Arc::new(Code { module, entries, launches: Default::default() }) })
    }

    /// A kernel by its entry's name, as the PTX spells it (`extern "C"` in the source).
    ///
    /// # Errors
    /// `InvalidArgument` where the module has no such entry; the driver's.
    pub fn kernel(&self, name: &str) -> Result<CudaKernel> {
        CudaKernel::find(&self.code, name)
    }

    /// The device that the code is for.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.code.device()
    }
}

/// The names of a text's kernels.
fn entries(ptx: &str) -> Vec<String> {
    let is_name = |letter: &char| letter.is_alphanumeric() || matches!(letter, '_' | '$' | '%');
    let name = |text: &str| text.trim_start().chars().take_while(is_name).collect::<String>();
    ptx.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

/// A module, and its launches that may be running.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) module: LoadedModule,
    /// The names of its kernels where they are known, for the text of an error.
    pub(crate) entries: Vec<String>,
    launches: [Launches; SHARES],
}

/// How many shares the threads are divided into.
const SHARES: usize = 16;

/// The last launch on each stream that is not known to be over, by one share of the threads.
// On lines of their own, fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Launches(Mutex<SmallVec<[Fence; 4]>>);

impl Code {
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId::Cuda(self.module.context.device().ordinal())
    }

    /// A launch of the module's code was enqueued that is over when `fence` is.
    pub(crate) fn launched(&self, fence: &Fence) {
        // Dropped after the lock: a fence may be the last handle of its stream.
        let mut removed = SmallVec::<[Fence; 4]>::new();
        let mut launches = self.launches[thread_number() % SHARES].0.lock();
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
        // Nor is anything unloaded where a launch failed: the context is unusable then.
        let ended = |launch: &Fence| launch.timeline().poll(launch.point()).is_ok_and(|over| over);
        let mut all = self.launches.iter_mut().flat_map(|launches| launches.0.get_mut().iter());
        if !all.all(ended) && !transload_core::mutant!("streams/running-modules-stay") {
            self.module.leak();
        }
    }
}
