//! Records commands, and submits them: by Vulkan where the queue has a lock of ours, and else by wgpu's lower level, whose submissions may
//! run on several threads at once.

use std::ops::Range;

use ash::vk;
use smallvec::SmallVec;
use transload_core::{Error, ErrorKind, Result};
use wgpu::hal::{self, CommandEncoder as _, Device as _, Queue as _, api};

use super::{
    Submissions, Vulkan,
    create::not_vulkan,
    error_of,
    submissions::{Command, Region},
};

/// Most regions of one command: drivers check each.
const MOST_REGIONS: usize = 4096;

/// What records one submission at a time, on a thread that has the lock of the submissions.
pub(super) enum Recorder {
    /// A command buffer of the pool, and the place for the bindings of its lists: null before the first one.
    Own(vk::CommandBuffer, vk::DescriptorPool),
    /// For wgpu's lower level, with what was recorded last.
    Lower(Box<hal::vulkan::CommandEncoder>, Option<hal::vulkan::CommandBuffer>),
}

impl Submissions {
    pub(super) fn new_recorder(&self) -> Result<Recorder> {
        let vulkan = &self.vulkan;
        if !vulkan.is_locked {
            // SAFETY: nothing is destroyed.
            let lower = unsafe {
                (vulkan.wgpu_device.as_hal::<api::Vulkan>(), vulkan.wgpu_queue.as_hal::<api::Vulkan>())
            };
            let (Some(device), Some(queue)) = lower else { return Err(not_vulkan()) };
            let description = hal::CommandEncoderDescriptor { label: None, queue: &*queue };
            // SAFETY: both are of one device.
            let made = unsafe { device.create_command_encoder(&description) };
            let made = made.map_err(|error| self.refused("vkCreateCommandPool", &error))?;
            return Ok(Recorder::Lower(Box::new(made), None));
        }
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is this device's, and is used under the lock only.
        let made = unsafe { vulkan.raw.allocate_command_buffers(&info) };
        let failed = |result| error_of(vulkan.id, "vkAllocateCommandBuffers", result);
        let made = made.map_err(failed)?;
        let own = |commands| Recorder::Own(commands, vk::DescriptorPool::null());
        made.first().copied().map(own).ok_or_else(|| failed(vk::Result::ERROR_UNKNOWN))
    }

    /// Returns the error of a call of wgpu's lower level.
    fn refused(&self, what: &str, error: &hal::DeviceError) -> Error {
        let result = match error {
            hal::DeviceError::OutOfMemory => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
            hal::DeviceError::Lost => vk::Result::ERROR_DEVICE_LOST,
            hal::DeviceError::Unexpected => vk::Result::ERROR_UNKNOWN,
        };
        error_of(self.vulkan.id, what, result)
    }

    /// Returns the error of a submission by wgpu's lower level. Whatever it was, the device counts as lost: each submission of the queue waits
    /// for a semaphore that the one before signals, also if that one failed.
    fn not_submitted(&self, error: &hal::DeviceError) -> Error {
        let text = format!("{} cannot go on: later submissions would wait for this one", self.vulkan.id);
        Error::caused_by(ErrorKind::DeviceLost, text, self.refused("vkQueueSubmit", error))
    }

