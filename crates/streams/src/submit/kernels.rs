//! This crate's kernels: PTX, compiled by the driver when it is loaded, once per context.

use std::{
    borrow::Cow,
    ffi::CStr,
    os::raw::c_void,
    sync::{Arc, Weak},
    time::Instant,
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Result, events::report};
use transload_cuda_sys::{
    Context, Driver, DriverError, RawStream, RelaxedCapture, attribute, cust::sys::CUfunction,
};
use transload_memory::lift_in;

use super::{
    batches::LAST_DEFAULT_STREAM,
    loaded_module::{self, LoadedModule, MAX_THREADS_PER_BLOCK},
};
use crate::{LaunchConfig, built_in::BLOCKS_PER_MULTIPROCESSOR};

/// The PTX, ending with NUL. `kernels/copy.cu`, `copy_list.cu`, `fill.cu`, `cast.cu` and `occupy.cu` say how it was created.
const MODULE: &str = concat!(
    include_str!("kernels/copy.ptx"),
    include_str!("kernels/copy_list.ptx"),
    include_str!("kernels/fill.ptx"),
    include_str!("kernels/cast.ptx"),
    include_str!("kernels/occupy.ptx"),
    "\0"
);
/// Compute capability, major number, from which launches may overlap.
const OVERLAP_FROM: i32 = 9;
const COPY: &CStr = c"transload_copy";
const COPY_LIST: &CStr = c"transload_copy_list";
const FILL: &CStr = c"transload_fill";
const CAST: &CStr = c"transload_cast";
const OCCUPY: &CStr = c"transload_occupy";

/// Threads per block.
pub(super) const THREADS: u32 = 256;
/// Maximum blocks per multiprocessor of a fill, which only stores: as many as fit (2,048 threads).
const FILL_BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
/// Maximum blocks per multiprocessor of a cast, which has one load of an element under way in each thread: as many as fit.
const CAST_BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
/// Bytes that a block of a fill stores per iteration: four units of 16 bytes per thread.
const FILL_TILE: u64 = 64 * THREADS as u64;

/// The kernels of one context. A user holds them until its work is complete, or calls [`leak`](Self::leak).
#[derive(Debug)]
pub(crate) struct Kernels {
    module: LoadedModule,
    copy: CUfunction,
    copy_list: CUfunction,
    fill: CUfunction,
    cast: CUfunction,
    occupy: CUfunction,
    /// Whether launches of one list may overlap.
    overlap: bool,
    multiprocessors: u32,
    /// Blocks of [`THREADS`] threads that are on a multiprocessor at once, at most.
    resident: u32,
}

// SAFETY: function handles belong to their module, not to a thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; the driver synchronises access itself.
unsafe impl Sync for Kernels {}

/// The loaded kernels by context handle, at most one set per context. Kernels keep their context alive, so its handle is
/// not reused. The key makes it unnecessary to upgrade, and possibly drop, other entries under the lock.
static LOADED: Mutex<Vec<(usize, Weak<Kernels>)>> = Mutex::new(Vec::new());

impl Kernels {
    /// Returns the context's kernels. Loading them takes some milliseconds unless the driver has them cached. Captures of
    /// other threads stay valid.
    ///
    /// # Errors
    /// `Unsupported` if the driver rejects the module; the driver's.
    pub(crate) fn of(context: &Context) -> Result<Arc<Self>> {
        if let Some(found) = find(&LOADED.lock(), context) {
            return Ok(found);
        }
        let begun = Instant::now();
        let made = Arc::new(Self::load(context)?);
        let device = DeviceId::Cuda(context.device().ordinal());
        report::first_use("kernels for copies, fills and casts", device, begun.elapsed());
        let mut loaded = LOADED.lock();
        // Another thread may have been faster. Dropped without the lock, since that unloads a module.
        if let Some(found) = find(&loaded, context) {
            drop(loaded);
            return Ok(found);
        }
        loaded.retain(|(_, kernels)| kernels.strong_count() > 0);
        loaded.push((context.as_raw().addr(), Arc::downgrade(&made)));
        Ok(made)
    }

