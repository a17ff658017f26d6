//! Which types of memory are the host's, the device's, and both.

use ash::vk::{self, MemoryPropertyFlags as Flags};
use transload_core::MemoryKind;

use super::{MAPPED, can_map_device, types_of, visible_types};

const LOCAL: Flags = Flags::DEVICE_LOCAL;
const VISIBLE: Flags = Flags::from_raw(Flags::HOST_VISIBLE.as_raw() | Flags::HOST_COHERENT.as_raw());
const CACHED: Flags = Flags::from_raw(VISIBLE.as_raw() | Flags::HOST_CACHED.as_raw());
/// Video memory that the host sees.
const BAR: Flags = Flags::from_raw(LOCAL.as_raw() | VISIBLE.as_raw());

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
    assert!(can_map_device(&device(&[(MAPPED, 8)])));
    assert!(can_map_device(&device(&[(LOCAL, 8), (MAPPED, 8)])));
    // A small window, no caches, another heap than the device's own, and no memory of the host at all.
    assert!(!can_map_device(&device(&[(LOCAL, 8), (MAPPED, 1)])));
    assert!(!can_map_device(&device(&[(BAR, 8)])));
    assert!(!can_map_device(&device(&[(LOCAL, 8), (CACHED, 9)])));
    assert!(!can_map_device(&device(&[(LOCAL, 8)])));
}

#[test]
fn pinned_memory_is_never_a_gpus_own() {
    let gpu = (false, false);
    // Resizable BAR, listed first, and cached or not.
    let memory = device(&[(BAR, 80), (MAPPED, 80), (LOCAL, 80), (VISIBLE, 16), (CACHED, 16)]);
    assert_eq!(types_of(&memory, MemoryKind::Pinned, gpu), [4, 3]);
    assert_eq!(types_of(&device(&[(BAR, 80), (LOCAL, 80)]), MemoryKind::Pinned, gpu), []);
    // That of a device whose memory is the host's is the host's, too.
    assert_eq!(types_of(&device(&[(MAPPED, 8)]), MemoryKind::Pinned, (true, true)), [0]);
    // Neither protected memory, nor memory of features that are not enabled.
    let odd = [Flags::PROTECTED, Flags::DEVICE_COHERENT_AMD, Flags::RDMA_CAPABLE_NV];
    let odd = device(&odd.map(|flag| (VISIBLE | flag, 16)));
    assert_eq!(types_of(&odd, MemoryKind::Pinned, gpu), []);
}

#[test]
fn host_stores_to_device_memory_if_it_sees_all_of_it() {
    assert_eq!(visible_types(&device(&[(LOCAL, 80), (CACHED, 16), (BAR, 80)])), 0b100);
    assert_eq!(visible_types(&device(&[(MAPPED, 8)])), 1);
    // A small window, memory of the host, and types that need features.
    let window = device(&[(LOCAL, 80), (CACHED, 160), (BAR, 1), (BAR | Flags::RDMA_CAPABLE_NV, 80)]);
    assert_eq!(visible_types(&window), 0);
}
