//! Vulkan by hand: copies between mapped host memory and device memory on wgpu's queue, the upper limit of what a device offers there.

use std::{ptr::NonNull, slice};

use anyhow::{Context as _, Result};
use ash::{
    Device,
    vk::{self, MemoryPropertyFlags as Flags},
};
use transload_backend_wgpu::wgpu::hal;

use super::plain::Plain;

/// Host memory, device memory, and a recorded copy each way. While it lives, `plain` has no other work.
pub(super) struct RawCopies<'a> {
    _plain: &'a Plain,
    device: Device,
    queue: vk::Queue,
    pool: vk::CommandPool,
    /// Up and down.
    commands: Vec<vk::CommandBuffer>,
    fence: vk::Fence,
    /// The host's and the device's.
    buffers: [(vk::Buffer, vk::DeviceMemory); 2],
    address: NonNull<u8>,
    bytes: usize,
}

impl<'a> RawCopies<'a> {
    /// If a call fails, what was made before it stays until the process ends.
    pub(super) fn new(plain: &'a Plain, bytes: usize) -> Result<Self> {
        // SAFETY: nothing of wgpu is destroyed.
        let lower =
            unsafe { plain.device.as_hal::<hal::api::Vulkan>() }.context("a device of another API")?;
        let (device, queue) = (lower.raw_device().clone(), lower.raw_queue());
        let instance = lower.shared_instance().raw_instance();
        // SAFETY: the physical device is the instance's.
        let types = unsafe { instance.get_physical_device_memory_properties(lower.raw_physical_device()) };
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        // Memory of the host rather than video memory, and cached by the processor.
        let rank = |flags: Flags| {
            2 * u8::from(flags.contains(Flags::DEVICE_LOCAL)) + u8::from(!flags.contains(Flags::HOST_CACHED))
        };
        let host = allocate(&device, &types, bytes, host, rank)?;
        let there = allocate(&device, &types, bytes, Flags::DEVICE_LOCAL, |flags| {
            u8::from(flags.contains(Flags::HOST_VISIBLE))
        })?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(lower.queue_family_index());
        // SAFETY: the device is valid; the memory is new and mapped once.
        let (address, pool, fence) = unsafe {
            (
                device.map_memory(host.1, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?,
                device.create_command_pool(&info, None)?,
                device.create_fence(&vk::FenceCreateInfo::default(), None)?,
            )
        };
        let address = NonNull::new(address.cast()).context("memory mapped at 0")?;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(2);
        // SAFETY: the pool is the device's.
        let commands = unsafe { device.allocate_command_buffers(&info)? };
        for (commands, (from, to)) in commands.iter().zip([(host.0, there.0), (there.0, host.0)]) {
            let whole = vk::BufferCopy::default().size(bytes as u64);
            let barrier = vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
                .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::TRANSFER_READ);
            let stages = vk::PipelineStageFlags::HOST | vk::PipelineStageFlags::TRANSFER;
            // SAFETY: all are the device's and live as long as the commands; both buffers have the bytes.
            unsafe {
                device.begin_command_buffer(*commands, &vk::CommandBufferBeginInfo::default())?;
                device.cmd_copy_buffer(*commands, from, to, &[whole]);
                let (before, flags) = (vk::PipelineStageFlags::TRANSFER, vk::DependencyFlags::empty());
                device.cmd_pipeline_barrier(*commands, before, stages, flags, &[barrier], &[], &[]);
                device.end_command_buffer(*commands)?;
            }
        }
        Ok(Self {
            _plain: plain,
            device,
            queue,
            pool,
            commands,
            fence,
            buffers: [host, there],
            address,
            bytes,
        })
    }

    pub(super) fn up(&self) -> Result<()> {
        self.run(0)
    }

    pub(super) fn down(&self) -> Result<()> {
        self.run(1)
    }

    fn run(&self, index: usize) -> Result<()> {
        let commands = [*self.commands.get(index).context("no such copy")?];
        let work = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: no other thread uses the queue, and the commands and the fence are not in use: each run waits.
        unsafe {
            self.device.queue_submit(self.queue, &work, self.fence)?;
            self.device.wait_for_fences(&[self.fence], true, u64::MAX)?;
            self.device.reset_fences(&[self.fence])?;
        }
        Ok(())
    }

    /// Returns the host's memory.
    pub(super) fn host(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are mapped, and no copy runs.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

/// Allocates a buffer in memory with the flags, of the type of the lowest rank.
fn allocate(
    device: &Device,
    types: &vk::PhysicalDeviceMemoryProperties,
    bytes: usize,
    needed: Flags,
    rank: impl Fn(Flags) -> u8,
) -> Result<(vk::Buffer, vk::DeviceMemory)> {
    let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
    let info = vk::BufferCreateInfo::default().size(bytes as u64).usage(usage);
    // SAFETY: the device is valid.
    let buffer = unsafe { device.create_buffer(&info, None)? };
    // SAFETY: the buffer is the device's.
    let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
    let types = (0_u32..).zip(types.memory_types_as_slice());
    let fitting = types.filter(|(index, of)| {
        needs.memory_type_bits & (1 << index) != 0 && of.property_flags.contains(needed)
    });
    let (index, _) = fitting.min_by_key(|(_, of)| rank(of.property_flags)).context("no such memory")?;
    let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
    // SAFETY: the type is one of the device's; the buffer is new, and the memory large enough.
    unsafe {
        let memory = device.allocate_memory(&info, None)?;
        device.bind_buffer_memory(buffer, memory, 0)?;
        Ok((buffer, memory))
    }
}

impl Drop for RawCopies<'_> {
    fn drop(&mut self) {
        // SAFETY: each run waited, and nothing else uses them.
        unsafe {
            self.device.destroy_fence(self.fence, None);
            self.device.destroy_command_pool(self.pool, None);
            for (buffer, memory) in self.buffers {
                self.device.destroy_buffer(buffer, None);
                self.device.free_memory(memory, None);
            }
        }
    }
}
