//! Devices of any API, by wgpu's own interface alone: OpenGL, DX12 and Metal, and Vulkan for tests.
//!
//! wgpu copies whole words between two buffers. What that cannot do, such as a copy within a buffer or the bytes of a word that belong
//! to a range, a shader does (`kernel`).

mod copy;
mod kernel;
mod open;
mod queue;
mod staging;
mod storage;
mod submissions;
mod timeline;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use transload_core::{
    CostModel, DeviceId, DeviceInfo, Error, ErrorKind, Fence, MemoryInfo, MemoryKind, MemoryShortage,
    PathCost, Place, Queue, RawBuffer, Reclaimer, ResourceCounts, Result, SinkSlot, StreamPriority,
    TransferMethod, TransferPath, events::report, host_memory,
};

pub(crate) use open::{adopt, open};
use submissions::Submissions;

use self::{
    copy::needs_kernel,
    kernel::Kernel,
    queue::PortableQueue,
    staging::StagingPool,
    storage::{Counters, PortableStorage},
};
use crate::api::{ApiDevice, Submitted, read};

/// The kinds of host memory that a queue copies.
const HOST_KINDS: [MemoryKind; 3] = [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped];

/// Bytes that need no look at what is free.
const LITTLE: u64 = 16 << 20;

/// What buffers are used for.
const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// A device: its queue, its memory and its counts.
pub(crate) struct DeviceState {
    info: DeviceInfo,
    queue: Arc<Submissions>,
    staging: StagingPool,
    kernel: OnceLock<Kernel>,
    counters: Arc<Counters>,
    leases: AtomicU64,
    reclaimer: Arc<Reclaimer>,
    /// Whether wgpu does not see that memory is short. OpenGL's copies from and to such a buffer do nothing.
    hides_shortage: bool,
    /// Whether its memory is the host's.
    is_host: bool,
    /// Whether a drain has returned the loss of the device.
    loss_reported: AtomicBool,
}

impl DeviceState {
    fn id(&self) -> DeviceId {
        self.info.id
    }

    /// Returns whether a queue copies between two places: within the device, or between it and the host.
    fn can_copy(&self, src: Place, dst: Place) -> bool {
        let is_here = |place: Place| place == Place::new(self.id(), MemoryKind::Device);
        let is_host = |place: Place| place.device.is_cpu() && HOST_KINDS.contains(&place.kind);
        (is_here(src) && (is_here(dst) || is_host(dst))) || (is_host(src) && is_here(dst))
    }

    /// Returns the storage of memory of this device.
    fn storage<'a>(&self, buffer: &'a RawBuffer) -> Option<&'a PortableStorage> {
        let storage = buffer.storage()?.as_any().downcast_ref::<PortableStorage>()?;
        Some(storage).filter(|storage| storage.is_of(&self.counters))
    }

    /// Returns the kernel, to write to a buffer.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a framework's buffer that shaders cannot use; wgpu's.
    fn kernel(&self, storage: &PortableStorage) -> Result<&Kernel> {
        check_shaders(storage)?;
        if let Some(kernel) = self.kernel.get() {
            return Ok(kernel);
        }
        let made = Kernel::new(&self.queue)?;
        Ok(self.kernel.get_or_init(|| made))
    }

    fn try_allocate(&self, bytes: usize) -> Result<PortableStorage> {
        let size = (bytes as u64).next_multiple_of(4);
        // A processor's allocation may succeed until its pages are used. What is free is not read for little: that takes 30 µs.
        let free =
            (self.is_host && size > LITTLE).then(host_memory).and_then(Result::ok).map(|host| host.free);
        if free.is_some_and(|free| size > free) {
            return Err(self.out_of_memory(bytes, free));
        }
        let descriptor =
            wgpu::BufferDescriptor { label: None, size, usage: USAGE, mapped_at_creation: false };
        let made = self.queue.captured(|| self.queue.device.create_buffer(&descriptor));
        self.queue.check_alive()?;
        let buffer = made.map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory => {
                let text = format!("wgpu has no memory on {}: {error}", self.id());
                Error::caused_by(ErrorKind::OutOfMemory, text, self.out_of_memory(bytes, free))
            }
            _ => error,
        })?;
        let storage = PortableStorage::new(buffer, bytes, &self.counters);
        if self.hides_shortage && !self.holds_bytes(&storage.buffer)? {
            return Err(self.out_of_memory(bytes, free));
        }
        Ok(storage)
    }

    /// Returns whether the last word of a buffer holds what is written to it.
    fn holds_bytes(&self, buffer: &wgpu::Buffer) -> Result<bool> {
        const WORD: [u8; 4] = *b"here";
        let (queue, last) = (&self.queue, buffer.size() - 4);
        queue.refuse_callback()?;
        let mut download = self.staging.download(queue, &self.counters)?;
        let commands = queue.captured(|| {
            let mut encoder = queue.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(buffer, last, download.buffer(), 0, 4);
            encoder.finish()
        })?;
        let mut point = 0;
        queue.submit(vec![commands], |queue| queue.write_buffer(buffer, last, &WORD), |at| point = at)?;
        download.map_after(point);
        let mut holds = false;
        download.read(queue, |view| holds = view.get(..4) == Some(&WORD))?;
        self.staging.put_download(download);
        Ok(holds)
    }

    fn out_of_memory(&self, bytes: usize, free: Option<u64>) -> Error {
        let shortage = MemoryShortage { requested: bytes as u64, free, total: None };
        Error::out_of_memory(Place::new(self.id(), MemoryKind::Device), shortage)
    }

    /// Frees memory that is only kept or pending free. Returns whether any was.
    fn reclaim(&self) -> bool {
        let before = self.counters.bytes.load(Ordering::Relaxed);
        self.staging.release();
        let _of_others = self.reclaimer.drain_where(|fence| fence.timeline().device() == self.id());
        // wgpu frees what is unused when it is polled.
        self.queue.refresh();
        self.counters.bytes.load(Ordering::Relaxed) < before
    }
}

