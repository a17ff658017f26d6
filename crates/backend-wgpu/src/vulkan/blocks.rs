//! Small allocations share blocks of memory: drivers allow some thousand allocations, and each takes them many microseconds.

use ash::vk;
use gpu_allocator::{
    AllocationSizes, MemoryLocation,
    vulkan::{Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc},
};
use parking_lot::Mutex;

/// Larger allocations have memory of their own.
pub(super) const MOST: u64 = 16 << 20;
/// Bytes of the first block of device and of pinned memory. Each next one is twice as large, up to [`LARGEST`].
const FIRST: (u64, u64) = (16 << 20, 4 << 20);
const LARGEST: u64 = 64 << 20;
/// Alignment that pinned memory promises, and more than buffers need.
const ALIGNMENT: u64 = 256;

/// The blocks of a device.
pub(crate) struct Blocks {
    device: AllocatorCreateDesc,
    state: Mutex<State>,
}

/// A part of a block, and its memory type.
pub(super) type Part = (u32, Allocation);

#[derive(Default)]
struct State {
    /// Made by the first allocation. Its drop frees the blocks.
    allocator: Option<Allocator>,
    /// Of each memory type the part that was freed last: its block would go with it if it was the only one there, and the next allocation would
    /// need a new block, if all others are full.
    kept: Vec<Part>,
    allocations: u64,
    bytes: u64,
    /// Whether the blocks go with the last allocation: they were trimmed since one was made.
    goes: bool,
}

impl Blocks {
    pub(super) fn new(instance: &ash::Instance, device: &ash::Device, physical: vk::PhysicalDevice) -> Self {
        let (of_device, of_host) = FIRST;
        let sizes = AllocationSizes::new(of_device, of_host)
            .with_max_device_memblock_size(LARGEST)
            .with_max_host_memblock_size(LARGEST);
        let mut debug_settings = gpu_allocator::AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let device = AllocatorCreateDesc {
            instance: instance.clone(),
            device: device.clone(),
            physical_device: physical,
            debug_settings,
            buffer_device_address: false,
            allocation_sizes: sizes,
        };
        Self { device, state: Mutex::default() }
    }

    /// Allocates memory of this type. `None` if there is none: memory of its own may still be had, or its error is the driver's.
    pub(super) fn allocate(&self, needs: &vk::MemoryRequirements, memory_type: u32) -> Option<Part> {
        let requirements = vk::MemoryRequirements {
            size: needs.size,
            alignment: needs.alignment.max(ALIGNMENT),
            memory_type_bits: 1 << memory_type,
        };
        let description = AllocationCreateDesc {
            name: "transload",
            requirements,
            // Of any properties: the type is chosen already.
            location: MemoryLocation::Unknown,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        let mut state = self.state.lock();
        let fits = |(of, kept): &Part| {
            let is_aligned = kept.offset().is_multiple_of(requirements.alignment);
            *of == memory_type && kept.size() == requirements.size && is_aligned
        };
        let part = match state.kept.iter().position(fits) {
            Some(at) => state.kept.swap_remove(at),
            None => {
                if state.allocator.is_none() {
                    state.allocator = Allocator::new(&self.device).ok();
                }
                (memory_type, state.allocator.as_mut()?.allocate(&description).ok()?)
            }
        };
        state.allocations += 1;
        state.goes = false;
        state.bytes += part.1.size();
        Some(part)
    }

    /// Frees a part.
    ///
    /// # Safety
    /// * No work uses it, and no buffer of it is used again.
    pub(super) unsafe fn free(&self, part: Part) {
        let mut state = self.state.lock();
        state.allocations -= 1;
        state.bytes -= part.1.size();
        let earlier =
            state.kept.iter().position(|(of, _)| *of == part.0).map(|at| state.kept.swap_remove(at));
        state.kept.push(part);
        state.free_all(earlier);
        if state.goes {
            state.free_kept();
        }
    }

    /// Frees the parts and blocks that are kept. The last block goes once nothing is allocated: now, or with the last part, if none is allocated
    /// before.
    pub(crate) fn trim(&self) {
        let mut state = self.state.lock();
        state.goes = true;
        state.free_kept();
    }

    /// Returns the bytes of the blocks, and how many of them are in no use.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        let all = state.allocator.as_ref().map_or(0, Allocator::capacity);
        (all, all.saturating_sub(state.bytes))
    }
}

impl State {
    fn free_kept(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        self.free_all(kept);
        if self.allocations == 0 {
            self.allocator = None;
        }
    }

    fn free_all(&mut self, parts: impl IntoIterator<Item = Part>) {
        let Some(allocator) = &mut self.allocator else { return };
        for (_, allocation) in parts {
            // It is one of this allocator: else it stays allocated.
            let _freed = allocator.free(allocation);
        }
    }
}

#[cfg(test)]
impl Blocks {
    fn driver_allocations(&self) -> usize {
        let state = self.state.lock();
        state.allocator.as_ref().map_or(0, |allocator| allocator.generate_report().blocks.len())
    }
}

#[cfg(test)]
#[path = "../../tests/unit/blocks.rs"]
mod tests;
