//! Devices of Vulkan, beneath wgpu. This folder makes all calls of Vulkan.

mod blocks;
mod clock;
mod copy;
mod costs;
mod create;
mod device;
#[cfg(feature = "cuda")]
mod export;
#[cfg(test)]
#[path = "../../tests/unit/faults.rs"]
pub(crate) mod faults;
mod fill;
mod foreign_signals;
mod gate;
mod handles;
mod memory;
mod open;
mod pieces;
mod properties;
mod queue;
mod record;
mod semaphore;
mod staging;
mod state;
mod storage;
mod store;
mod submissions;
mod timeline;
mod timer;
mod timestamps;
mod types;

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    thread::ThreadId,
};

use ash::vk;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use transload_core::{DeviceId, Error, ErrorKind};

pub(crate) use ash::vk::Buffer as BufferHandle;
use blocks::Blocks;
pub use create::create_shared_device;
#[cfg(feature = "cuda")]
pub(crate) use device::as_vulkan;
#[cfg(feature = "cuda")]
pub(crate) use export::Descriptor;
#[cfg(feature = "cuda")]
pub(crate) use foreign_signals::ForeignSignal;
pub(crate) use gate::Waits;
pub(crate) use handles::Handled;
pub(crate) use memory::Memory;
pub(crate) use open::{adopt, find_loader, open, uuid};
use properties::Properties;
#[cfg(feature = "cuda")]
pub(crate) use queue::WgpuQueue;
pub(crate) use semaphore::Semaphore;
pub(crate) use state::DeviceState;
#[cfg(feature = "cuda")]
pub(crate) use storage::{SharedStorage, memory_of};
pub(crate) use submissions::Submissions;
#[cfg(feature = "cuda")]
pub(crate) use {copy::perform, costs::BY_COPIER, state::Line, timer::Timer, timestamps::Interval};

/// A queue with its family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct VulkanQueue {
    raw: vk::Queue,
    family: u32,
}

/// A device: the Vulkan handles that wgpu opened, and wgpu's own handles, which keep them valid.
pub(crate) struct Vulkan {
    pub(crate) id: DeviceId,
    raw: ash::Device,
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    /// wgpu's queue.
    queue: VulkanQueue,
    /// What copies beside it: queues of a family that does nothing else, or, without such a family, wgpu's. None on a foreign device.
    pub(crate) copy_queues: Vec<VulkanQueue>,
    /// Whether all submissions to wgpu's queue go through its [gate]. Otherwise they are left to wgpu.
    pub(crate) is_locked: bool,
    /// Whether others submit to wgpu's queue, too: it is a framework's.
    pub(crate) is_shared: bool,
    memory: vk::PhysicalDeviceMemoryProperties,
    /// Memory that small allocations share.
    pub(crate) blocks: Blocks,
    /// Whether its memory is the host's.
    is_host: bool,
    /// Whether all its memory is mapped for the host.
    pub(crate) maps_device: bool,
    /// The types of its memory to which the host stores short uploads, a bit each: none of a device of others.
    stored_types: u32,
    /// Whether the driver tells how much memory is free.
    has_budget: bool,
    /// Whether other APIs can import its timeline semaphores.
    pub(crate) exports_semaphores: bool,
    /// The largest buffer whose lists of pieces a shader copies.
    largest_bound: u64,
    /// The unit of the queue's timestamps, if they have 64 bits.
    pub(crate) nanoseconds_per_tick: Option<f64>,
    /// How the host reads the clock of its timestamps, if it can.
    calibrated: Option<ash::ext::calibrated_timestamps::Device>,
    /// Whether wgpu lost the device. Not known of devices of others.
    wgpu_lost: Arc<AtomicBool>,
    /// The thread on which wgpu submits, under the lock of its queue. It may call callbacks of its user there.
    wgpu_thread: Mutex<Option<ThreadId>>,
    /// Why the device was lost, by any of its queues.
    lost: OnceLock<Error>,
    /// What another API signals.
    foreign_signals: foreign_signals::ForeignSignals,
    /// Whether work may run that cannot be waited for: nothing is freed then.
    may_run: AtomicBool,
    /// The same Vulkan queue. Of our own device only [`Submissions`] knows the order: it is not handed out.
    wgpu_queue: wgpu::Queue,
    /// Dropped after everything above.
    wgpu_device: wgpu::Device,
}

impl Vulkan {
    /// Returns whether wgpu's queue copies lists of short pieces by a shader. That of a foreign device does not.
    fn has_piece_shader(&self) -> bool {
        self.is_locked && self.largest_bound > 0
    }

    /// Returns the families of all queues.
    fn families(&self) -> SmallVec<[u32; 2]> {
        let mut families: SmallVec<[u32; 2]> = smallvec![self.queue.family];
        families.extend(self.copy_queues.iter().map(|queue| queue.family));
        families.dedup();
        families
    }
}

/// Returns the error of a call of Vulkan.
fn error_of(device: impl fmt::Display, what: &str, result: vk::Result) -> Error {
    let kind = match result {
        vk::Result::ERROR_DEVICE_LOST => ErrorKind::DeviceLost,
        vk::Result::ERROR_OUT_OF_HOST_MEMORY
        | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
        | vk::Result::ERROR_TOO_MANY_OBJECTS => ErrorKind::OutOfMemory,
        _ => ErrorKind::Device,
    };
    Error::caused_by(kind, format!("{device}: {what} failed"), result)
}
