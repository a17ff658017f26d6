//! Allocations: a Vulkan buffer and its memory, which is mapped for good if it is the host's, a device's on the host included.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use ash::vk;
use transload_core::{
    DeviceId, Error, ErrorKind, MemoryInfo, MemoryKind, MemoryShortage, Place, Result, host_memory,
};

use wgpu::hal;

use super::{Vulkan, blocks, error_of, handles::is_destroyed, storage::Counted, types::types_of};

/// The kind of handles by which other APIs import memory.
pub(super) const OPAQUE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// What buffers are used for. `|` is no constant function of the flags.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::STORAGE_BUFFER.as_raw(),
);

/// Lengths are rounded up to this: a wgpu binding needs a multiple of 4.
pub(super) const GRANULE: u64 = 16;

/// What memory a buffer gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A part of a block if it is small, else its own.
    Shared,
    /// Its own.
    Own,
    /// Its own, which other APIs can import.
    Exported,
}

/// A buffer with its memory. Freed on drop, which does not wait.
pub(crate) struct Memory {
    pub(super) vulkan: Arc<Vulkan>,
    buffer: vk::Buffer,
    /// Bytes of the buffer.
    size: u64,
    /// Memory of its own; null if it is part of a block, or of a framework.
    pub(super) memory: vk::DeviceMemory,
    part: Option<blocks::Part>,
    address: Option<NonNull<u8>>,
    is_exported: bool,
    /// Whether it is a GPU's own.
    is_local: bool,
    /// What the buffer and its memory belong to, if they are of a framework.
    pub(super) adopted: Option<wgpu::Buffer>,
    /// Dropped once it is freed.
    pub(super) counted: Option<Counted>,
}

