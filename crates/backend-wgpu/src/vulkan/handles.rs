//! wgpu's own handles over this device: buffers, and submissions of command buffers in the order of our queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use ash::vk;
use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Error, ErrorKind, Result, catch_panic, events::report, mutant};
use wgpu::hal;

use super::{
    Memory, Submissions, Vulkan, error_of,
    gate::{self, Waits},
};
use crate::api::{in_scopes, refused, unknown_commands};

impl Vulkan {
    pub(crate) fn wgpu_device(&self) -> &wgpu::Device {
        &self.wgpu_device
    }

    /// Calls wgpu, and returns the first error that it reports, of which a framework's handler hears nothing.
    ///
    /// # Errors
    /// wgpu's; [`ErrorKind::Interrupted`] if it panics.
    pub(super) fn captured<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        let (value, error) = in_scopes(&self.wgpu_device, call)?;
        error.map_or(Ok(value), |error| Err(refused(self.id, error)))
    }
}

/// Memory with wgpu's handle of it. There is one: wgpu orders the uses of each handle apart from those of others.
pub(crate) struct Handled {
    memory: Arc<Memory>,
    /// Keeps the memory, not this.
    handle: Mutex<Option<wgpu::Buffer>>,
}

impl Handled {
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory: Arc::new(memory), handle: Mutex::default() }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the handle, which keeps the memory alive: a new one if there is none, or its user has destroyed it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if wgpu allows no such buffer; wgpu's.
    pub(super) fn wgpu_buffer(&self) -> Result<wgpu::Buffer> {
        if let Some(buffer) = &self.memory.adopted {
            return Ok(buffer.clone());
        }
        let mut handle = self.handle.lock();
        let usable = handle.take().filter(|handle| !is_destroyed(handle) && !mutant!("wgpu/one-handle"));
        let buffer = usable.map_or_else(|| self.new_handle(), Ok)?;
        *handle = Some(buffer.clone());
        Ok(buffer)
    }

    fn new_handle(&self) -> Result<wgpu::Buffer> {
        let (size, vulkan) = (self.memory.size(), &self.memory.vulkan);
        let most = vulkan.wgpu_device.limits().max_buffer_size;
        if size > most {
            let text = format!("a wgpu buffer of {} has at most {most} bytes, not {size}", vulkan.id);
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        let kept = Arc::clone(&self.memory);
        // SAFETY: the buffer lives as long as what is kept, which wgpu drops once it does not use the buffer any more.
        let lower = unsafe {
            hal::vulkan::Buffer::from_raw_externally_owned(self.memory.buffer(), Box::new(move || drop(kept)))
        };
        let descriptor = wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        };
        // SAFETY: it is a buffer of this device with this size, which is not 0, and these usages. Its content is what the driver gave:
        // wgpu never shows it to the host, and shaders may read any bytes.
        let make =
            || unsafe { vulkan.wgpu_device.create_buffer_from_hal::<hal::api::Vulkan>(lower, &descriptor) };
        vulkan.captured(make)
    }
}

/// Returns whether wgpu has destroyed a buffer, which it does also if it loses the device.
pub(super) fn is_destroyed(buffer: &wgpu::Buffer) -> bool {
    // SAFETY: nothing is destroyed.
    unsafe { buffer.as_hal::<hal::api::Vulkan>() }.is_none()
}

impl Vulkan {
    /// Returns commands after which the host sees what those before them wrote to mapped memory. The end of a submission alone does not say so.
    fn show_to_host(&self) -> wgpu::CommandBuffer {
        let mut encoder = self.wgpu_device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let record = |encoder: Option<&mut hal::vulkan::CommandEncoder>| {
            let Some(encoder) = encoder else { return };
            let written = vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
                .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE);
            let (all, host) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::PipelineStageFlags::HOST);
            // SAFETY: wgpu has begun to record the commands, and records nothing else.
            unsafe {
                let (commands, none) = (encoder.raw_handle(), vk::DependencyFlags::empty());
                self.raw.cmd_pipeline_barrier(commands, all, host, none, &[written], &[], &[]);
            }
        };
        // SAFETY: nothing is destroyed or ended.
        unsafe { encoder.as_hal_mut::<hal::api::Vulkan, _, _>(record) };
        encoder.finish()
    }
}

