//! Memory and semaphores that another API of the same GPU imports, by file descriptors.

use std::sync::Arc;

use ash::{khr, vk};
use transload_core::{Error, ErrorKind, Result};

use super::{Command, Memory, Semaphore, Submissions, Vulkan, error_of, submissions::After};

/// A file descriptor that nobody has closed, for the API that imports it.
pub(crate) struct Descriptor(pub(crate) i32);

impl Vulkan {
    fn cannot_export(&self, what: &str, extension: &std::ffi::CStr) -> Error {
        let text = format!("{} exports no {what}: its driver lacks {}", self.id, extension.to_string_lossy());
        Error::new(ErrorKind::Unsupported, text)
    }
}

impl Memory {
    /// Allocates device memory that other APIs can import.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate); [`ErrorKind::Unsupported`] if the device cannot export memory.
    pub(crate) fn allocate_to_export(vulkan: &Arc<Vulkan>, bytes: usize) -> Result<Self> {
        if !vulkan.wgpu_device().features().contains(wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD) {
            return Err(vulkan.cannot_export("memory", khr::external_memory_fd::NAME));
        }
        Self::allocate_for(vulkan, transload_core::MemoryKind::Device, bytes, true)
    }

    /// Returns what names the memory, which is one buffer's, and its bytes.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn export(&self) -> Result<(Descriptor, u64)> {
        let vulkan = &*self.vulkan;
        let functions = khr::external_memory_fd::Device::new(&vulkan.instance, &vulkan.raw);
        let handle = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
        let info = vk::MemoryGetFdInfoKHR::default().memory(self.memory).handle_type(handle);
        // SAFETY: the memory is this device's, was allocated for this kind of descriptor, and the extension is enabled.
        let fd = unsafe { functions.get_memory_fd(&info) };
        let fd = fd.map_err(|result| error_of(vulkan.id, "vkGetMemoryFdKHR", result))?;
        // SAFETY: the buffer is this device's.
        let allocated = unsafe { vulkan.raw.get_buffer_memory_requirements(self.buffer()) }.size;
        Ok((Descriptor(fd), allocated))
    }
}

impl Semaphore {
    /// Returns what names the semaphore.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device cannot export semaphores; the driver's.
    pub(crate) fn export(&self) -> Result<Descriptor> {
        let vulkan = &*self.vulkan;
        if !vulkan.exports_semaphores {
            return Err(vulkan.cannot_export("semaphores", khr::external_semaphore_fd::NAME));
        }
        let functions = khr::external_semaphore_fd::Device::new(&vulkan.instance, &vulkan.raw);
        let handle = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;
        let info = vk::SemaphoreGetFdInfoKHR::default().semaphore(self.raw).handle_type(handle);
        // SAFETY: the semaphore is this device's, was made for this kind of descriptor, and the extension is enabled.
        let fd = unsafe { functions.get_semaphore_fd(&info) };
        fd.map(Descriptor).map_err(|result| error_of(vulkan.id, "vkGetSemaphoreFdKHR", result))
    }
}

impl Submissions {
    /// Returns the semaphore whose value is the last point that is reached.
    pub(crate) fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// Takes exported buffers over from the other API, after that has signalled a value of a semaphore.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    ///
    /// # Safety
    /// * The buffers are this device's, exported, and stay alive until the point is reached.
    /// * The semaphore is, too; it gets the value, once the other API does not use them any more.
    pub(crate) unsafe fn acquire<'a>(
        &self,
        buffers: impl Iterator<Item = &'a Memory>,
        after: After<'_>,
    ) -> Result<u64> {
        let (from, to) = (vk::QUEUE_FAMILY_EXTERNAL, self.vulkan.family);
        let commands: Vec<_> =
            buffers.map(|memory| Command::HandOver { buffer: memory.buffer(), from, to }).collect();
        // SAFETY: the caller's promise; ownership of a whole buffer has no region.
        unsafe { self.submit_after(&commands, after) }
    }

    /// Hands exported buffers over to the other API, which may use them once the point is reached.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    ///
    /// # Safety
    /// * The buffers were [acquired](Self::acquire), and stay alive until the point is reached.
    pub(crate) unsafe fn release<'a>(&self, buffers: impl Iterator<Item = &'a Memory>) -> Result<u64> {
        let (from, to) = (self.vulkan.family, vk::QUEUE_FAMILY_EXTERNAL);
        let commands: Vec<_> =
            buffers.map(|memory| Command::HandOver { buffer: memory.buffer(), from, to }).collect();
        // SAFETY: the caller's promise.
        unsafe { self.submit_after(&commands, None) }
    }

    /// # Safety
    /// * The command buffer is being recorded; `of` is a buffer of this device that was made to be exported.
    pub(super) unsafe fn hand_over(&self, buffer: vk::CommandBuffer, of: vk::Buffer, (from, to): (u32, u32)) {
        let (none, all) =
            (vk::AccessFlags::empty(), vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE);
        let (before, later) = if from == vk::QUEUE_FAMILY_EXTERNAL { (none, all) } else { (all, none) };
        let barrier = [vk::BufferMemoryBarrier::default()
            .src_access_mask(before)
            .dst_access_mask(later)
            .src_queue_family_index(from)
            .dst_queue_family_index(to)
            .buffer(of)
            .size(vk::WHOLE_SIZE)];
        let (stages, flags) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::DependencyFlags::empty());
        // SAFETY: the caller's promise.
        unsafe { self.vulkan.raw.cmd_pipeline_barrier(buffer, stages, stages, flags, &[], &barrier, &[]) };
    }
}