// SAFETY: handles and the address of mapped memory, which any thread may use.
unsafe impl Send for Memory {}
// SAFETY: a shared reference gives access only to the fields' values.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates device memory, or memory of the host, which is mapped. Device memory is mapped, too, if it is the host's.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with the numbers; [`ErrorKind::Unsupported`] for another kind, or if the device has no such memory;
    /// the driver's.
    pub(crate) fn allocate(vulkan: &Arc<Vulkan>, kind: MemoryKind, bytes: usize) -> Result<Self> {
        Self::allocate_from(vulkan, kind, bytes, Source::Shared)
    }

    /// Like [`allocate`](Self::allocate).
    pub(super) fn allocate_from(
        vulkan: &Arc<Vulkan>,
        kind: MemoryKind,
        bytes: usize,
        source: Source,
    ) -> Result<Self> {
        let is_exported = source == Source::Exported;
        let types = vulkan.types_of(kind);
        if types.is_empty() {
            let text =
                format!("{} has no {kind} memory; it has device memory, and most have pinned", vulkan.id);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let short = |cause| vulkan.out_of_memory(kind, bytes, cause);
        let size = (bytes as u64).checked_next_multiple_of(GRANULE).ok_or_else(|| short(None))?;
        let heap = types.iter().map(|index| vulkan.heap_size(*index)).max().unwrap_or(0);
        // Linux would give more than there is. It is not asked for little, since that takes longer than the rest.
        let takes_host = (kind != MemoryKind::Device || vulkan.is_host) && size > blocks::MOST;
        let host_free = takes_host.then(host_memory).and_then(Result::ok).map(|host| host.free);
        if size > heap || host_free.is_some_and(|free| size > free) {
            return Err(short(None));
        }
        let families = vulkan.families();
        let mut info = vk::BufferCreateInfo::default().size(size).usage(USAGE);
        if families.len() > 1 {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families);
        }
        let mut exported = vk::ExternalMemoryBufferCreateInfo::default().handle_types(OPAQUE);
        let info = if is_exported { info.push_next(&mut exported) } else { info };
        let refused = |what: &str, result: vk::Result| match error_of(vulkan.id, what, result) {
            error if error.kind() == ErrorKind::OutOfMemory => short(Some(result)),
            error => error,
        };
        // SAFETY: the device is valid, and the size is not 0: at least one byte is allocated.
        let buffer = unsafe { vulkan.raw.create_buffer(&info, None) }
            .map_err(|result| refused("vkCreateBuffer", result))?;
        // From here on, a drop destroys what was made.
        let mut made = Self {
            vulkan: Arc::clone(vulkan),
            buffer,
            size,
            memory: vk::DeviceMemory::null(),
            part: None,
            address: None,
            is_exported,
            is_local: kind == MemoryKind::Device && (!vulkan.is_host || cfg!(test)),
            adopted: None,
            counted: None,
        };
        // SAFETY: the buffer is one of this device.
        let needs = unsafe { vulkan.raw.get_buffer_memory_requirements(buffer) };
        let types: Vec<_> =
            types.into_iter().filter(|index| needs.memory_type_bits & (1 << index) != 0).collect();
        if needs.size <= blocks::MOST && source == Source::Shared {
            let stored = types.iter().filter(|index| vulkan.stored_types & (1 << **index) != 0);
            made.part = stored.chain(&types).find_map(|index| vulkan.blocks.allocate(&needs, *index));
        }
        if let Some((_, part)) = &made.part {
            // SAFETY: both are new and of this device; the part has the type, the size and the alignment that the buffer needs.
            unsafe { vulkan.raw.bind_buffer_memory(buffer, part.memory(), part.offset()) }
                .map_err(|result| refused("vkBindBufferMemory", result))?;
            made.address = part.mapped_ptr().map(NonNull::cast);
            return Ok(made);
        }
        let mut outcome = Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
        for index in types {
            let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
            let mut exported = vk::ExportMemoryAllocateInfo::default().handle_types(OPAQUE);
            let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
            // Some drivers export no other memory.
            let info = match is_exported {
                true => info.push_next(&mut exported).push_next(&mut dedicated),
                false => info,
            };
            // SAFETY: the type is one of this device's.
            outcome = unsafe { vulkan.raw.allocate_memory(&info, None) };
            if outcome.is_ok() {
                break;
            }
        }
        made.memory = outcome.map_err(|result| refused("vkAllocateMemory", result))?;
        // SAFETY: both are new, of this device, and the memory has the type and the size that the buffer needs.
        unsafe { vulkan.raw.bind_buffer_memory(buffer, made.memory, 0) }
            .map_err(|result| refused("vkBindBufferMemory", result))?;
        if kind != MemoryKind::Device || vulkan.maps_device {
            // SAFETY: the memory is new, thus not mapped, and its type is visible to the host.
            let address =
                unsafe { vulkan.raw.map_memory(made.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
            made.address = NonNull::new(address.map_err(|result| refused("vkMapMemory", result))?.cast());
        }
        Ok(made)
    }

    /// Takes a buffer of wgpu's device, which it keeps.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it was destroyed, or is not Vulkan's.
    pub(crate) fn adopt(vulkan: &Arc<Vulkan>, buffer: &wgpu::Buffer) -> Result<Self> {
        // SAFETY: nothing is destroyed.
        let lower = unsafe { buffer.as_hal::<hal::api::Vulkan>() };
        let destroyed =
            || Error::new(ErrorKind::InvalidArgument, "the buffer is destroyed, or not of Vulkan");
        // SAFETY: the handle is used while the buffer is kept.
        let handle = unsafe { lower.ok_or_else(destroyed)?.raw_handle() };
        Ok(Self {
            vulkan: Arc::clone(vulkan),
            buffer: handle,
            size: buffer.size(),
            memory: vk::DeviceMemory::null(),
            part: None,
            address: None,
            is_exported: false,
            is_local: false,
            adopted: Some(buffer.clone()),
            counted: None,
        })
    }

    /// Whether it is of a framework. Only queues of wgpu's family may use it then.
    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }

    /// Whether it is another API's but for the time of a submission, which takes it over and hands it back.
    pub(crate) fn is_exported(&self) -> bool {
        self.is_exported
    }

    /// Whether a shader can copy pieces of it.
    pub(crate) fn is_bindable(&self) -> bool {
        self.adopted.is_none() && self.size <= self.vulkan.largest_bound
    }

    /// Whether it is a GPU's own, which shaders copy faster than copy commands. In unit tests also where the processor plays the GPU.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local && !transload_core::mutant!("wgpu/long-by-shader")
    }

    pub(crate) fn buffer(&self) -> vk::Buffer {
        self.buffer
    }

    /// Returns whether wgpu has destroyed the buffer, which it does also if it loses the device.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.adopted.as_ref().is_some_and(is_destroyed)
    }

    /// Returns its bytes, rounded up.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns its address for the host: of host memory always, of device memory where it is mapped, or is a part of a block that is.
    pub(crate) fn address(&self) -> Option<NonNull<u8>> {
        self.address
    }

    /// Returns whether it is memory of this device.
    pub(crate) fn is_of(&self, vulkan: &Arc<Vulkan>) -> bool {
        Arc::ptr_eq(&self.vulkan, vulkan)
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.vulkan.id
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.adopted.is_some() || self.vulkan.may_run.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: both are of this device, or null, and destroyed once, here. The owner promises that no work uses them. Freeing
        // unmaps.
        unsafe {
            self.vulkan.raw.destroy_buffer(self.buffer, None);
            self.vulkan.raw.free_memory(self.memory, None);
            if let Some(part) = self.part.take() {
                self.vulkan.blocks.free(part);
            }
        }
    }
}