impl Submissions {
    /// Submits wgpu's command buffers, after everything submitted before. Calls `commit` with their point first: wgpu calls callbacks
    /// of its user, which may need what the caller has claimed. The device waits for `copied`, what copiers have submitted, and for
    /// `signal`; the semaphores are this device's and live until the point is reached.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock), and of a call of wgpu, before `commit`; after it [`ErrorKind::InvalidArgument`] with wgpu's reason if it refuses them, or
    /// the loss of the device. The point is reached then, too.
    pub(crate) fn submit_wgpu(
        &self,
        mut buffers: Vec<wgpu::CommandBuffer>,
        (copied, signal): (Waits, Option<(vk::Semaphore, u64)>),
        commit: impl FnOnce(u64),
    ) -> Result<()> {
        let queue = &self.vulkan.wgpu_queue;
        let after: Waits = copied.iter().copied().chain(signal).collect();
        if (self.vulkan.maps_device || self.vulkan.stores()) && self.vulkan.is_locked {
            buffers.push(self.vulkan.captured(|| self.vulkan.show_to_host())?);
        }
        let mut state = self.lock()?;
        *self.vulkan.wgpu_thread.lock() = Some(thread::current().id());
        let point = self.enqueued.load(Ordering::Relaxed) + 1;
        // Before the submission: a fence of the point may be waited for as soon as it is committed.
        self.enqueued.store(point, Ordering::Release);
        commit(point);
        let (device, is_locked) = (&self.vulkan.wgpu_device, self.vulkan.is_locked);
        // Not seen by the queue of a foreign device.
        let before = gate::stage(self.queue.raw, after.clone(), (self.semaphore.raw, point));
        // A framework's handler of errors may panic.
        let submitted = catch_panic(|| {
            let errors = device.push_error_scope(wgpu::ErrorFilter::Validation);
            queue.submit(buffers);
            // wgpu drops the commands silently if it has given the device up. The gate sees that.
            let is_lost = !is_locked && !accepts_commands(device);
            (pollster::block_on(errors.pop()), is_lost)
        });
        let passed = gate::unstage(before);
        let (reason, is_lost, panicked) = match submitted {
            Ok((reason, is_lost)) => (reason.map(|reason| refused(self.vulkan.id, reason)), is_lost, None),
            Err(panicked) => match unknown_commands(self.vulkan.id, &panicked) {
                Some(unknown) => (Some(unknown), false, None),
                None => (None, true, Some(panicked)),
            },
        };
        let is_refused = if is_locked { passed.is_none() } else { reason.is_some() };
        let outcome = if is_lost || self.vulkan.wgpu_lost.load(Ordering::Acquire) {
            let result = vk::Result::ERROR_DEVICE_LOST;
            Err(panicked.unwrap_or_else(|| error_of(self.vulkan.id, "wgpu's submit", result)))
        } else if let Some(result) = passed {
            result.result().map_err(|result| error_of(self.vulkan.id, "vkQueueSubmit", result))
        } else {
            self.check_usable().and_then(|()| self.submit_nothing(&mut state, point, &after))
        };
        match outcome {
            Ok(()) => self.submitted.store(point, Ordering::Release),
            Err(error) => {
                self.end_copies(&copied);
                self.lose(error);
            }
        }
        *self.vulkan.wgpu_thread.lock() = None;
        drop(state);
        // Not the loss by another queue: these commands run.
        self.outcome(point)?;
        let text = || format!("wgpu refused the command buffers for {}", self.vulkan.id);
        match reason {
            Some(reason) if is_refused => Err(Error::caused_by(ErrorKind::InvalidArgument, text(), reason)),
            None if is_refused => Err(Error::new(ErrorKind::InvalidArgument, text())),
            Some(reason) => {
                report::call_failed("a callback during a submission made an error", self.vulkan.id, &reason);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Waits for copies whose place in the order a submission takes that is lost: they use memory that may be freed once its point is reached. If that
    /// fails the device stays.
    fn end_copies(&self, copied: &[(vk::Semaphore, u64)]) {
        if copied.is_empty() || mutant!("wgpu/refused-waits-for-copies") {
            return;
        }
        let (semaphores, values): (SmallVec<[_; 3]>, SmallVec<[_; 3]>) = copied.iter().copied().unzip();
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphores are alive, and of the timeline kind. The copies were submitted, and wait for no submission of this queue.
        let ended = unsafe { self.vulkan.raw.wait_semaphores(&wait, u64::MAX) };
        if !matches!(ended, Ok(()) | Err(vk::Result::ERROR_DEVICE_LOST)) {
            self.keep_device();
        }
    }
}

/// Returns whether wgpu records commands for a device, which it does not after it has lost it.
fn accepts_commands(device: &wgpu::Device) -> bool {
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    // SAFETY: nothing is done with it.
    unsafe { encoder.as_hal_mut::<hal::api::Vulkan, _, _>(|lower| lower.is_some()) }
}

/// A flag that wgpu's loss of a device sets, but not the destruction that its user asked for.
pub(super) fn lost_flag(device: &wgpu::Device) -> Arc<AtomicBool> {
    let flag = Arc::<AtomicBool>::default();
    let theirs = Arc::clone(&flag);
    device.set_device_lost_callback(move |reason, _| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            theirs.store(true, Ordering::Release);
        }
    });
    flag
}

#[cfg(test)]
#[path = "../../tests/unit/handles.rs"]
mod tests;
