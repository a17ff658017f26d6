//! wgpu's handles, for programs that run shaders on the buffers of this backend.

use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, MemoryKind, RawBuffer, Result, StreamPriority,
    merge_uses,
};

use crate::{WgpuBackend, queue::WgpuQueue, storage::WgpuStorage};

impl WgpuBackend {
    /// Returns wgpu's device, to make shaders, pipelines, bind groups and command encoders with. It has the adapter's limits, and those
    /// of its features that WebGPU has.
    ///
    /// wgpu's queue is not handed out: other code that submits would break the order of this backend's queue. Use
    /// [`submit`](Self::submit).
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`].
    pub fn device(&self, device: DeviceId) -> Result<&wgpu::Device> {
        Ok(self.state(device)?.queue.vulkan.wgpu_device())
    }

    /// Returns wgpu's handle of the whole allocation of a buffer of device memory, for bind groups: a slice is bound by its
    /// [offset](RawBuffer::offset). Its size is rounded up to a multiple of 16. The memory lives as long as the handle.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for memory that is not device memory of this backend; [`ErrorKind::OutOfRange`] beyond what wgpu
    /// allows.
    pub fn buffer(&self, buffer: &RawBuffer) -> Result<wgpu::Buffer> {
        let storage = buffer.storage().and_then(|storage| storage.as_any().downcast_ref::<WgpuStorage>());
        let state = self.state(buffer.place().device).ok();
        match storage.zip(state) {
            Some((storage, state))
                if buffer.place().kind == MemoryKind::Device
                    && storage.memory().is_of(&state.queue.vulkan) =>
            {
                state.queue.vulkan.wgpu_buffer(storage.memory(), buffer.clone())
            }
            _ => {
                let text = format!(
                    "{} memory has no handle of wgpu here; device memory of this backend has",
                    buffer.place()
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// Submits command buffers of [`device`](Self::device)'s encoders, after all conflicting work on the buffers in `uses`, of this and of
    /// other queues, and before all that is submitted later. Does not wait for them. Blocks the calling thread while earlier work of
    /// another backend is not complete, and on some drivers while an earlier submission of wgpu runs.
    ///
    /// `uses` names each buffer that the commands use, read or written. The commands are ordered with other work on these alone: on another
    /// buffer they run at some time.
    ///
    /// wgpu calls callbacks of finished work (`map_async`) meanwhile. A callback that submits gets [`ErrorKind::Busy`], and one that uses
    /// a buffer may wait for ever for a thread that waits for this submission: leave what uses this library to another thread.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`]; [`ErrorKind::Busy`] if a host view is open on a range; [`ErrorKind::SourceFailed`] if bytes to be
    /// read may be damaged; [`ErrorKind::InvalidArgument`] if wgpu refuses the command buffers, which reports why as an event;
    /// [`ErrorKind::DeviceLost`]. Nothing was submitted then.
    pub fn submit(
        &self,
        device: DeviceId,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
        uses: &[(&RawBuffer, Access)],
    ) -> Result<Fence> {
        let state = self.state(device)?;
        // User code, before anything is claimed or locked.
        let commands = commands.into_iter().collect();
        state.queue.refuse_callback()?;
        let queue = WgpuQueue::new(state, StreamPriority::Normal);
        let uses = merge_uses(uses);
        let mut uses: Vec<_> = uses.iter().map(|(buffer, access)| (buffer, *access)).collect();
        let mut claims = Claims::updating(&mut uses)?;
        claims.wait_for_foreign_fences(&queue);
        let mut submitted = None;
        state.queue.submit_wgpu(commands, None, |point| {
            let fence = queue.fence(point);
            submitted = Some(claims.inherit(fence.clone()));
            // SAFETY: the point is reached after the commands, and after everything before them on the queue. Other fences were
            // waited for.
            unsafe { claims.commit(&fence) };
        })?;
        let interrupted = || Error::new(ErrorKind::Interrupted, "the submission has no point");
        submitted.ok_or_else(interrupted)
    }
}
