//! What the backend asks of its devices: those of Vulkan, which it uses beneath wgpu, and those of other APIs.

use std::{
    any::Any,
    sync::{Arc, atomic::AtomicU64},
};

use transload_core::{
    DeviceId, DeviceInfo, Error, ErrorKind, Fence, MemoryInfo, MemoryKind, PathCost, Place, Queue, RawBuffer,
    ResourceCounts, Result, SinkSlot, StagingHints, StreamPriority, catch_panic, mutant,
};
use wgpu::ErrorFilter;

/// Most bytes that are read at once.
const READ: u64 = 4 << 20;

/// Command buffers to submit; with none, only what comes before is waited for.
pub(crate) type Submitted = Option<Vec<wgpu::CommandBuffer>>;

/// A device over one API.
pub(crate) trait ApiDevice: Any + Send + Sync {
    fn info(&self) -> &DeviceInfo;

    /// Allocates a buffer. If memory is short, frees what is only kept, waits for dropped memory in flight, and tries again.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer>;

    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Returns whether a queue copies between two places.
    fn can_copy(&self, src: Place, dst: Place) -> bool;

    /// See [`Backend::checks_copies`](transload_core::Backend::checks_copies), for its device memory.
    fn checks_copies(&self) -> bool {
        false
    }

    /// See [`Backend::check_copy`](transload_core::Backend::check_copy).
    fn check_copy(&self, src: Option<&RawBuffer>, dst: Option<&RawBuffer>) -> Result<()> {
        let _ = (src, dst);
        Ok(())
    }

    /// Returns whether the host's threads copy between two places, at least one of which is its memory: the device's if it is mapped.
    fn is_mapped_between(&self, src: Place, dst: Place) -> bool {
        let _ = (src, dst);
        false
    }

    /// Returns the device's queue, which is not counted as leased.
    ///
    /// # Errors
    /// The loss of the device.
    fn queue(self: Arc<Self>, priority: StreamPriority) -> Result<Arc<dyn Queue>>;

    /// Returns the queue by which a copy of high priority comes soonest.
    ///
    /// # Errors
    /// The loss of the device.
    fn urgent_queue(self: Arc<Self>) -> Result<Arc<dyn Queue>> {
        self.queue(StreamPriority::High)
    }

    /// Returns a queue for transfers in parts, beside which others go on.
    ///
    /// # Errors
    /// The loss of the device.
    fn reserved_queue(self: Arc<Self>, priority: StreamPriority) -> Result<Arc<dyn Queue>> {
        self.queue(priority)
    }

    /// Returns how transfers between the host and the device are divided.
    fn staging_hints(&self) -> StagingHints {
        StagingHints::default()
    }

    /// Returns the number of leased queues.
    fn leases(&self) -> &AtomicU64;

    fn default_costs(&self) -> Vec<PathCost>;

    /// Adds the counts of what is alive.
    fn add_to(&self, counts: &mut ResourceCounts);

    /// Returns the bytes of device memory that were allocated, if they are counted apart.
    fn device_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the place for a profiler's sink.
    ///
    /// # Errors
    /// `Unsupported` if its work cannot be measured.
    fn sink(&self) -> Result<&SinkSlot>;

    /// Waits for all work, then frees what is kept. The loss of the device is returned once.
    fn drain(&self) -> Result<()>;

    fn wgpu_device(&self) -> &wgpu::Device;

    /// Returns wgpu's handle of memory of this device; `None` of other memory.
    fn wgpu_buffer(&self, buffer: &RawBuffer) -> Option<Result<wgpu::Buffer>>;

    /// Returns the device's handle of memory that another API's device has in common with it; `None` of other memory.
    fn alias(&self, buffer: &RawBuffer) -> Option<Result<RawBuffer>> {
        let _ = buffer;
        None
    }

    /// Takes a buffer of a framework, which can be copied.
    fn adopt(&self, buffer: &wgpu::Buffer) -> Result<RawBuffer>;

    /// # Errors
    /// `Busy` in a callback of wgpu, while wgpu submits.
    fn refuse_callback(&self) -> Result<()>;

    /// Submits command buffers, after everything submitted before, and after fences for which [its queue](Self::queue) can wait. Calls `commit` with their point, once, as soon as they can no longer
    /// be refused by this crate: wgpu calls callbacks of its user, which may need what the caller has claimed.
    ///
    /// # Errors
    /// wgpu's; the loss of the device. The point is reached then, too.
    fn submit(&self, commands: Submitted, after: &[Fence], commit: Box<dyn FnOnce(u64) + '_>) -> Result<()>;
}

/// Returns commands that read so many bytes of a buffer, a multiple of 4.
pub(crate) fn read(device: &wgpu::Device, buffer: &wgpu::Buffer, bytes: u64) -> wgpu::CommandBuffer {
    let part = bytes.min(READ);
    let to = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: part,
        usage: wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    for offset in (0..bytes).step_by(READ as usize) {
        encoder.copy_buffer_to_buffer(buffer, offset, &to, 0, part.min(bytes - offset));
    }
    encoder.finish()
}

/// Calls wgpu, none of whose errors reaches the handler of a device's user, and returns the first one of them beside the value.
///
/// # Errors
/// [`ErrorKind::Interrupted`] if it panics.
pub(crate) fn in_scopes<T>(
    device: &wgpu::Device,
    call: impl FnOnce() -> T,
) -> Result<(T, Option<wgpu::Error>)> {
    catch_panic(|| {
        // Dropped in the reverse order, also by a panic.
        let internal = device.push_error_scope(ErrorFilter::Internal);
        let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
        let invalid = device.push_error_scope(ErrorFilter::Validation);
        let value = call();
        let mut error = pollster::block_on(invalid.pop());
        error = pollster::block_on(memory.pop()).or(error);
        (value, pollster::block_on(internal.pop()).or(error))
    })
}

/// Returns what a panic of wgpu's submission says, if it is that wgpu does not know the commands: those of a device of another instance. It has
/// touched nothing then.
pub(crate) fn unknown_commands(device: DeviceId, panicked: &Error) -> Option<Error> {
    let text = panicked.to_string();
    let is_unknown = text.contains("Cannot get") && text.contains("CommandBufferId");
    let text = || format!("the command buffers are not those of an encoder of {device}");
    (is_unknown && !mutant!("wgpu/unknown-commands"))
        .then(|| Error::caused_by(ErrorKind::InvalidArgument, text(), panicked.clone()))
}

/// Returns what an error of wgpu says of a call.
pub(crate) fn refused(device: DeviceId, error: wgpu::Error) -> Error {
    let kind = match error {
        wgpu::Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
        wgpu::Error::Validation { .. } => ErrorKind::InvalidArgument,
        wgpu::Error::Internal { .. } => ErrorKind::Device,
    };
    Error::caused_by(kind, format!("wgpu refused a call for {device}"), error)
}
