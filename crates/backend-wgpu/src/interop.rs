//! wgpu's handles, for programs that run shaders on the buffers of this backend.

use std::sync::Arc;

use smallvec::SmallVec;
use transload_core::{
    Access, Claims, DelayedWakes, DeviceId, Error, ErrorKind, Fence, MemoryKind, RawBuffer, Result,
    StreamPriority, merge_uses,
};

use crate::WgpuBackend;

impl WgpuBackend {
    /// Returns wgpu's device, to make shaders, pipelines, bind groups and command encoders with. It has the adapter's limits, and those
    /// of its features that WebGPU has.
    ///
    /// wgpu's queue is not handed out: use [`submit`](Self::submit). A framework that needs it makes the device by
    /// `create_shared_device`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`].
    pub fn device(&self, device: DeviceId) -> Result<&wgpu::Device> {
        Ok(self.device_of(device)?.wgpu_device())
    }

    /// Returns wgpu's handle of the whole allocation of a buffer of device memory, for bind groups: a slice is bound by its
    /// [offset](RawBuffer::offset). Its size is rounded up: to a multiple of 16 on Vulkan, else of 4. Each call
    /// returns the same handle, of which wgpu orders the uses, unless it was destroyed. The memory lives as long as a handle, and is counted; that of
    /// `CudaInterop` is Vulkan's alone once its buffers are dropped, and not counted any more.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for memory that is not device memory of this backend, such as mapped memory, of which
    /// [`mapped_buffer`](Self::mapped_buffer) returns the handle; [`ErrorKind::OutOfRange`] beyond what wgpu allows.
    pub fn buffer(&self, buffer: &RawBuffer) -> Result<wgpu::Buffer> {
        self.handle_of(buffer, MemoryKind::Device)
    }

    /// Like [`buffer`](Self::buffer), but of mapped memory, which the host reads and writes by views.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for memory that is not mapped memory of this backend; [`ErrorKind::OutOfRange`] beyond what wgpu allows.
    ///
    /// # Safety
    /// * While commands that write by the handle run, the host does not use what they write; while others run, it does not write what
    ///   they read. [`submit`](Self::submit) sees to that for the buffers in `uses`: so each submission names this one there, with the
    ///   [`Access`] that its commands have.
    pub unsafe fn mapped_buffer(&self, buffer: &RawBuffer) -> Result<wgpu::Buffer> {
        self.handle_of(buffer, MemoryKind::Mapped)
    }

