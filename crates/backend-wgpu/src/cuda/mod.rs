//! One GPU under two APIs: memory that CUDA and Vulkan share, and submissions in order with CUDA's work.
//!
//! This folder relies on these facts, besides what both APIs document for each call:
//! * Memory exported by Vulkan as an opaque file descriptor and imported by CUDA is the same memory; its content survives the hand-over
//!   between them if Vulkan releases it to, and acquires it from, the external family of queues.
//! * Such a hand-over changes no bytes: while one API takes a buffer over or hands it back, the other, or another queue, may read it, or use
//!   parts that the commands between do not. Copies hand over the ranges that they use, shaders whole buffers.
//! * A timeline semaphore exported by Vulkan counts for both: a wait of one API for a value ends once the other has signalled it, and what
//!   the other's work wrote before is visible after.
//! * CUDA's waits and signals of a semaphore are in the order of the stream on which they are enqueued, also if the library did not make it.
//! * An import that succeeds takes the descriptor; one that fails leaves it to the caller.

mod between;
mod imported;
mod order;
mod shared;

use std::{any::Any, fmt, sync::Arc};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, RawBuffer, Result};
use transload_memory::{CudaDevice, CudaMemoryManager, lift};

use self::{imported::ImportedMemory, order::Order, shared::Shared};
use crate::{
    WgpuBackend,
    vulkan::{DeviceState, Handled, Memory, as_vulkan},
};

pub(crate) use self::{
    between::Between,
    shared::{SharedTable, SharedUses},
};

/// `CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED`.
const TIMELINE_SEMAPHORES: u32 = 114;

/// A GPU that CUDA and Vulkan both use. Usable from any thread.
///
/// What [`allocate`](Self::allocate) returns is memory of the CUDA device, and `share()` of the manager or of [`WgpuBackend`] returns the
/// same bytes as memory of the wgpu device, and back. Nothing is copied, and both buffers have one table of uses: all of CUDA's work, and
/// [`WgpuBackend::submit`], are ordered with each other on the device, if the driver shares timeline semaphores, and otherwise by waiting
/// on the host. Copies by queues of the wgpu device and CUDA's work wait for each other on the host. If Vulkan loses the device, what CUDA has
/// enqueued after a submission may wait for ever.
///
/// If CUDA loses its context, submissions that wait for its work on the device run once somebody waits for or polls them, also if CUDA
/// has not written what they read: the error is that of CUDA's work.
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
///     // Copied and used by streams and kernels.
///     let theirs = CudaInterop::new(&vulkan, same.id, &cuda)?.allocate(1 << 20)?;
///     // Bound by shaders.
///     let ours = vulkan.share(&theirs, same.id)?.buffer;
///     let mut encoder = vulkan.device(same.id)?.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
///     encoder.clear_buffer(&vulkan.buffer(&ours)?, 0, None);
///     vulkan.submit(same.id, [encoder.finish()], &[(&ours, Access::Write)])?.wait()
/// }
/// ```
pub struct CudaInterop {
    device: Arc<DeviceState>,
    memory: Arc<CudaMemoryManager>,
    order: Option<Arc<Mutex<Order>>>,
}

