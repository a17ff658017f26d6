//! Kernels of this crate's own: PTX that the driver compiles when it is loaded, once per context.

use std::{
    ffi::CStr,
    os::raw::c_void,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use transload_core::Result;
use transload_cuda_sys::{Context, DriverError, RawStream, RelaxedCapture, attribute, cust::sys::CUfunction};
use transload_memory::lift;

use super::loaded_module::{self, LoadedModule, MAX_THREADS_PER_BLOCK};
use crate::LaunchConfig;

/// What the driver is given: text that ends with NUL. `kernels/copy.cu` and `fill.cu` tell how it was made.
const MODULE: &str = concat!(include_str!("kernels/copy.ptx"), include_str!("kernels/fill.ptx"), "\0");
const COPY: &CStr = c"transload_copy";
const FILL: &CStr = c"transload_fill";

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
#[derive(Debug)]
pub(crate) struct Kernels {
    module: LoadedModule,
    copy: CUfunction,
    fill: CUfunction,
    multiprocessors: u32,
}

// SAFETY: function handles belong to their module, not to a thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Kernels {}

/// What is loaded, for each context one at a time: who keeps a context's kernels keeps those that everyone launches. A context
/// whose kernels are alive is alive too, so that its handle is nobody else's.
/// Each lies beside its context's handle, so that none is upgraded, and perhaps dropped, under the lock but the one wanted.
static LOADED: Mutex<Vec<(usize, Weak<Kernels>)>> = Mutex::new(Vec::new());

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
        let made = Arc::new(Self::load(context)?);
        let mut loaded = LOADED.lock();
        // Where two threads came first, the loser's go, behind the lock: the driver unloads them.
        if let Some(found) = find(&loaded, context) {
            drop(loaded);
            return Ok(found);
        }
        loaded.retain(|(_, kernels)| kernels.strong_count() > 0);
        loaded.push((context.as_raw().addr(), Arc::downgrade(&made)));
        Ok(made)
    }

    fn load(context: &Context) -> Result<Self> {
        // SAFETY: the image is text that ends with NUL.
        let module = unsafe {
            LoadedModule::load(context, MODULE.as_ptr().cast(), "our kernels for copies and fills")
        }?;
        let load = || {
            let multiprocessors = context.device().attribute(attribute::MULTIPROCESSOR_COUNT)?;
            let _bound = context.enter()?;
            let _capture = RelaxedCapture::enter()?;
            let [copy, fill] = [COPY, FILL].map(|name| {
                let function = module.function(name)?;
                // The driver loads a kernel when it is first used (CUDA Programming Guide, "Lazy Loading"), and waits for the
                // whole device to do so: a query makes it load now, so that no launch waits for work that it is to overtake.
                // SAFETY: the function was just found in the module.
                unsafe { loaded_module::attribute(function, MAX_THREADS_PER_BLOCK) }.map(|_| function)
            });
            Ok((copy?, fill?, u32::try_from(multiprocessors).unwrap_or(1).max(1)))
        };
        let (copy, fill, multiprocessors) = load().map_err(lift)?;
        Ok(Self { module, copy, fill, multiprocessors })
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
        unsafe {
            loaded_module::launch(
                self.copy,
                LaunchConfig::linear(blocks(src, dst, bytes, most), THREADS),
                &mut parameters,
                stream,
            )
        }
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
        unsafe {
            loaded_module::launch(self.fill, LaunchConfig::linear(blocks, THREADS), &mut parameters, stream)
        }
    }

    /// A user is going whose work may still run: the module then stays until its context goes, since to unload it the
    /// driver would have to wait.
    pub(crate) fn leak(&self) {
        self.module.leak();
    }
}

/// Enough blocks for one unit a thread (the kernel copies by units of 16 bytes where both sides can be aligned at once, else
/// by smaller ones), at most `most`.
fn blocks(src: u64, dst: u64, bytes: u64, most: u32) -> u32 {
    let shift = (src ^ dst).trailing_zeros().min(4);
    let units = bytes >> shift;
    u32::try_from(units.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, most)
}

fn find(loaded: &[(usize, Weak<Kernels>)], context: &Context) -> Option<Arc<Kernels>> {
    let of_context = loaded.iter().filter(|(of, _)| *of == context.as_raw().addr());
    of_context.filter_map(|(_, kernels)| kernels.upgrade()).next()
}

#[cfg(test)]
#[path = "../../tests/unit/kernels.rs"]
mod tests;