    fn load(context: &Context) -> Result<Self> {
        let (major, _) = context.device().compute_capability().map_err(|error| lift_in(context, error))?;
        let overlap =
            major >= OVERLAP_FROM && Driver::get().is_ok_and(|driver| driver.has(c"cuLaunchKernelEx"));
        let text = module_text(overlap);
        // SAFETY: the image is text that ends with NUL.
        let module = unsafe {
            LoadedModule::load(
                context,
                text.as_ptr().cast(),
                "this library's kernels for copies, fills and casts",
            )
        }?;
        let load = || {
            let multiprocessors = context.device().attribute(attribute::MULTIPROCESSOR_COUNT)?;
            let threads = context.device().attribute(attribute::MAX_THREADS_PER_MULTIPROCESSOR)?;
            let _bound = context.enter()?;
            let _capture = RelaxedCapture::enter()?;
            let [copy, copy_list, fill, cast, occupy] = [COPY, COPY_LIST, FILL, CAST, OCCUPY].map(|name| {
                let function = module.function(name)?;
                // With lazy loading (CUDA Programming Guide, "Lazy Loading"), the first use loads a kernel and waits for the
                // whole device. Load now by a query, so that no launch waits for work that it should overtake.
                // SAFETY: the function was just found in the module.
                unsafe { loaded_module::attribute(function, MAX_THREADS_PER_BLOCK) }.map(|_| function)
            });
            let [multiprocessors, threads] =
                [multiprocessors, threads].map(|count| u32::try_from(count).unwrap_or(1).max(1));
            Ok((copy?, copy_list?, fill?, cast?, occupy?, multiprocessors, (threads / THREADS).max(1)))
        };
        let (copy, copy_list, fill, cast, occupy, multiprocessors, resident) =
            load().map_err(|error| lift_in(context, error))?;
        Ok(Self { module, copy, copy_list, fill, cast, occupy, overlap, multiprocessors, resident })
    }