impl Vulkan {
    /// Returns whether the host stores short uploads.
    pub(crate) fn stores(&self) -> bool {
        self.stored_types != 0
    }

    /// Returns whether it has memory of a kind.
    pub(crate) fn has(&self, kind: MemoryKind) -> bool {
        !self.types_of(kind).is_empty()
    }

    fn types_of(&self, kind: MemoryKind) -> Vec<u32> {
        types_of(&self.memory, kind, (self.is_host, self.maps_device))
    }

    fn heap_of(&self, memory_type: u32) -> usize {
        let types = self.memory.memory_types_as_slice();
        types.get(memory_type as usize).map_or(0, |one| one.heap_index as usize)
    }

    fn heap_size(&self, memory_type: u32) -> u64 {
        let heaps = self.memory.memory_heaps_as_slice();
        heaps.get(self.heap_of(memory_type)).map_or(0, |heap| heap.size)
    }

    /// Returns the bytes of the heap from which device memory is allocated.
    pub(crate) fn total_memory(&self) -> Option<u64> {
        self.types_of(MemoryKind::Device).first().map(|index| self.heap_size(*index))
    }

    /// Returns free and total bytes of device memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the driver does not tell.
    pub(crate) fn memory_info(&self) -> Result<MemoryInfo> {
        let index = self.types_of(MemoryKind::Device).first().copied();
        let (Some(index), true) = (index, self.has_budget) else {
            let text = format!("{}: its driver does not tell how much memory is free", self.id);
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the device is valid, and has the extension of the structure.
        unsafe { self.instance.get_physical_device_memory_properties2(self.physical, &mut properties) };
        let heap = self.heap_of(index);
        let of = |values: &[u64]| values.get(heap).copied().unwrap_or(0);
        let (most, used) = (of(&budget.heap_budget), of(&budget.heap_usage));
        let total = self.heap_size(index);
        Ok(MemoryInfo { free: most.saturating_sub(used).min(total), total })
    }

    fn out_of_memory(&self, kind: MemoryKind, bytes: usize, cause: Option<vk::Result>) -> Error {
        let (device, numbers) = match kind {
            MemoryKind::Device => (self.id, self.memory_info().ok()),
            _ => (DeviceId::Cpu, host_memory().ok()),
        };
        let shortage = MemoryShortage {
            requested: bytes as u64,
            free: numbers.map(|memory| memory.free),
            total: numbers.map(|memory| memory.total).or_else(|| self.total_memory()),
        };
        let error = Error::out_of_memory(Place::new(device, kind), shortage);
        match cause {
            Some(result) => {
                let text = format!("the driver of {} answered {result}", self.id);
                Error::caused_by(ErrorKind::OutOfMemory, text, error)
            }
            None => error,
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/unmapped.rs"]
mod tests;