    /// # Safety
    /// * Those of [`submit`](Self::submit), under the lock; the recorder is not in use.
    /// * `after` are values of timeline semaphores of this device, which is not foreign.
    pub(super) unsafe fn record_and_submit(
        &self,
        recorder: &mut Recorder,
        commands: &[Command],
        point: u64,
        after: &[(vk::Semaphore, u64)],
    ) -> Result<()> {
        let raw = &self.vulkan.raw;
        let failed = |what: &'static str| move |result| error_of(self.vulkan.id, what, result);
        let (buffer, sets) = match recorder {
            Recorder::Own(buffer, pool) => {
                // SAFETY: the recorder is not in use.
                (*buffer, unsafe { self.bind_lists(pool, commands) }?)
            }
            Recorder::Lower(encoder, finished) => {
                // SAFETY: what it recorded before is complete, and it records nothing now; the caller's promise.
                let recorded = unsafe {
                    encoder.reset_all(finished.take().into_iter());
                    encoder.begin_encoding(None).map(|()| {
                        self.record_all(encoder.raw_handle(), commands, &[]);
                        encoder.end_encoding()
                    })
                };
                let recorded = recorded.and_then(|ended| ended);
                let recorded = recorded.map_err(|error| self.refused("recording of commands", &error))?;
                let buffer: &_ = finished.insert(recorded);
                let fence = hal::vulkan::Fence::TimelineSemaphore(self.semaphore.raw);
                // SAFETY: nothing is destroyed.
                let queue =
                    unsafe { self.vulkan.wgpu_queue.as_hal::<api::Vulkan>() }.ok_or_else(not_vulkan)?;
                // SAFETY: the command buffer is of this device, and it and its buffers stay until the point is reached. Any thread may
                // submit, with a fence of its own: this one is ours, and its value is larger than all before.
                let submitted = unsafe { queue.submit(&[buffer], &[], (&fence, point)) };
                return submitted.map_err(|error| self.not_submitted(&error));
            }
        };
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the command buffer is not in use, its pool is used under the lock only, and beginning resets it. What is recorded
        // is valid by the caller's promise.
        unsafe {
            raw.begin_command_buffer(buffer, &begin).map_err(failed("vkBeginCommandBuffer"))?;
            self.record_all(buffer, commands, &sets);
            raw.end_command_buffer(buffer).map_err(failed("vkEndCommandBuffer"))?;
        }
        let (buffers, semaphores, points) = ([buffer], [self.semaphore.raw], [point]);
        let (waits, waited): (SmallVec<[_; 3]>, SmallVec<[_; 3]>) = after.iter().copied().unzip();
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&waited)
            .signal_semaphore_values(&points);
        let stages: SmallVec<[_; 3]> = waits.iter().map(|_| vk::PipelineStageFlags::ALL_COMMANDS).collect();
        let submit = vk::SubmitInfo::default()
            .command_buffers(&buffers)
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages)
            .signal_semaphores(&semaphores)
            .push_next(&mut values);
        // SAFETY: submissions go through the queue's gate, wgpu's too. The value is larger than all
        // before. Signalling also waits for what was submitted before.
        unsafe { raw.queue_submit(self.queue.raw, &[submit], vk::Fence::null()) }
            .map_err(failed("vkQueueSubmit"))
    }

    /// Returns the bindings of the lists, in a pool that is made if there is none.
    ///
    /// # Safety
    /// * Those of [`submit`](Self::submit); no submission in flight uses the pool.
    unsafe fn bind_lists(
        &self,
        pool: &mut vk::DescriptorPool,
        commands: &[Command],
    ) -> Result<SmallVec<[vk::DescriptorSet; 2]>> {
        let lists = commands.iter().filter_map(|command| match command {
            Command::CopyList(list) => Some(list),
            _ => None,
        });
        let mut sets = SmallVec::new();
        for (index, list) in lists.enumerate() {
            let Some(shader) = self.shader() else { break };
            if *pool == vk::DescriptorPool::null() {
                *pool = shader.new_pool()?;
            } else if index == 0 {
                let none = vk::DescriptorPoolResetFlags::empty();
                // SAFETY: the caller's promise.
                let reset = unsafe { self.vulkan.raw.reset_descriptor_pool(*pool, none) };
                reset.map_err(|result| error_of(self.vulkan.id, "vkResetDescriptorPool", result))?;
            }
            // SAFETY: the caller's promise.
            sets.push(unsafe { shader.bind(*pool, list) }?);
        }
        Ok(sets)
    }

    /// Destroys a recorder that is not in use, but for what its pool of commands does.
    pub(super) fn destroy(&self, recorder: Recorder) {
        if let Recorder::Own(_, pool) = recorder {
            // SAFETY: no submission in flight uses it.
            unsafe { self.vulkan.raw.destroy_descriptor_pool(pool, None) };
        }
    }

    /// Records commands, after everything submitted before and before everything submitted later.
    ///
    /// # Safety
    /// * Those of [`submit`](Self::submit); the command buffer is being recorded, and `sets` are those of the lists.
    unsafe fn record_all(&self, buffer: vk::CommandBuffer, commands: &[Command], sets: &[vk::DescriptorSet]) {
        use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
        // A queue that only copies has no shaders.
        let (shader, read, written) = match sets {
            [] => (Stage::empty(), Access::empty(), Access::empty()),
            _ => (Stage::COMPUTE_SHADER, Access::SHADER_READ | Access::SHADER_WRITE, Access::SHADER_WRITE),
        };
        let mut sets = sets.iter();
        // SAFETY: the caller's promise.
        unsafe {
            // After everything submitted before, kernels included.
            self.barrier(
                buffer,
                (vk::PipelineStageFlags::ALL_COMMANDS, vk::AccessFlags::MEMORY_WRITE),
                (Stage::TRANSFER | shader, Access::TRANSFER_READ | Access::TRANSFER_WRITE | read),
            );
            for command in commands {
                match (command, self.pieces.get()) {
                    (Command::CopyList(list), Some(Some(shader))) => {
                        sets.next().into_iter().for_each(|set| shader.record(buffer, *set, list));
                    }
                    _ => self.record(buffer, command),
                }
            }
            // Before everything submitted later, and before the host reads or stores.
            self.barrier(
                buffer,
                (Stage::TRANSFER | shader, Access::TRANSFER_WRITE | written),
                (
                    vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST,
                    vk::AccessFlags::MEMORY_READ
                        | vk::AccessFlags::MEMORY_WRITE
                        | vk::AccessFlags::HOST_READ
                        | vk::AccessFlags::HOST_WRITE,
                ),
            );
        }
    }

    /// # Safety
    /// * Those of [`submit`](Self::submit); the command buffer is being recorded.
    unsafe fn record(&self, buffer: vk::CommandBuffer, command: &Command) {
        let raw = &self.vulkan.raw;
        let copy = |src: vk::Buffer, dst: vk::Buffer, regions: &[Region]| {
            for regions in regions.chunks(MOST_REGIONS) {
                #[cfg(test)]
                super::faults::count_copy();
                // SAFETY: the caller's promise.
                unsafe { raw.cmd_copy_buffer(buffer, src, dst, regions) };
            }
        };
        match command {
            Command::Copy { src, dst, regions, .. } => copy(*src, *dst, regions),
            // Recorded with its bindings.
            Command::CopyList(_) => {}
            Command::CopyScratch { dst, regions } => copy(self.scratch.buffer(), *dst, regions),
            Command::FillWords { dst, offset, bytes, word } => {
                // SAFETY: the caller's promise.
                unsafe { raw.cmd_fill_buffer(buffer, *dst, *offset, *bytes, *word) };
            }
            Command::WriteScratch { bytes } => {
                // SAFETY: the scratch memory is this device's and has as many bytes; earlier users of it come before, since each
                // submission begins and ends with a barrier.
                unsafe { raw.cmd_update_buffer(buffer, self.scratch.buffer(), 0, bytes) };
            }
            Command::Timestamp { pool, query } => {
                // SAFETY: the command buffer is being recorded; the pool is this device's and has the query.
                unsafe {
                    if !self.resets_on_host() {
                        raw.cmd_reset_query_pool(buffer, *pool, *query, 1);
                    }
                    raw.cmd_write_timestamp(buffer, vk::PipelineStageFlags::BOTTOM_OF_PIPE, *pool, *query);
                }
            }
            Command::HandOver { ranges, takes } => {
                let barriers = self.vulkan.hand_over_ranges(ranges.iter().cloned(), *takes);
                let (all, none) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::DependencyFlags::empty());
                // SAFETY: the command buffer is being recorded, for a queue of this family.
                unsafe { raw.cmd_pipeline_barrier(buffer, all, all, none, &[], &barriers, &[]) };
            }
            Command::Barrier => {
                let transfer = vk::PipelineStageFlags::TRANSFER;
                let (read, write) = (vk::AccessFlags::TRANSFER_READ, vk::AccessFlags::TRANSFER_WRITE);
                // SAFETY: the command buffer is being recorded.
                unsafe { self.barrier(buffer, (transfer, write), (transfer, read | write)) };
            }
        }
    }

    /// # Safety
    /// * The command buffer is being recorded.
    unsafe fn barrier(
        &self,
        buffer: vk::CommandBuffer,
        (src, written): (vk::PipelineStageFlags, vk::AccessFlags),
        (dst, used): (vk::PipelineStageFlags, vk::AccessFlags),
    ) {
        let memory = [vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(used)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the caller's promise.
        unsafe { self.vulkan.raw.cmd_pipeline_barrier(buffer, src, dst, none, &memory, &[], &[]) };
    }
}

impl Vulkan {
    /// Returns the barriers by which a queue takes ranges of exported buffers over from another API, or hands them back.
    pub(super) fn hand_over_ranges(
        &self,
        ranges: impl Iterator<Item = (vk::Buffer, Range<u64>)>,
        takes: bool,
    ) -> Vec<vk::BufferMemoryBarrier<'static>> {
        let all = vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE;
        // What queues of several families use belongs to none of them.
        let own = if self.families().len() > 1 { vk::QUEUE_FAMILY_IGNORED } else { self.queue.family };
        let sides = [(vk::QUEUE_FAMILY_EXTERNAL, vk::AccessFlags::empty()), (own, all)];
        let [(from, before), (to, later)] = if takes { sides } else { [sides[1], sides[0]] };
        let barrier = |(buffer, range): (vk::Buffer, Range<u64>)| {
            vk::BufferMemoryBarrier::default()
                .src_access_mask(before)
                .dst_access_mask(later)
                .src_queue_family_index(from)
                .dst_queue_family_index(to)
                .buffer(buffer)
                .offset(range.start)
                .size(range.end - range.start)
        };
        ranges.map(barrier).collect()
    }
}