    /// Enqueues a copy of `bytes` bytes by a kernel.
    ///
    /// # Safety
    /// * The stream is of the kernels' context, which is current.
    /// * Both ranges are valid on its device for `bytes` bytes, do not overlap, stay alive, and have no conflicting use
    ///   until the copy is complete.
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
                LaunchConfig::linear(blocks(bytes, most), THREADS),
                &mut parameters,
                stream,
            )
        }
    }

    /// Enqueues the copy of a list of `count` pieces, by a warp each: see `kernels/copy_list.cu`.
    ///
    /// # Safety
    /// * As for [`copy`](Self::copy), for each piece. The list stays until the copy is complete.
    pub(crate) unsafe fn launch_list(
        &self,
        list: u64,
        count: usize,
        stream: RawStream,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_part(list, count, stream, Overlap::default()) }
    }

    /// Returns whether launches of one list on the stream may overlap.
    pub(super) fn overlap_on(&self, stream: RawStream) -> bool {
        self.overlap && stream.addr() > LAST_DEFAULT_STREAM
    }

    /// Like [`launch_list`](Self::launch_list), of a part of a list.
    ///
    /// # Safety
    /// * As for [`launch_list`](Self::launch_list).
    /// * With [`before`](Overlap::before), nothing but launches of the same list precedes it that it must come after, and with
    ///   [`after`](Overlap::after) nothing else follows at once that must come after it. Such launches [may overlap](Self::overlap_on).
    pub(super) unsafe fn launch_part(
        &self,
        list: u64,
        count: usize,
        stream: RawStream,
        overlap: Overlap,
    ) -> Result<(), DriverError> {
        let most = self.multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR);
        let blocks = u32::try_from(count).unwrap_or(u32::MAX).clamp(1, most);
        // SAFETY: the caller's promise.
        unsafe { self.launch_list_by(blocks, (list, count), stream, overlap) }
    }

    /// Like [`launch_part`](Self::launch_part), by so many blocks.
    ///
    /// # Safety
    /// * As for [`launch_part`](Self::launch_part).
    pub(super) unsafe fn launch_list_by(
        &self,
        blocks: u32,
        (list, count): (u64, usize),
        stream: RawStream,
        overlap: Overlap,
    ) -> Result<(), DriverError> {
        if count == 0 {
            return Ok(());
        }
        let (count, more) = (count as u64, u32::from(overlap.after));
        let mut parameters: [*mut c_void; 3] = [
            (&raw const list).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
            (&raw const more).cast_mut().cast(),
        ];
        let (config, before) = (LaunchConfig::linear(blocks, THREADS), overlap.before);
        // SAFETY: the kernel takes two parameters of 8 bytes and one of 4; the rest is the caller's promise.
        unsafe {
            if before {
                loaded_module::launch_early(self.copy_list, config, &mut parameters, stream)
            } else {
                loaded_module::launch(self.copy_list, config, &mut parameters, stream)
            }
        }
    }

    /// Enqueues a fill of `bytes` bytes with a repeated pattern of 16 bytes, starting at `dst`.
    ///
    /// # Safety
    /// * The stream is of the kernels' context, which is current.
    /// * The range is valid on its device for `bytes` bytes, stays alive, and has no conflicting use until the fill is
    ///   complete.
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
        // CUDA devices and their hosts are little-endian.
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

    /// Enqueues a cast of as many elements; each type by its number in `kernels/cast.cu`.
    ///
    /// # Safety
    /// * As for [`copy`](Self::copy), for the elements at both addresses, which are aligned for them.
    pub(super) unsafe fn cast(
        &self,
        (src, from): (u64, u32),
        (dst, to): (u64, u32),
        elements: usize,
        stream: RawStream,
    ) -> Result<(), DriverError> {
        if elements == 0 {
            return Ok(());
        }
        let elements = elements as u64;
        let most = self.multiprocessors.saturating_mul(CAST_BLOCKS_PER_MULTIPROCESSOR);
        let blocks = u32::try_from(elements.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, most);
        let mut parameters: [*mut c_void; 5] = [
            (&raw const dst).cast_mut().cast(),
            (&raw const src).cast_mut().cast(),
            (&raw const elements).cast_mut().cast(),
            (&raw const from).cast_mut().cast(),
            (&raw const to).cast_mut().cast(),
        ];
        // SAFETY: the kernel takes three parameters of 8 bytes and two of 4; the rest is the caller's promise.
        unsafe {
            loaded_module::launch(self.cast, LaunchConfig::linear(blocks, THREADS), &mut parameters, stream)
        }
    }

    /// Enqueues a kernel that occupies all multiprocessors for so long: see `kernels/occupy.cu`.
    ///
    /// # Safety
    /// * The stream is of the kernels' context, which is current.
    pub(super) unsafe fn occupy(&self, nanoseconds: u64, stream: RawStream) -> Result<(), DriverError> {
        let blocks = self.multiprocessors.saturating_mul(self.resident);
        let mut parameters: [*mut c_void; 1] = [(&raw const nanoseconds).cast_mut().cast()];
        // SAFETY: the kernel takes this parameter of 8 bytes, and accesses no memory.
        unsafe {
            loaded_module::launch(self.occupy, LaunchConfig::linear(blocks, THREADS), &mut parameters, stream)
        }
    }

    /// Keeps the module loaded until its context is destroyed: a user's work may still run, and unloading would wait for it.
    pub(crate) fn leak(&self) {
        self.module.leak();
    }
}

/// Which launches a launch of the same list may overlap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overlap {
    /// The one before it, after which it ends all the same.
    pub(super) before: bool,
    /// The one after it.
    pub(super) after: bool,
}

/// Returns the PTX, ending with NUL, with or without the instructions by which launches overlap.
fn module_text(overlap: bool) -> Cow<'static, str> {
    if !overlap {
        return MODULE.into();
    }
    // The version of CUDA 11.8, the first for such devices.
    let text = MODULE.replace(".version 6.0", ".version 7.8").replace(".target sm_50", ".target sm_90");
    text.replace("//sm_90 ", "").into()
}

/// Returns the number of blocks for one unit of 16 bytes per thread, at most `most`.
fn blocks(bytes: u64, most: u32) -> u32 {
    let units = bytes / 16;
    u32::try_from(units.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, most)
}

fn find(loaded: &[(usize, Weak<Kernels>)], context: &Context) -> Option<Arc<Kernels>> {
    let of_context = loaded.iter().filter(|(of, _)| *of == context.as_raw().addr());
    of_context.filter_map(|(_, kernels)| kernels.upgrade()).next()
}

#[cfg(test)]
#[path = "../../tests/unit/kernels.rs"]
mod tests;