/// # Errors
/// [`ErrorKind::Unsupported`] for a framework's buffer that shaders cannot write.
fn check_shaders(storage: &PortableStorage) -> Result<()> {
    if storage.buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
        return Ok(());
    }
    let text = "fills, copies within a buffer, and ranges that are not of whole words need a buffer with the usage STORAGE";
    Err(Error::new(ErrorKind::Unsupported, text))
}

impl ApiDevice for DeviceState {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.queue.check_usable()?;
        if kind != MemoryKind::Device {
            let text = format!("{} has no {kind} memory; it has device memory", self.id());
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "requested 0 bytes; at least 1 is valid"));
        }
        self.info.check_allocation(bytes as u64)?;
        self.reclaimer.sweep();
        let storage = match self.try_allocate(bytes) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && self.reclaim() => {
                self.try_allocate(bytes).inspect(|_| {
                    let place = Place::new(self.id(), MemoryKind::Device);
                    report::allocation_retried(place, bytes as u64, "dropped buffers were freed");
                })?
            }
            other => other?,
        };
        report::emit_deferred();
        Ok(RawBuffer::new(Box::new(storage), &self.reclaimer))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let text = format!("{}: wgpu does not tell how much memory is free", self.id());
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        Self::can_copy(self, src, dst)
    }

    fn checks_copies(&self) -> bool {
        true
    }

    /// Only shaders write parts of words.
    fn check_copy(&self, src: Option<&RawBuffer>, dst: Option<&RawBuffer>) -> Result<()> {
        let from = src.and_then(|src| Some((self.storage(src)?, src.offset() as u64)));
        match dst.and_then(|dst| Some((dst, self.storage(dst)?))) {
            Some((dst, storage)) if needs_kernel(from, (storage, dst.offset() as u64), dst.len() as u64) => {
                check_shaders(storage)
            }
            _ => Ok(()),
        }
    }

    fn queue(self: Arc<Self>, priority: StreamPriority) -> Result<Arc<dyn Queue>> {
        self.queue.check_usable()?;
        Ok(Arc::new(PortableQueue::new(self, priority)))
    }

    fn leases(&self) -> &AtomicU64 {
        &self.leases
    }

    /// Not measured: they order methods until calibration measures them.
    fn default_costs(&self) -> Vec<PathCost> {
        let here = Place::new(self.id(), MemoryKind::Device);
        let cost = |src, dst, micros, gigabytes: f64| PathCost {
            path: TransferPath::new(src, dst),
            method: TransferMethod::DirectCopy,
            model: CostModel::linear(Duration::from_micros(micros), gigabytes * 1e9),
        };
        let of_host = HOST_KINDS.into_iter().flat_map(|kind| {
            let host = Place::new(DeviceId::Cpu, kind);
            [cost(host, here, 100, 5.0), cost(here, host, 100, 5.0)]
        });
        of_host.chain([cost(here, here, 60, 100.0)]).collect()
    }

    fn add_to(&self, counts: &mut ResourceCounts) {
        counts.allocations += self.counters.allocations.load(Ordering::Acquire);
        counts.bytes += self.counters.bytes.load(Ordering::Acquire);
        counts.cached_bytes += self.staging.bytes();
        counts.pending_free += self.reclaimer.len() as u64;
        counts.leases += self.leases.load(Ordering::Relaxed);
    }

    fn sink(&self) -> Result<&SinkSlot> {
        let text = format!("{}: its work is not measured, as that of Vulkan devices is", self.id());
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    fn drain(&self) -> Result<()> {
        self.queue.block_until(self.queue.enqueued());
        self.staging.release();
        let outcome = self.queue.check_usable().and(self.reclaimer.drain());
        // Also after a loss.
        let freed = self.reclaimer.drain();
        match outcome.and(freed) {
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                if self.loss_reported.swap(true, Ordering::Relaxed) { Ok(()) } else { Err(error) }
            }
            other => other,
        }
    }

    fn wgpu_device(&self) -> &wgpu::Device {
        &self.queue.device
    }

    fn wgpu_buffer(&self, buffer: &RawBuffer) -> Option<Result<wgpu::Buffer>> {
        self.storage(buffer).map(|storage| Ok(storage.buffer.clone()))
    }

    fn adopt(&self, buffer: &wgpu::Buffer) -> Result<RawBuffer> {
        let bytes = usize::try_from(buffer.size()).unwrap_or(usize::MAX);
        self.refuse_callback()?;
        // wgpu refuses one that is destroyed or mapped.
        let commands = self.queue.captured(|| read(&self.queue.device, buffer, 4))?;
        self.queue.submit(vec![commands], |_| (), drop)?;
        let storage = PortableStorage::new(buffer.clone(), bytes, &self.counters);
        Ok(RawBuffer::new(Box::new(storage), &self.reclaimer))
    }

    fn refuse_callback(&self) -> Result<()> {
        self.queue.refuse_callback()
    }

    /// There is no other queue.
    fn submit(&self, commands: Submitted, _: &[Fence], commit: Box<dyn FnOnce(u64) + '_>) -> Result<()> {
        self.queue.submit(commands.unwrap_or_default(), |_| (), commit)
    }
}
