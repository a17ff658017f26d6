//! A Vulkan device with a queue of the universal family, which wgpu uses too, and queues of the family that only copies.

use std::{cell::Cell, ffi::CStr, ptr::NonNull, slice};

use anyhow::{Context as _, Result, ensure};
use ash::{
    Entry, Instance, khr,
    vk::{self, MemoryPropertyFlags as Flags},
};

/// The kind of handles by which CUDA imports memory and semaphores.
const MEMORY: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
const SEMAPHORE: vk::ExternalSemaphoreHandleTypeFlags = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;
const EXTENSIONS: [&CStr; 2] = [khr::external_memory_fd::NAME, khr::external_semaphore_fd::NAME];

/// Destroyed after everything that borrows it.
pub(in crate::wgpu) struct Device {
    _entry: Entry,
    instance: Instance,
    pub(super) raw: ash::Device,
    types: vk::PhysicalDeviceMemoryProperties,
    /// The indices of the families, without repetitions.
    families: Vec<u32>,
    /// The universal queue, then those of the family that only copies.
    pub(super) queues: Vec<vk::Queue>,
    /// The family of each queue.
    family_of: Vec<u32>,
}

impl Device {
    /// Opens the device with this UUID. `None` if it lacks the extensions, or a family that only copies.
    pub(super) fn open(uuid: [u8; 16]) -> Result<Option<Self>> {
        // SAFETY: the loader is trusted, as for the backend.
        let entry = unsafe { Entry::load()? };
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures are valid.
        let instance = unsafe { entry.create_instance(&info, None)? };
        // SAFETY: the instance is valid.
        let mut all = unsafe { instance.enumerate_physical_devices()? }.into_iter();
        let found = all.find(|physical| {
            let mut id = vk::PhysicalDeviceIDProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
            // SAFETY: the physical device is the instance's.
            unsafe { instance.get_physical_device_properties2(*physical, &mut properties) };
            id.device_uuid == uuid
        });
        let physical = found.context("no device has the UUID")?;
        // SAFETY: the physical device is the instance's.
        let (extensions, families) = unsafe {
            (
                instance.enumerate_device_extension_properties(physical)?,
                instance.get_physical_device_queue_family_properties(physical),
            )
        };
        let has = |name: &&CStr| extensions.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
        let (compute, copies) =
            (vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE, vk::QueueFlags::TRANSFER);
        let copying = families.iter().position(|family| {
            family.queue_flags.contains(copies) && !family.queue_flags.intersects(compute)
        });
        let (true, Some(copying)) = (EXTENSIONS.iter().all(has), copying) else {
            // SAFETY: nothing else of the instance exists.
            unsafe { instance.destroy_instance(None) };
            return Ok(None);
        };
        let count = families.get(copying).map_or(1, |family| family.queue_count.min(2));
        let copying = u32::try_from(copying)?;
        let priorities = [1.0, 1.0];
        let of = |family, count| {
            let priorities = priorities.get(..count).unwrap_or_default();
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(priorities)
        };
        let queues = [of(0, 1), of(copying, count as usize)];
        let names = EXTENSIONS.map(CStr::as_ptr);
        let mut timelines = vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true);
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut timelines);
        // SAFETY: the device has the extensions, the families and timeline semaphores.
        let raw = unsafe { instance.create_device(physical, &info, None)? };
        // SAFETY: these queues were asked for.
        let get = |family, index| unsafe { raw.get_device_queue(family, index) };
        let copiers = (0..count).map(|index| get(copying, index));
        let queues: Vec<_> = std::iter::once(get(0, 0)).chain(copiers).collect();
        let family_of = std::iter::once(0).chain((0..count).map(|_| copying)).collect();
        // SAFETY: the physical device is the instance's.
        let types = unsafe { instance.get_physical_device_memory_properties(physical) };
        Ok(Some(Self { _entry: entry, instance, raw, types, families: vec![0, copying], queues, family_of }))
    }

    /// Allocates memory of the host or the device; the latter can be exported.
    pub(super) fn allocate(&self, bytes: usize, is_host: bool) -> Result<Buffer<'_>> {
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let mut exported = vk::ExternalMemoryBufferCreateInfo::default().handle_types(MEMORY);
        let info = vk::BufferCreateInfo::default()
            .size(bytes as u64)
            .usage(usage)
            .sharing_mode(vk::SharingMode::CONCURRENT)
            .queue_family_indices(&self.families);
        let info = if is_host { info } else { info.push_next(&mut exported) };
        // SAFETY: the device is valid and has these families.
        let raw = unsafe { self.raw.create_buffer(&info, None)? };
        // SAFETY: the buffer is the device's.
        let needs = unsafe { self.raw.get_buffer_memory_requirements(raw) };
        let (needed, refused) = if is_host {
            (Flags::HOST_VISIBLE | Flags::HOST_COHERENT | Flags::HOST_CACHED, Flags::DEVICE_LOCAL)
        } else {
            (Flags::DEVICE_LOCAL, Flags::HOST_VISIBLE)
        };
        let mut types = (0_u32..).zip(self.types.memory_types_as_slice());
        let fitting = types.find(|(index, of)| {
            let flags = of.property_flags;
            needs.memory_type_bits & (1 << index) != 0 && flags.contains(needed) && !flags.intersects(refused)
        });
        let (index, _) = fitting.context("no such memory")?;
        let mut exported = vk::ExportMemoryAllocateInfo::default().handle_types(MEMORY);
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(raw);
        let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
        let info = if is_host { info } else { info.push_next(&mut exported).push_next(&mut dedicated) };
        // SAFETY: the type is one of the device's; the buffer is new, and the memory large enough.
        let memory = unsafe {
            let memory = self.raw.allocate_memory(&info, None)?;
            self.raw.bind_buffer_memory(raw, memory, 0)?;
            memory
        };
        let address = if is_host {
            // SAFETY: the memory is new, thus not mapped, and visible to the host.
            let address =
                unsafe { self.raw.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())? };
            NonNull::new(address.cast())
        } else {
            None
        };
        Ok(Buffer { device: self, raw, memory, address, bytes, size: needs.size })
    }

    /// Records copies of parts, each in commands of its own, for one queue; after everything before on it if `in_order`.
    pub(super) fn copies(
        &self,
        queue: usize,
        ends: (&Buffer<'_>, &Buffer<'_>),
        (part, in_order): (usize, bool),
    ) -> Result<Recorded<'_>> {
        let starts: Vec<_> = (0..ends.0.bytes).step_by(part).collect();
        self.copies_at(queue, ends, &starts, (part, in_order))
    }

    /// The same for the parts that begin there only.
    pub(super) fn copies_at(
        &self,
        queue: usize,
        (src, dst): (&Buffer<'_>, &Buffer<'_>),
        starts: &[usize],
        (part, in_order): (usize, bool),
    ) -> Result<Recorded<'_>> {
        self.record(queue, starts.len(), |commands, index| {
            let start = starts.get(index).copied().unwrap_or(0);
            let region = vk::BufferCopy {
                src_offset: start as u64,
                dst_offset: start as u64,
                size: part.min(src.bytes - start) as u64,
            };
            let barrier = vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
                .dst_access_mask(vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE);
            let (before, after) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::PipelineStageFlags::TRANSFER);
            let flags = vk::DependencyFlags::empty();
            // SAFETY: both buffers are the device's and have the region.
            unsafe {
                if in_order {
                    self.raw.cmd_pipeline_barrier(commands, before, after, flags, &[barrier], &[], &[]);
                }
                self.raw.cmd_copy_buffer(commands, src.raw, dst.raw, &[region]);
            }
        })
    }

    /// Records one command that copies all by pieces, for one queue.
    pub(super) fn pieces(
        &self,
        queue: usize,
        (src, dst): (&Buffer<'_>, &Buffer<'_>),
        bytes: usize,
    ) -> Result<Recorded<'_>> {
        let count = src.bytes / bytes;
        let regions: Vec<_> = (0..count)
            .map(|index| vk::BufferCopy {
                src_offset: (index * bytes) as u64,
                dst_offset: (index * bytes) as u64,
                size: bytes as u64,
            })
            .collect();
        self.record(queue, 1, |commands, _| {
            // SAFETY: both buffers are the device's and have the regions, which do not overlap.
            unsafe { self.raw.cmd_copy_buffer(commands, src.raw, dst.raw, &regions) }
        })
    }

    /// Records what `each` records, in commands of its own each, which end with a barrier for the host.
    pub(super) fn record(
        &self,
        queue: usize,
        count: usize,
        each: impl Fn(vk::CommandBuffer, usize),
    ) -> Result<Recorded<'_>> {
        let family = self.family_of.get(queue).copied().context("no such queue")?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
        // SAFETY: the family is one of the device's.
        let pool = unsafe { self.raw.create_command_pool(&info, None)? };
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(count as u32);
        // SAFETY: the pool is the device's.
        let commands = unsafe { self.raw.allocate_command_buffers(&info)? };
        for (index, commands) in commands.iter().enumerate() {
            let barrier = vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
                .dst_access_mask(vk::AccessFlags::HOST_READ);
            let (from, to) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
            // SAFETY: the commands are new, and what they name outlives them, as the callers keep it.
            unsafe {
                self.raw.begin_command_buffer(*commands, &vk::CommandBufferBeginInfo::default())?;
                each(*commands, index);
                let flags = vk::DependencyFlags::empty();
                self.raw.cmd_pipeline_barrier(*commands, from, to, flags, &[barrier], &[], &[]);
                self.raw.end_command_buffer(*commands)?;
            }
        }
        let queue = self.queues.get(queue).copied().context("no such queue")?;
        Ok(Recorded { device: self, queue, pool, commands })
    }

    pub(super) fn timeline(&self) -> Result<Timeline<'_>> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let mut export = vk::ExportSemaphoreCreateInfo::default().handle_types(SEMAPHORE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind).push_next(&mut export);
        // SAFETY: the device has the feature and the extension.
        let raw = unsafe { self.raw.create_semaphore(&info, None)? };
        Ok(Timeline { device: self, raw, value: Cell::new(0) })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: what borrows them is gone, and waited for.
        unsafe {
            self.raw.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// Memory. No work uses it when it is dropped.
pub(super) struct Buffer<'a> {
    device: &'a Device,
    pub(super) raw: vk::Buffer,
    memory: vk::DeviceMemory,
    address: Option<NonNull<u8>>,
    bytes: usize,
    /// Bytes of the memory.
    pub(super) size: u64,
}

