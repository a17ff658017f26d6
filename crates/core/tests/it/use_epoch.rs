//! Who used unified memory last, as the count of its moves tells.

use std::{ptr::NonNull, sync::Arc};

use transload_core::{Access, DeviceId, HostBytes, MemoryKind, RawBuffer, Reclaimer};

const NEAR: DeviceId = DeviceId::Cuda(0);

fn memory(kind: MemoryKind) -> RawBuffer {
    let mut bytes = Box::new([0_u128; 4]);
    let address = NonNull::from(&mut *bytes).cast();
    // SAFETY: the owner keeps 64 aligned bytes at this address, without another user.
    let storage = unsafe { HostBytes::new(bytes, address, 64, kind, true) };
    RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()))
}

#[test]
fn a_device_that_alone_uses_it_sees_one_number() {
    let memory = memory(MemoryKind::Unified);
    let first = memory.use_epoch_for(NEAR);
    for _ in 0..3 {
        memory.record_external_use(NEAR);
        assert_eq!(memory.use_epoch_for(NEAR), first);
    }
}

#[test]
fn use_epoch_changes_until_own_next_use() {
    for other in [DeviceId::Cpu, DeviceId::Cuda(1), DeviceId::Wgpu(0), DeviceId::Cuda(u32::MAX)] {
        let memory = memory(MemoryKind::Unified);
        memory.record_external_use(NEAR);
        let before = memory.use_epoch_for(NEAR);
        for _ in 0..3 {
            memory.record_external_use(other);
            assert_ne!(memory.use_epoch_for(NEAR), before, "{other}");
        }
        let expected = memory.use_epoch_for(NEAR);
        memory.record_external_use(NEAR);
        assert_eq!(memory.use_epoch_for(NEAR), expected, "the use itself was counted");
    }
}

#[test]
fn a_loan_is_seen_even_between_two_others() {
    let memory = memory(MemoryKind::Unified);
    memory.record_external_use(NEAR);
    let mut seen = vec![memory.use_epoch_for(NEAR)];
    for _ in 0..3 {
        drop(memory.lend(Access::Read).unwrap());
        seen.push(memory.use_epoch_for(NEAR));
    }
    assert!(seen.is_sorted_by(|before, after| before < after), "{seen:?}");
}

#[test]
fn memory_that_does_not_migrate_never_moves() {
    let memory = memory(MemoryKind::Pinned);
    let before = memory.use_epoch_for(NEAR);
    memory.record_external_use(DeviceId::Cpu);
    drop(memory.lend(Access::Write).unwrap());
    assert_eq!(memory.use_epoch_for(NEAR), before);
}
