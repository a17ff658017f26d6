//! More buffers than drivers allow allocations.

use transload_core::{Backend, MemoryKind, Operation, Pattern, StreamPriority, Timing, WorkloadType, submit};

use crate::setup;

/// NVIDIA's driver allows 4,096 allocations.
#[test]
fn small_buffers_share_allocations_of_the_driver() {
    const BUFFERS: usize = 5000;
    const BYTES: usize = 1000;
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let blocks = &state.queue.vulkan.blocks;
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let allocate = |_| backend.allocate(state.id(), kind, BYTES).unwrap();
        let mut buffers: Vec<_> = (0..BUFFERS).map(allocate).collect();
        let allocations = blocks.driver_allocations();
        assert!((1..8).contains(&allocations), "{kind}: {allocations} for {BUFFERS} buffers");
        // Every other one, so that none of the blocks is free.
        let mut index = 0;
        buffers.retain(|_| (index += 1, index % 2 == 0).1);
        buffers.extend((0..BUFFERS / 2).map(allocate));
        assert_eq!(blocks.driver_allocations(), allocations, "{kind}: freed parts are used again");
        if kind == MemoryKind::Pinned {
            let value = |index: usize| (index % 251) as u8;
            for (index, buffer) in buffers.iter().enumerate() {
                buffer.write().unwrap().fill(value(index));
            }
            for (index, buffer) in buffers.iter().enumerate() {
                assert!(buffer.read().unwrap().iter().all(|byte| *byte == value(index)), "{index}");
            }
        }
        let counts = backend.resource_counts();
        assert_eq!(counts.allocations, BUFFERS as u64);
        assert_eq!(counts.bytes - counts.cached_bytes, (BUFFERS * BYTES) as u64);
        drop(buffers);
        backend.drain().unwrap();
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
        assert_eq!(blocks.driver_allocations(), 0);
    }
}

#[test]
fn freed_part_of_a_block_counts_as_reclaimed() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let allocate = || backend.allocate(state.id(), MemoryKind::Device, 1 << 20).unwrap();
    let (_kept, dropped) = (allocate(), allocate());
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    submit(&*queue, &Operation::Fill { dst: &dropped, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
    drop(dropped);
    // Perhaps the device was done with it already: then there is nothing to reclaim.
    let was_pending = backend.resource_counts().pending_free > 0;
    assert_eq!(state.reclaim(), was_pending);
}

/// Another thread, such as one of the host's queues, may let go of the last buffer just after a drain.
#[test]
fn blocks_go_with_the_last_buffer_after_a_drain() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let blocks = &state.queue.vulkan.blocks;
    let allocate = || backend.allocate(state.id(), MemoryKind::Pinned, 1000).unwrap();
    let last = allocate();
    backend.drain().unwrap();
    drop(last);
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    let (first, last) = (allocate(), allocate());
    backend.drain().unwrap();
    drop((first, allocate(), last));
    assert_eq!(blocks.driver_allocations(), 1, "kept: one was made since");
    backend.drain().unwrap();
    assert_eq!(blocks.driver_allocations(), 0);
}

/// Else a program whose memory fills its blocks would have the driver allocate one for each short-lived buffer.
#[test]
fn block_of_a_short_lived_buffer_is_kept_for_the_next_one() {
    const BYTES: usize = 1 << 20;
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let blocks = &state.queue.vulkan.blocks;
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let allocate = |bytes| backend.allocate(state.id(), kind, bytes).unwrap();
        // Until the first block has no room for another one.
        let mut full = vec![allocate(BYTES)];
        let first = loop {
            let next = allocate(BYTES);
            if blocks.driver_allocations() > 1 {
                break next;
            }
            full.push(next);
        };
        drop(first);
        assert_eq!(blocks.driver_allocations(), 2, "{kind}");
        let in_use = backend.resource_counts();
        assert_eq!(in_use.bytes - in_use.cached_bytes, (full.len() * BYTES) as u64, "{kind}");
        // Of the same length or another one.
        for bytes in [BYTES, 1000, BYTES, 1000] {
            let short_lived = allocate(bytes);
            assert_eq!(blocks.driver_allocations(), 2, "{kind}, {bytes} bytes");
            drop(short_lived);
            assert_eq!(blocks.driver_allocations(), 2, "{kind}, {bytes} bytes");
        }
        backend.drain().unwrap();
        assert_eq!(blocks.driver_allocations(), 1, "{kind}: freed by a drain");
        drop(full);
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
        assert_eq!(blocks.driver_allocations(), 0, "{kind}");
    }
}
