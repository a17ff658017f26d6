//! Copies of memory that is not the device's.

use std::thread;

use transload_core::{Backend, ErrorKind, MemoryKind, Operation, Timing, submit};

use crate::{MIB, copy, setup};

#[test]
fn device_memory_of_another_backend_is_refused() {
    let (Some(ours), Some(theirs)) = (setup(), setup()) else { return };
    // The same adapter, but another device of it.
    let (src, dst) = (theirs.allocate(MemoryKind::Device, 100), ours.allocate(MemoryKind::Device, 100));
    for (src, dst) in [(&src, &dst), (&dst, &src)] {
        let refused = submit(&*ours.queue(), &Operation::Copy { src, dst }, Timing::Off).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
    // Its pinned memory is host memory like any other.
    let (pinned, back) =
        (theirs.filled(MemoryKind::Pinned, 100, 7), theirs.filled(MemoryKind::Pinned, 100, 0));
    copy(&ours.queue(), &pinned, &dst).wait().unwrap();
    copy(&ours.queue(), &dst, &back).wait().unwrap();
    assert_eq!(*back.read().unwrap(), [7; 100]);
}

/// A staging buffer must not be written again before the device has read it.
#[test]
fn uploads_after_long_work_keep_their_bytes() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (long, other) =
        (setup.allocate(MemoryKind::Device, 32 * MIB), setup.allocate(MemoryKind::Device, 32 * MIB));
    for round in 0..4 {
        copy(&queue, &long, &other);
        let parts: Vec<_> = (0..24_u8)
            .map(|part| {
                let there = setup.allocate(MemoryKind::Device, MIB / 4);
                copy(&queue, &setup.filled(MemoryKind::Pageable, there.len(), round * 50 + part), &there);
                there
            })
            .collect();
        for (part, there) in (0..).zip(parts) {
            let back = setup.filled(MemoryKind::Pinned, there.len(), 0);
            copy(&queue, &there, &back).wait().unwrap();
            assert!(back.read().unwrap().iter().all(|byte| *byte == round * 50 + part));
        }
    }
    drop((long, other, queue));
    setup.assert_empty();
}

#[test]
fn downloads_after_long_work_wait_for_it() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (long, there) =
        (setup.allocate(MemoryKind::Device, 64 * MIB), setup.allocate(MemoryKind::Device, 64 * MIB));
    for byte in 1..4 {
        copy(&queue, &setup.filled(MemoryKind::Pinned, long.len(), byte), &long);
        copy(&queue, &long, &there);
        let back = setup.filled(MemoryKind::Pageable, 5 * MIB + 1, 0);
        // A copy to pageable memory is complete when it was submitted.
        let fence = copy(&queue, &there.slice(3..3 + back.len()).unwrap(), &back);
        assert!(fence.is_known_complete());
        assert!(back.read().unwrap().iter().all(|found| *found == byte));
    }
}

/// Each of these needs two staging buffers at a time, all together more than are kept.
#[test]
fn many_threads_share_the_staging_buffers() {
    let Some(setup) = setup() else { return };
    thread::scope(|scope| {
        for thread in 0..12 {
            let setup = &setup;
            scope.spawn(move || {
                let queue = setup.queue();
                let there = setup.allocate(MemoryKind::Device, 3 * MIB);
                for round in 0..3 {
                    let byte = thread * 10 + round;
                    let back = setup.filled(MemoryKind::Pageable, there.len(), 0);
                    copy(&queue, &setup.filled(MemoryKind::Pageable, there.len(), byte), &there);
                    copy(&queue, &there, &back).wait().unwrap();
                    assert!(back.read().unwrap().iter().all(|found| *found == byte));
                }
            });
        }
    });
    let kept = setup.backend.resource_counts().cached_bytes;
    // Those that are kept, and the rests of a block of device and one of pinned memory.
    assert!(kept <= (40 + 2 * 64) * MIB as u64, "{kept} bytes");
    setup.assert_empty();
}
