//! Which types of a device's memory are of which kind.

use ash::vk::{self, MemoryPropertyFlags as Flags};
use transload_core::MemoryKind;

/// What memory is that both the host and a device call their own. Without its caches the host reads slowly.
const MAPPED: Flags = Flags::from_raw(
    Flags::DEVICE_LOCAL.as_raw()
        | Flags::HOST_VISIBLE.as_raw()
        | Flags::HOST_COHERENT.as_raw()
        | Flags::HOST_CACHED.as_raw(),
);

/// What needs features of the device that are not enabled.
const REFUSED: Flags = Flags::from_raw(
    Flags::PROTECTED.as_raw()
        | Flags::DEVICE_COHERENT_AMD.as_raw()
        | Flags::DEVICE_UNCACHED_AMD.as_raw()
        | Flags::RDMA_CAPABLE_NV.as_raw(),
);

/// Returns whether all memory of a device, which is the host's, can be mapped as memory of both: the largest of the device's heaps has such
/// a type. Others have a small one, for what the device reads as the host writes it.
pub(super) fn can_map_device(memory: &vk::PhysicalDeviceMemoryProperties) -> bool {
    let heap = |one: &vk::MemoryType| memory.memory_heaps_as_slice().get(one.heap_index as usize);
    let largest = |needed: Flags| {
        let fitting = memory.memory_types_as_slice().iter().filter(|one| one.property_flags.contains(needed));
        fitting.filter_map(heap).map(|heap| heap.size).max()
    };
    largest(MAPPED).is_some() && largest(MAPPED) == largest(Flags::DEVICE_LOCAL)
}

/// Returns the types of a device's own memory that the host sees, a bit each, if that is all of the memory ("resizable BAR"). Others have a
/// small window.
pub(super) fn visible_types(memory: &vk::PhysicalDeviceMemoryProperties) -> u32 {
    let visible = Flags::DEVICE_LOCAL | Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let size = |one: &vk::MemoryType| {
        memory.memory_heaps_as_slice().get(one.heap_index as usize).map(|heap| heap.size)
    };
    let all = memory.memory_types_as_slice();
    let own = |one: &&vk::MemoryType| one.property_flags.contains(Flags::DEVICE_LOCAL);
    let largest = all.iter().filter(own).filter_map(size).max();
    let fits = |one: &vk::MemoryType| {
        one.property_flags.contains(visible)
            && !one.property_flags.intersects(REFUSED)
            && size(one) == largest
    };
    (0..).zip(all).filter(|(_, one)| fits(one)).fold(0, |found, (index, _)| found | 1 << index)
}

/// Returns the types of memory that are of a kind, best first, of a device whose memory is the host's, and mapped, or not. Pinned memory is
/// coherent, cached if possible (reading other memory is slow), and never a device's own memory that the host happens to see.
pub(super) fn types_of(
    memory: &vk::PhysicalDeviceMemoryProperties,
    kind: MemoryKind,
    (is_host, maps_device): (bool, bool),
) -> Vec<u32> {
    let (needed, refused, preferred) = match kind {
        MemoryKind::Device | MemoryKind::Mapped if maps_device => (MAPPED, Flags::empty(), Flags::empty()),
        MemoryKind::Device => (Flags::DEVICE_LOCAL, Flags::LAZILY_ALLOCATED, Flags::empty()),
        MemoryKind::Pinned => {
            let refused = if is_host { Flags::empty() } else { Flags::DEVICE_LOCAL };
            (Flags::HOST_VISIBLE | Flags::HOST_COHERENT, refused, Flags::HOST_CACHED)
        }
        _ => return Vec::new(),
    };
    let refused = refused | REFUSED;
    let fits = |flags: Flags| flags.contains(needed) && !flags.intersects(refused);
    let all = memory.memory_types_as_slice();
    let mut found: Vec<_> = (0..).zip(all).filter(|(_, one)| fits(one.property_flags)).collect();
    // Stable: drivers list the faster type first.
    found.sort_by_key(|(_, one)| !one.property_flags.contains(preferred));
    found.into_iter().map(|(index, _)| index).collect()
}

#[cfg(test)]
#[path = "../../tests/unit/types.rs"]
mod tests;