    /// Returns the handle of memory of this kind.
    fn handle_of(&self, buffer: &RawBuffer, kind: MemoryKind) -> Result<wgpu::Buffer> {
        let mut devices = self.devices.iter().filter(|_| buffer.place().kind == kind);
        match devices.find_map(|device| device.wgpu_buffer(buffer)) {
            Some(handle) => handle,
            None => {
                let text = format!(
                    "{} memory has no handle of wgpu here: `buffer` has those of this backend's device memory, `mapped_buffer` of its \
                     mapped memory",
                    buffer.place()
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// Submits command buffers of [`device`](Self::device)'s encoders, after all conflicting work on the buffers in `uses`, of this and of
    /// other queues, and before all that is submitted later. Does not wait for them. Blocks the calling thread while earlier work of
    /// another backend is not complete, unless it is CUDA's and `CudaInterop` waits on the device, and on some drivers while an earlier submission of wgpu runs.
    /// A submission that uses memory of `CudaInterop` counts as work of another backend to a later one that does not.
    ///
    /// `uses` names each buffer that the commands use, read or written. The commands are ordered with other work on these alone: on another
    /// buffer they run at some time.
    ///
    /// wgpu calls callbacks of finished work (`map_async`) meanwhile. A callback that submits gets [`ErrorKind::Busy`], and one that uses
    /// a buffer may wait for ever for a thread that waits for this submission: leave what uses this library to another thread. Nor may one wait for
    /// a task that waits for a buffer in `uses`: it is woken afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; [`ErrorKind::Busy`] if a host view is open on a range; [`ErrorKind::SourceFailed`] if bytes to be
    /// read may be damaged; [`ErrorKind::InvalidArgument`] with wgpu's reason if it refuses the command buffers, such as those of another
    /// device; [`ErrorKind::DeviceLost`]. Nothing was submitted then. wgpu knows command buffers by numbers of their instance: one of another
    /// instance is taken for the one of the same number in this instance, if there is one.
    pub fn submit(
        &self,
        device: DeviceId,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
        uses: &[(&RawBuffer, Access)],
    ) -> Result<Fence> {
        // User code, before anything is claimed or locked.
        let commands = commands.into_iter().collect();
        self.submit_claimed(device, Some(commands), uses)
    }

    /// Returns a fence of everything that was submitted to the device's queue until now, also by the framework whose
    /// [device](crate::WgpuBackendConfig::with_device) it is, with what that has had its queue write ([`wgpu::Queue::write_buffer`]). Later work on
    /// the buffers in `uses` comes after it, on any queue.
    ///
    /// A framework that submits commands itself calls it afterwards, with the buffers that they use: copies of other queues would not wait
    /// for them, nor those in chunks or by way of the host, and the host would not learn when they are complete. Before, it waits for the
    /// transfers that the commands depend on. [`submit`](Self::submit) does both. Commands that use memory of `CudaInterop` go by
    /// `submit` only, which hands it over to them: of such memory the fence takes care of the order alone.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit) but for command buffers.
    pub fn fence(&self, device: DeviceId, uses: &[(&RawBuffer, Access)]) -> Result<Fence> {
        self.submit_claimed(device, None, uses)
    }

    /// Submits command buffers, or a point only.
    fn submit_claimed(
        &self,
        device: DeviceId,
        commands: Option<Vec<wgpu::CommandBuffer>>,
        uses: &[(&RawBuffer, Access)],
    ) -> Result<Fence> {
        let device = self.device_of(device)?;
        device.refuse_callback()?;
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        if let Some(shared) = crate::cuda::SharedUses::among(uses, device) {
            return shared.submit(commands.unwrap_or_default(), uses);
        }
        let queue = Arc::clone(device).queue(StreamPriority::Normal)?;
        let uses = merge_uses(uses);
        let mut uses: Vec<_> = uses.iter().map(|(buffer, access)| (buffer, *access)).collect();
        let mut claims = Claims::updating(&mut uses)?;
        claims.wait_for_foreign_fences(&*queue);
        let after: SmallVec<[Fence; 4]> = SmallVec::from(claims.after());
        // A task that is woken here may wait for the submission.
        let mut wakes = DelayedWakes::default();
        let mut submitted = None;
        let commit = |point| {
            let fence = Fence::new(Arc::clone(queue.timeline()), point);
            submitted = Some(claims.inherit(fence.clone()));
            // SAFETY: the point is reached after the commands, and after everything before them on the queue, and `after`. Other fences
            // were waited for.
            unsafe { claims.commit_quietly(&fence, &mut wakes) };
        };
        device.submit(commands, &after, Box::new(commit))?;
        let interrupted = || Error::new(ErrorKind::Interrupted, "the submission has no point");
        submitted.ok_or_else(interrupted)
    }

    /// Takes a buffer of the framework's [device](crate::WgpuBackendConfig::with_device), as device memory. It and its contents stay what
    /// they are, and the framework goes on to use it: see [`fence`](Self::fence). Kept until the returned buffer and all work on it are
    /// dropped and complete.
    ///
    /// The device reads it once: on Vulkan all bytes, since wgpu would zero later what it has not seen written. Keep the returned buffer: a
    /// second one of the same memory does not wait for work on the first. Without the usage `STORAGE`, other APIs than Vulkan copy whole
    /// words only, and do not fill.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; [`ErrorKind::InvalidArgument`] for a buffer that is destroyed or mapped, without the usages `COPY_SRC`
    /// and `COPY_DST`, that can be mapped, or whose size is no multiple of 4; [`ErrorKind::Busy`] in a callback of wgpu; the driver's.
    ///
    /// # Safety
    /// * The buffer was made by the device.
    /// * While work on the returned buffer or its slices is in flight, the buffer is not destroyed: neither by [`wgpu::Buffer::destroy`], nor
    ///   by [`wgpu::Device::destroy`], nor by wgpu because it gave the device up for lack of memory.
    pub unsafe fn adopt_buffer(&self, device: DeviceId, buffer: &wgpu::Buffer) -> Result<RawBuffer> {
        use wgpu::BufferUsages as Usages;

        let device = self.device_of(device)?;
        let (usage, bytes) = (buffer.usage(), buffer.size());
        if !usage.contains(Usages::COPY_SRC | Usages::COPY_DST)
            || usage.intersects(Usages::MAP_READ | Usages::MAP_WRITE)
            || !bytes.is_multiple_of(4)
            || bytes == 0
        {
            let text = format!(
                "a buffer of {bytes} bytes with usages {usage:?} cannot be adopted; expected COPY_SRC and COPY_DST, none that maps it, \
                 and a multiple of 4 bytes"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        device.adopt(buffer)
    }
}
