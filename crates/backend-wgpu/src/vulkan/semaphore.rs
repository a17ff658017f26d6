//! Timeline semaphores, which other APIs can import where the device can export them.

use std::sync::{Arc, atomic::Ordering};

use ash::vk;
use transload_core::Result;

use super::{Vulkan, error_of};

/// A timeline semaphore. Nothing uses it when it is dropped: its owner waits before.
pub(crate) struct Semaphore {
    pub(super) vulkan: Arc<Vulkan>,
    pub(super) raw: vk::Semaphore,
}

impl Semaphore {
    /// # Errors
    /// The driver's.
    pub(crate) fn new(vulkan: &Arc<Vulkan>) -> Result<Self> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        let handles = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;
        let mut export = vk::ExportSemaphoreCreateInfo::default().handle_types(handles);
        let info = if vulkan.exports_semaphores { info.push_next(&mut export) } else { info };
        // SAFETY: the device is valid, wgpu enables timeline semaphores where they exist, as in every Vulkan 1.2, and the extension is
        // enabled if its structure is given.
        let raw = unsafe { vulkan.raw.create_semaphore(&info, None) }
            .map_err(|result| error_of(vulkan.id, "vkCreateSemaphore", result))?;
        Ok(Self { vulkan: Arc::clone(vulkan), raw })
    }
}

impl Semaphore {
    /// Returns whether it is known not to have a value yet.
    pub(super) fn is_before(&self, value: u64) -> bool {
        // SAFETY: the semaphore is alive, and of the timeline kind.
        let known = unsafe { self.vulkan.raw.get_semaphore_counter_value(self.raw) };
        known.is_ok_and(|known| known < value)
    }

    /// Sets a value from the host, which grows by that.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn signal(&self, value: u64) -> Result<()> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.raw).value(value);
        // SAFETY: the semaphore is alive, and of the timeline kind.
        let signalled = unsafe { self.vulkan.raw.signal_semaphore(&info) };
        signalled.map_err(|result| error_of(self.vulkan.id, "vkSignalSemaphore", result))
    }

    /// Returns a value of it, for a submission to wait for.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn at(&self, value: u64) -> (vk::Semaphore, u64) {
        (self.raw, value)
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        if self.vulkan.may_run.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: nothing uses it, by the owner's promise; it is destroyed once, here.
        unsafe { self.vulkan.raw.destroy_semaphore(self.raw, None) };
    }
}
