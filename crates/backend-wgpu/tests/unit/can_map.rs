//! Which devices of the host have memory that is mapped.

use ash::vk::{self, MemoryPropertyFlags as Flags};

use super::{MAPPED, can_map_device};

/// A device with types of memory on heaps of so many bytes.
fn device(types: &[(Flags, u64)]) -> vk::PhysicalDeviceMemoryProperties {
    let mut memory = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: types.len() as u32,
        memory_heap_count: types.len() as u32,
        ..vk::PhysicalDeviceMemoryProperties::default()
    };
    for (index, (flags, size)) in types.iter().enumerate() {
        memory.memory_types[index] = vk::MemoryType { property_flags: *flags, heap_index: index as u32 };
        memory.memory_heaps[index].size = *size;
    }
    memory
}

#[test]
fn device_memory_is_mapped_if_the_largest_heap_is_cached_by_the_host() {
    let (visible, local) = (Flags::HOST_VISIBLE | Flags::HOST_COHERENT, Flags::DEVICE_LOCAL);
    assert!(can_map_device(&device(&[(MAPPED, 8)])));
    assert!(can_map_device(&device(&[(local, 8), (MAPPED, 8)])));
    // A small window, no caches, another heap than the device's own, and no memory of the host at all.
    assert!(!can_map_device(&device(&[(local, 8), (MAPPED, 1)])));
    assert!(!can_map_device(&device(&[(local | visible, 8)])));
    assert!(!can_map_device(&device(&[(local, 8), (visible | Flags::HOST_CACHED, 9)])));
    assert!(!can_map_device(&device(&[(local, 8)])));
}
