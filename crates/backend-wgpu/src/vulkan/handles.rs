//! wgpu's own handles over this device: buffers, and submissions of command buffers in the order of our queue.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{Error, ErrorKind, RawBuffer, Result, catch_panic};
use wgpu::hal;

use super::{Memory, Submissions, Vulkan, error_of};

impl Vulkan {
    pub(crate) fn wgpu_device(&self) -> &wgpu::Device {
        &self.wgpu_device
    }

    /// Returns wgpu's handle of an allocation, which keeps it alive.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if wgpu allows no such buffer.
    pub(crate) fn wgpu_buffer(&self, memory: &Memory, owner: RawBuffer) -> Result<wgpu::Buffer> {
        let size = memory.size();
        let most = self.wgpu_device.limits().max_buffer_size;
        if size > most {
            let text = format!("a wgpu buffer of {} has at most {most} bytes, not {size}", self.id);
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        // SAFETY: the handle lives as long as the owner, which wgpu keeps until it does not use the buffer any more.
        let lower = unsafe {
            hal::vulkan::Buffer::from_raw_externally_owned(memory.buffer(), Box::new(move || drop(owner)))
        };
        let descriptor = wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        };
        // SAFETY: it is a buffer of this device with this size, which is not 0, and these usages. Its content is what the driver gave:
        // wgpu never shows it to the host, and shaders may read any bytes.
        Ok(unsafe { self.wgpu_device.create_buffer_from_hal::<hal::api::Vulkan>(lower, &descriptor) })
    }
}

impl Submissions {
    /// Submits wgpu's command buffers, after everything submitted before. Returns their point.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if wgpu refuses them, which it reports as an event; the loss of the device.
    pub(crate) fn submit_wgpu(&self, buffers: impl IntoIterator<Item = wgpu::CommandBuffer>) -> Result<u64> {
        self.check_usable()?;
        let queue = &self.vulkan.wgpu_queue;
        let state = self.state.lock();
        let point = self.enqueued.load(Ordering::Relaxed) + 1;
        // SAFETY: nothing is destroyed. The semaphore outlives all submissions: a drop waits for the last point.
        let lower = || unsafe { queue.as_hal::<hal::api::Vulkan>() };
        if let Some(lower) = lower() {
            lower.add_signal_semaphore(self.semaphore.raw, Some(point));
        }
        let submitted = catch_panic(|| queue.submit(buffers));
        let is_left = lower().is_none_or(|lower| lower.remove_signal_semaphore(self.semaphore.raw));
        if submitted.is_err() || self.vulkan.wgpu_lost.load(Ordering::Acquire) {
            let cause = submitted.err();
            let error = error_of(self.vulkan.id, "wgpu's submit", ash::vk::Result::ERROR_DEVICE_LOST);
            self.lose(&state, cause.unwrap_or(error));
            return self.check_usable().map(|()| point);
        }
        if is_left {
            let text =
                format!("wgpu refused the command buffers for {}; an event has its reason", self.vulkan.id);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.enqueued.store(point, Ordering::Release);
        Ok(point)
    }
}

/// A flag that wgpu's loss of a device sets, but not the destruction that its user asked for.
pub(super) fn lost_flag(device: &wgpu::Device) -> Arc<std::sync::atomic::AtomicBool> {
    let flag = Arc::<std::sync::atomic::AtomicBool>::default();
    let theirs = Arc::clone(&flag);
    device.set_device_lost_callback(move |reason, _| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            theirs.store(true, Ordering::Release);
        }
    });
    flag
}
