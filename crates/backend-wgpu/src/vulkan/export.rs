//! Memory and semaphores that another API of the same GPU imports, by file descriptors. `src/cuda` says what that relies on.

use std::sync::Arc;

use ash::{khr, vk};
use transload_core::{Error, ErrorKind, Result};
use wgpu::hal;

use super::{
    Memory, Semaphore, Submissions, Vulkan, error_of,
    memory::{OPAQUE, Source, USAGE},
};

/// A file descriptor that nobody has closed, for the API that imports it.
pub(crate) struct Descriptor(pub(crate) i32);

impl Vulkan {
    /// Checks that buffers can be exported. Some drivers export images only.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`].
    pub(crate) fn check_export(&self) -> Result<()> {
        let info = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(OPAQUE);
        let mut found = vk::ExternalBufferProperties::default();
        // SAFETY: the physical device is one of the instance, with Vulkan 1.2, which has the call and both structures.
        unsafe {
            self.instance.get_physical_device_external_buffer_properties(self.physical, &info, &mut found);
        }
        let found = found.external_memory_properties.external_memory_features;
        let exports = self.wgpu_device.features().contains(wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD)
            && found.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE);
        if exports { Ok(()) } else { Err(self.cannot_export("memory", khr::external_memory_fd::NAME)) }
    }

    fn cannot_export(&self, what: &str, extension: &std::ffi::CStr) -> Error {
        let name = extension.to_string_lossy();
        let text =
            format!("{} exports no {what}: its driver lacks {name}, or has it for other uses", self.id);
        Error::new(ErrorKind::Unsupported, text)
    }
}

impl Memory {
    /// Allocates device memory that other APIs can import.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate); [`ErrorKind::Unsupported`] if the device cannot export memory.
    pub(crate) fn allocate_to_export(vulkan: &Arc<Vulkan>, bytes: usize) -> Result<Self> {
        vulkan.check_export()?;
        Self::allocate_from(vulkan, transload_core::MemoryKind::Device, bytes, Source::Exported)
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
}

impl Vulkan {
    /// Returns commands that take exported buffers over from the other API, before commands that use them, and others that hand them back.
    ///
    /// # Errors
    /// wgpu's.
    ///
    /// # Safety
    /// * The buffers are this device's, exported, each named once, and stay alive until the commands are complete.
    /// * Both are submitted together. From the first to the last of them nothing else writes what the commands use, nor uses what they write.
    pub(crate) unsafe fn hand_over(&self, buffers: &[&Memory]) -> Result<[wgpu::CommandBuffer; 2]> {
        let record = |takes| {
            let whole = buffers.iter().map(|memory| (memory.buffer(), 0..memory.size()));
            let barriers = self.hand_over_ranges(whole, takes);
            let mut encoder =
                self.wgpu_device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let record = |encoder: Option<&mut hal::vulkan::CommandEncoder>| {
                let Some(encoder) = encoder else { return };
                let (stages, flags) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::DependencyFlags::empty());
                // SAFETY: wgpu has begun to record the commands, and records nothing else; the buffers are this device's.
                unsafe {
                    let commands = encoder.raw_handle();
                    self.raw.cmd_pipeline_barrier(commands, stages, stages, flags, &[], &barriers, &[]);
                }
            };
            // SAFETY: nothing is destroyed or ended.
            unsafe { encoder.as_hal_mut::<hal::api::Vulkan, _, _>(record) };
            encoder.finish()
        };
        self.captured(|| [true, false].map(record))
    }
}
