//! One GPU under two APIs: memory that CUDA and Vulkan share, and submissions in order with CUDA's work.
//!
//! This folder relies on these facts, besides what both APIs document for each call:
//! * Memory exported by Vulkan as an opaque file descriptor and imported by CUDA is the same memory; its content survives the hand-over
//!   between them if Vulkan releases it to, and acquires it from, the external family of queues.
//! * A timeline semaphore exported by Vulkan counts for both: a wait of one API for a value ends once the other has signalled it, and what
//!   the other's work wrote before is visible after.
//! * CUDA's waits and signals of a semaphore are in the order of the stream on which they are enqueued, also if the library did not make it.
//! * An import that succeeds takes the descriptor; one that fails leaves it to the caller.

mod imported;

use std::{any::Any, fmt, iter, sync::Arc};

use parking_lot::Mutex;
use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, Queue as _, RawBuffer, Result, StreamPriority,
    Timeline, TimelineId, merge_uses, mutant,
};
use transload_memory::{CudaDevice, CudaMemoryManager, lift};
use transload_streams::{CudaStream, ExternalSemaphore, ExternalTimeline};

use self::imported::{ImportedMemory, ImportedSemaphore};
use crate::{
    WgpuBackend,
    vulkan::{DeviceState, Memory, Semaphore, WgpuQueue, as_vulkan},
};

/// `CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED`.
const TIMELINE_SEMAPHORES: u32 = 114;

/// A GPU that CUDA and Vulkan both use. Usable from any thread.
///
/// What [`allocate`](Self::allocate) returns is memory of the CUDA device for everything of CUDA, and a buffer of wgpu for shaders:
/// nothing is copied between them. [`submit`](Self::submit) orders command buffers with all other work on the memory: on the device, if
/// the driver shares timeline semaphores, and otherwise by waiting on the host. If Vulkan loses the device, what CUDA has enqueued after
/// a submission may wait for ever.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use transload_backend_wgpu::{CudaInterop, WgpuBackend, WgpuBackendConfig, wgpu};
/// use transload_core::{Access, Backend};
/// use transload_memory::{CudaDevice, CudaMemoryManager};
///
/// fn main() -> transload_core::Result<()> {
///     let vulkan = WgpuBackend::open(&WgpuBackendConfig::default())?;
///     // With a `CudaBackend`, its manager: `backend.memory(0)?`.
///     let cuda = Arc::new(CudaMemoryManager::new(&CudaDevice::new(0)?)?);
///     let uuid = cuda.device().driver().uuid().ok();
///     let Some(same) = vulkan.devices().into_iter().find(|info| info.uuid == uuid) else { return Ok(()) };
///
///     let both = CudaInterop::new(&vulkan, same.id, &cuda)?;
///     let shared = both.allocate(1 << 20)?;
///     // `shared.raw()` is copied and used by streams and kernels, `shared.wgpu()?` bound by shaders.
///     let mut encoder = vulkan.device(same.id)?.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
///     encoder.clear_buffer(&shared.wgpu()?, 0, None);
///     both.submit([encoder.finish()], &[(&shared, Access::Write)], &[])?.wait()
/// }
/// ```
pub struct CudaInterop {
    device: Arc<DeviceState>,
    memory: Arc<CudaMemoryManager>,
    order: Option<Mutex<Order>>,
}

/// Memory that CUDA and Vulkan share.
pub struct SharedMemory {
    buffer: RawBuffer,
    memory: Arc<Memory>,
    device: Arc<DeviceState>,
}

/// What the device waits by. The stream whose work a submission waits for signals a semaphore. Streams wait for the submission by the
/// queue's semaphore.
struct Order {
    before: Vec<Before>,
    after: Arc<ExternalTimeline>,
    /// Signals where no stream of the others can: it waits for their fences. The GPU then takes several times as long, since it switches
    /// between the APIs only at the end of a time slice.
    stream: CudaStream,
    cuda: CudaDevice,
}

/// A semaphore that one stream signals at a time, so that its values grow.
struct Before {
    by: TimelineId,
    semaphore: ExternalSemaphore,
    vulkan: Arc<Semaphore>,
    /// The last value that was signalled.
    value: u64,
    /// The point of the submission that waits for it; `u64::MAX` until that is known.
    point: u64,
}