impl CudaInterop {
    /// Opens a device of a wgpu backend and a CUDA device, which must be the same GPU, for use together.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; [`ErrorKind::InvalidArgument`] if the devices' UUIDs differ; [`ErrorKind::Unsupported`] for a
    /// [foreign device](crate::WgpuBackendConfig::with_foreign_device); the drivers'.
    pub fn new(backend: &WgpuBackend, device: DeviceId, memory: &Arc<CudaMemoryManager>) -> Result<Self> {
        let cuda = memory.device();
        let state = state_of(backend, device)?;
        let uuid = cuda.driver().uuid().map_err(lift)?;
        if state.info.uuid != Some(uuid) {
            let text = format!("{device} and {} are not one GPU: their UUIDs differ", cuda.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let is_ordered = state.queue.vulkan.exports_semaphores
            && cuda.driver().attribute(TIMELINE_SEMAPHORES).is_ok_and(|is_supported| is_supported == 1);
        let order = is_ordered.then(|| Order::new(&state.queue, cuda)).transpose()?;
        let order = order.map(|order| Arc::new(Mutex::new(order)));
        Ok(Self { device: state, memory: Arc::clone(memory), order })
    }

    /// Returns whether a submission waits for CUDA's work on the device, and that for it. Otherwise the submitting threads wait.
    #[must_use]
    pub fn waits_on_device(&self) -> bool {
        self.order.is_some()
    }

    /// Allocates memory that both use, of CUDA's device, which may outlive this. Its content is undefined.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 bytes; [`ErrorKind::OutOfRange`] beyond the largest allocation of the wgpu device;
    /// [`ErrorKind::OutOfMemory`]; [`ErrorKind::Unsupported`] if one of the drivers shares no
    /// memory; the drivers'.
    pub fn allocate(&self, bytes: usize) -> Result<RawBuffer> {
        allocate_shared(&self.device, &self.memory, self.order.clone(), bytes)
    }
}

impl WgpuBackend {
    /// Has this backend's queues copy between a CUDA device and the device of this backend that is the same GPU: through a little device
    /// memory that both have, which [`drain`](transload_core::Backend::drain) frees. Otherwise a manager has them pass the host. Returns this backend's device.
    ///
    /// Call it before a manager knows the backend. `memory` is called when such a copy needs that memory, and returns the CUDA device's
    /// manager. The thread that submits a copy of up to 32 MiB is blocked until it is complete, after earlier work of the queue; of a longer one until CUDA's
    /// part is. One that is measured comes after earlier work of the queue, too. One copy at a time is made. Of one that fails after a part of it was copied, the destination is marked as damaged. Without memory for it, a manager
    /// has the copy pass the host.
    ///
    /// ```no_run
    /// use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig};
    /// use transload_memory::{CudaDevice, CudaMemoryManager};
    ///
    /// fn main() -> transload_core::Result<()> {
    ///     let vulkan = WgpuBackend::open(&WgpuBackendConfig::default())?;
    ///     let cuda = CudaDevice::new(0)?;
    ///     // With a `CudaBackend`, its manager: `backend.memory(0)?`.
    ///     let memory = std::sync::Arc::new(CudaMemoryManager::new(&cuda)?);
    ///     println!("{} is {}", vulkan.connect_cuda(&cuda, move || Ok(memory.clone()))?, cuda.id());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`] if no device is the same GPU; [`ErrorKind::InvalidArgument`] if it is connected; [`ErrorKind::Unsupported`] for a
    /// [foreign device](crate::WgpuBackendConfig::with_foreign_device), or one that exports no memory; the driver's.
    pub fn connect_cuda(
        &self,
        cuda: &CudaDevice,
        memory: impl Fn() -> Result<Arc<CudaMemoryManager>> + Send + Sync + 'static,
    ) -> Result<DeviceId> {
        let uuid = cuda.driver().uuid().map_err(lift)?;
        let same = self.devices.iter().find(|device| device.info().uuid == Some(uuid)).ok_or_else(|| {
            let text = format!("no device of the wgpu backend is {}: their UUIDs differ", cuda.id());
            Error::new(ErrorKind::UnknownDevice, text)
        })?;
        let state = state_of(self, same.info().id)?;
        state.queue.vulkan.check_export()?;
        state.between.set(Between::new(cuda.id(), Box::new(memory))).map_err(|_| {
            let text = format!("{} is connected with a CUDA device already", state.id());
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        Ok(state.id())
    }
}

/// Returns a device that takes part in the order of CUDA's work.
fn state_of(backend: &WgpuBackend, device: DeviceId) -> Result<Arc<DeviceState>> {
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
    Ok(state)
}

/// Allocates memory that both use; see [`CudaInterop::allocate`].
fn allocate_shared(
    device: &DeviceState,
    memory: &Arc<CudaMemoryManager>,
    order: Option<Arc<Mutex<Order>>>,
    bytes: usize,
) -> Result<RawBuffer> {
    device.queue.check_usable()?;
    if bytes == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "requested 0 bytes; at least 1 is valid"));
    }
    device.info.check_allocation(bytes as u64)?;
    let allocate = || Memory::allocate_to_export(&device.queue.vulkan, bytes);
    let allocated = match allocate() {
        Err(error) if error.kind() == ErrorKind::OutOfMemory && device.reclaim() => allocate(),
        other => other,
    };
    let shared = Arc::new(Shared { memory: Arc::new(Handled::new(allocated?)), order });
    let imported = ImportedMemory::new(memory.device(), &shared)?;
    // SAFETY: the memory is imported until its owner is dropped, nothing uses it yet, and all work on it is ordered by the table of the
    // buffer and its aliases. The host cannot address it.
    let buffer = unsafe { memory.adopt(imported.address(), bytes, imported) }?;
    device.shared.add(&buffer, &shared);
    Ok(buffer)
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

/// What an import keeps alive.
type Kept = Arc<dyn Any + Send + Sync>;