impl Buffer<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the host's memory, which no work uses meanwhile; of the device, nothing.
    pub(super) fn host(&mut self) -> &mut [u8] {
        match self.address {
            // SAFETY: so many bytes are mapped, and the caller's promise.
            Some(address) => unsafe { slice::from_raw_parts_mut(address.as_ptr(), self.bytes) },
            None => &mut [],
        }
    }

    /// Returns a descriptor of the memory, which the caller closes or gives away.
    pub(super) fn descriptor(&self) -> Result<i32> {
        let info = vk::MemoryGetFdInfoKHR::default().memory(self.memory).handle_type(MEMORY);
        let functions = khr::external_memory_fd::Device::new(&self.device.instance, &self.device.raw);
        // SAFETY: the memory was allocated for it.
        Ok(unsafe { functions.get_memory_fd(&info)? })
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: no work uses them, by the owner's promise.
        unsafe {
            self.device.raw.destroy_buffer(self.raw, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

/// Recorded commands of one queue. They are not in use when they are dropped.
pub(super) struct Recorded<'a> {
    device: &'a Device,
    queue: vk::Queue,
    pool: vk::CommandPool,
    commands: Vec<vk::CommandBuffer>,
}

impl Recorded<'_> {
    /// Submits one of the commands, after `before` has its value. Sets the next value of `after` when they are complete.
    pub(super) fn submit(
        &self,
        index: usize,
        before: Option<(&Timeline<'_>, u64)>,
        after: &Timeline<'_>,
    ) -> Result<u64> {
        let value = after.value.get() + 1;
        let commands = [*self.commands.get(index).context("no such commands")?];
        let (waits, stages) = (
            [before.map_or(vk::Semaphore::null(), |(of, _)| of.raw)],
            [vk::PipelineStageFlags::ALL_COMMANDS],
        );
        let (values, signals, ends) = ([before.map_or(0, |(_, value)| value)], [after.raw], [value]);
        let count = usize::from(before.is_some());
        let values = values.get(..count).unwrap_or_default();
        let mut of_timelines = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(values)
            .signal_semaphore_values(&ends);
        let work = vk::SubmitInfo::default()
            .wait_semaphores(waits.get(..count).unwrap_or_default())
            .wait_dst_stage_mask(stages.get(..count).unwrap_or_default())
            .command_buffers(&commands)
            .signal_semaphores(&signals)
            .push_next(&mut of_timelines);
        // SAFETY: one thread uses the queues; the commands are not in use, since each run is waited for.
        unsafe { self.device.raw.queue_submit(self.queue, &[work], vk::Fence::null())? };
        after.value.set(value);
        Ok(value)
    }

    /// Submits all commands, one after the other.
    pub(super) fn submit_all(&self, after: &Timeline<'_>) -> Result<u64> {
        let mut last = after.value.get();
        for index in 0..self.commands.len() {
            last = self.submit(index, None, after)?;
        }
        Ok(last)
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        // SAFETY: the commands are not in use, by the owner's promise.
        unsafe { self.device.raw.destroy_command_pool(self.pool, None) };
    }
}

/// A timeline semaphore. Nothing uses it when it is dropped.
pub(super) struct Timeline<'a> {
    device: &'a Device,
    raw: vk::Semaphore,
    /// The last value that a submission sets.
    value: Cell<u64>,
}

impl Timeline<'_> {
    /// Waits until it has a value, asleep or by looking again and again.
    pub(super) fn wait(&self, value: u64, is_asleep: bool) -> Result<()> {
        let (semaphores, values) = ([self.raw], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is the device's.
        unsafe {
            while !is_asleep && self.device.raw.get_semaphore_counter_value(self.raw)? < value {
                std::hint::spin_loop();
            }
            if is_asleep {
                self.device.raw.wait_semaphores(&info, u64::MAX)?;
            }
        }
        Ok(())
    }

    /// Returns a descriptor of it, which the caller closes or gives away.
    pub(super) fn descriptor(&self) -> Result<i32> {
        let info = vk::SemaphoreGetFdInfoKHR::default().semaphore(self.raw).handle_type(SEMAPHORE);
        let functions = khr::external_semaphore_fd::Device::new(&self.device.instance, &self.device.raw);
        // SAFETY: the semaphore was created for it.
        let descriptor = unsafe { functions.get_semaphore_fd(&info)? };
        ensure!(descriptor >= 0, "no descriptor");
        Ok(descriptor)
    }
}

impl Drop for Timeline<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it, by the owner's promise.
        unsafe { self.device.raw.destroy_semaphore(self.raw, None) };
    }
}