impl CudaInterop {
    /// Opens a device of a wgpu backend and a CUDA device, which must be the same GPU, for use together.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; [`ErrorKind::InvalidArgument`] if the devices' UUIDs differ; [`ErrorKind::Unsupported`] for a
    /// [foreign device](crate::WgpuBackendConfig::with_foreign_device); the drivers'.
    pub fn new(backend: &WgpuBackend, device: DeviceId, memory: &Arc<CudaMemoryManager>) -> Result<Self> {
        let cuda = memory.device();
        let Some(state) = as_vulkan(backend.device_of(device)?) else {
            let text = format!("{device} is not a device of Vulkan");
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        if !state.queue.vulkan.is_locked {
            let text = format!(
                "{device} was made by others, and its queue has no lock for CUDA's semaphores; a device of \
                 `create_shared_device` has"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let uuid = cuda.driver().uuid().map_err(lift)?;
        if state.info.uuid != Some(uuid) {
            let text = format!("{device} and {} are not one GPU: their UUIDs differ", cuda.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let is_ordered = state.queue.vulkan.exports_semaphores
            && cuda.driver().attribute(TIMELINE_SEMAPHORES).is_ok_and(|is_supported| is_supported == 1);
        let order = if is_ordered { Some(Mutex::new(Order::new(&state, cuda)?)) } else { None };
        Ok(Self { device: state, memory: Arc::clone(memory), order })
    }

    /// Returns whether a submission waits for CUDA's work on the device, and that for it. Otherwise the submitting threads wait.
    #[must_use]
    pub fn waits_on_device(&self) -> bool {
        self.order.is_some()
    }

    /// Allocates memory that both use. Its content is undefined.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes; [`ErrorKind::OutOfRange`] beyond the largest allocation of the wgpu device;
    /// [`ErrorKind::OutOfMemory`]; [`ErrorKind::Unsupported`] if one of the drivers shares no
    /// memory; the drivers'.
    pub fn allocate(&self, bytes: usize) -> Result<SharedMemory> {
        self.device.queue.check_usable()?;
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "requested 0 bytes; at least 1 is valid"));
        }
        self.device.info.check_allocation(bytes as u64)?;
        let memory = Arc::new(Memory::allocate_to_export(&self.device.queue.vulkan, bytes)?);
        let imported = ImportedMemory::new(self.memory.device(), &memory)?;
        // SAFETY: the memory is imported until its owner is dropped, nothing uses it yet, and all work on it is ordered by the buffer:
        // shaders' work by `submit`. The host cannot address it.
        let buffer = unsafe { self.memory.adopt(imported.address(), bytes, imported) }?;
        Ok(SharedMemory { buffer, memory, device: Arc::clone(&self.device) })
    }

    /// Submits command buffers of [`WgpuBackend::device`]'s encoders, after all conflicting work on the memory in `shared` and `others`,
    /// of either API, and before all that is submitted later. Does not wait for the commands. If it [waits on the device](Self::waits_on_device)
    /// it blocks for work of other backends only, such as copies within the host; otherwise also until CUDA's conflicting work is complete.
    ///
    /// Each memory that the commands use is named, with its use. `others` is memory of the wgpu backend. Only work on these is ordered with
    /// the commands. Callbacks of wgpu are called as by [`WgpuBackend::submit`].
    ///
    /// # Errors
    /// Those of [`WgpuBackend::submit`].
    pub fn submit(
        &self,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
        shared: &[(&SharedMemory, Access)],
        others: &[(&RawBuffer, Access)],
    ) -> Result<Fence> {
        if shared.iter().any(|(memory, _)| !Arc::ptr_eq(&memory.device, &self.device)) {
            let text = format!("the memory is shared with another device than {}", self.device.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // User code, before anything is claimed or locked.
        let commands: Vec<_> = commands.into_iter().collect();
        // Its locks would not be those of the thread that waits for this one.
        self.device.queue.refuse_callback()?;
        let uses: Vec<_> = shared.iter().map(|(memory, access)| (&memory.buffer, *access)).collect();
        let uses = merge_uses(&[&uses, others].concat());
        let mut uses: Vec<_> = uses.iter().map(|(buffer, access)| (buffer, *access)).collect();
        let mut claims = Claims::updating(&mut uses)?;
        let queue = WgpuQueue::new(&self.device, &self.device.wgpu, StreamPriority::Normal);
        let mut memories: Vec<_> = shared.iter().map(|(memory, _)| &*memory.memory).collect();
        memories.sort_unstable_by_key(|memory| std::ptr::from_ref(*memory));
        memories.dedup_by_key(|memory| std::ptr::from_ref(*memory));
        let mut order = self.order.as_ref().map(Mutex::lock);
        let before = match &mut order {
            Some(order) => {
                let is_foreign = |fence: &&Fence| !queue.can_wait_for(fence) && !order.is_own(fence);
                let foreign: Vec<Fence> = claims.after().iter().filter(is_foreign).cloned().collect();
                order.signal_after(&self.device, &foreign)?
            }
            None if mutant!("wgpu/waits-for-cuda") => None,
            None => {
                claims.wait_for_foreign_fences(&queue);
                None
            }
        };
        let mut after = self.device.copied();
        // The semaphores outlive all submissions: a drop waits for the last point.
        after.extend(order.as_ref().zip(before.as_ref()).and_then(|(order, (index, _))| {
            let Before { vulkan, value, .. } = order.before.get(*index)?;
            Some(vulkan.at(*value)).filter(|_| !mutant!("wgpu/waits-for-cuda"))
        }));
        // SAFETY: the memory is claimed, and stays alive until the commands are complete.
        let [take, give] = unsafe { self.device.queue.vulkan.hand_over(&memories) };
        let commands = iter::once(take).chain(commands).chain(iter::once(give)).collect();
        let mut submitted = None;
        self.device.queue.submit_wgpu(commands, after, |point| {
            let fence = match &mut order {
                Some(order) => order.fence(point, before),
                None => queue.fence(point),
            };
            submitted = Some(claims.inherit(fence.clone()));
            if !mutant!("wgpu/cuda-waits") {
                // SAFETY: the queue's point is reached after the commands, and after everything before them on the queue, and the fences that
                // the commands wait for.
                unsafe { claims.commit(&fence) };
            }
            // Before callbacks of wgpu's user.
            drop(order);
        })?;
        let interrupted = || Error::new(ErrorKind::Interrupted, "the submission has no point");
        submitted.ok_or_else(interrupted)
    }
}

impl Order {
    fn new(state: &Arc<DeviceState>, cuda: &CudaDevice) -> Result<Self> {
        let after = ImportedSemaphore::new(cuda, state.queue.semaphore(), state.queue.clone())?;
        let (queue, after) =
            (Arc::clone(&state.queue) as Arc<dyn Timeline>, ExternalSemaphore::new(cuda, after));
        // SAFETY: the semaphore's value is the last submission's point that the queue has reached, and a lost queue has reached all.
        let after = unsafe { ExternalTimeline::new(queue, after) };
        Ok(Self { before: Vec::new(), after, stream: CudaStream::new(cuda)?, cuda: cuda.clone() })
    }

    /// Returns whether the fence is that of a submission, which Vulkan's queue is in order with.
    fn is_own(&self, fence: &Fence) -> bool {
        fence.timeline().id() == self.after.id()
    }

    /// Has a semaphore signalled after the fences. Returns its index, and the fence after which it is, unless all are complete.
    fn signal_after(&mut self, device: &DeviceState, fences: &[Fence]) -> Result<Option<(usize, Fence)>> {
        let mut open: Vec<_> = fences.iter().filter(|fence| !fence.is_complete()).cloned().collect();
        open.sort_unstable_by_key(Fence::point);
        let Some(last) = open.last() else { return Ok(None) };
        if open.iter().all(|fence| fence.timeline().id() == last.timeline().id())
            && let Some(index) = self.signal_by(device, last)?
        {
            return Ok(Some((index, last.clone())));
        }
        self.stream.wait_fences(&open)?;
        let last = self.stream.fence()?;
        let index = self.signal_by(device, &last)?;
        let failed = || Error::new(ErrorKind::Interrupted, "the stream signals no semaphore");
        Ok(Some((index.ok_or_else(failed)?, last)))
    }

    /// Has the stream of a fence signal a semaphore, if it can.
    fn signal_by(&mut self, device: &DeviceState, fence: &Fence) -> Result<Option<usize>> {
        let by = fence.timeline().id();
        let is_same = |before: &Before| before.by == by;
        let free = || {
            let reached = device.queue.refresh();
            self.before.iter().position(|before| before.point <= reached)
        };
        let index = match self.before.iter().position(is_same).or_else(free) {
            Some(index) => index,
            None => {
                self.before.push(Before::new(device, &self.cuda, by)?);
                self.before.len() - 1
            }
        };
        let Some(before) = self.before.get_mut(index) else { return Ok(None) };
        if !before.semaphore.signal_after(fence, before.value + 1)? {
            return Ok(None);
        }
        (before.by, before.value, before.point) = (by, before.value + 1, u64::MAX);
        Ok(Some(index))
    }

    /// Returns the fence of a submission that waits for a semaphore.
    fn fence(&mut self, point: u64, before: Option<(usize, Fence)>) -> Fence {
        let (index, after) = before.unzip();
        if let Some(before) = index.and_then(|index| self.before.get_mut(index)) {
            before.point = point;
        }
        self.after.fence(point, after)
    }
}

impl Before {
    fn new(device: &DeviceState, cuda: &CudaDevice, by: TimelineId) -> Result<Self> {
        let vulkan = Arc::new(Semaphore::new(&device.queue.vulkan)?);
        let imported = ImportedSemaphore::new(cuda, &vulkan, vulkan.clone())?;
        Ok(Self { by, semaphore: ExternalSemaphore::new(cuda, imported), vulkan, value: 0, point: 0 })
    }
}

impl Drop for CudaInterop {
    fn drop(&mut self) {
        if self.order.is_some() {
            // Nor does anything of the queue.
            self.device.queue.block_until(self.device.queue.enqueued());
        }
    }
}

impl SharedMemory {
    /// Returns the memory for everything of CUDA: device memory of the CUDA device.
    #[must_use]
    pub fn raw(&self) -> &RawBuffer {
        &self.buffer
    }

    /// Returns wgpu's handle of the whole memory, for bind groups. Its size is rounded up to a multiple of 16. The memory lives as long as
    /// the handle.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] beyond what wgpu allows.
    pub fn wgpu(&self) -> Result<wgpu::Buffer> {
        self.device.queue.vulkan.wgpu_buffer(&self.memory, self.buffer.clone())
    }
}

impl fmt::Debug for CudaInterop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaInterop")
            .field("wgpu", &self.device.id())
            .field("cuda", &self.memory.device().id())
            .field("waits_on_device", &self.waits_on_device())
            .finish()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

/// What an import keeps alive.
type Kept = Arc<dyn Any + Send + Sync>;
