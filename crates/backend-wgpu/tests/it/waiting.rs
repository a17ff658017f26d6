//! Waiting for work, by threads and by tasks.

use transload_core::{Backend, MemoryKind};

use crate::{MIB, copy, setup};

#[test]
fn wait_returns_after_the_work() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) =
        (setup.filled(MemoryKind::Pinned, 64 * MIB, 9), setup.allocate(MemoryKind::Device, 64 * MIB));
    let back = setup.filled(MemoryKind::Pinned, 64 * MIB, 0);
    copy(&queue, &src, &dst);
    let fence = copy(&queue, &dst, &back);
    fence.wait().unwrap();
    assert!(fence.is_known_complete());
    assert!(back.read().unwrap().iter().all(|byte| *byte == 9));
}

#[test]
fn awaited_fences_wake_their_tasks() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) =
        (setup.filled(MemoryKind::Pinned, 32 * MIB, 9), setup.allocate(MemoryKind::Device, 32 * MIB));
    for _ in 0..4 {
        let fences: Vec<_> = (0..3).map(|_| copy(&queue, &src, &dst)).collect();
        // The last first: a task that waits for an earlier point comes later.
        for fence in fences.into_iter().rev() {
            pollster::block_on(fence.done()).unwrap();
        }
    }
}

#[test]
fn work_goes_on_after_its_backend_was_dropped() {
    let Some(setup) = setup() else { return };
    let queue = setup.queue();
    let (src, dst) =
        (setup.filled(MemoryKind::Pinned, 16 * MIB, 3), setup.allocate(MemoryKind::Device, 16 * MIB));
    let back = setup.filled(MemoryKind::Pinned, 16 * MIB, 0);
    copy(&queue, &src, &dst);
    let fence = copy(&queue, &dst, &back);
    drop((setup, queue, src, dst));
    pollster::block_on(fence).unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
}

#[test]
fn point_that_was_never_enqueued_is_an_error() {
    let Some(setup) = setup() else { return };
    let timeline = setup.queue().timeline().clone();
    assert!(timeline.wait(timeline.reached() + 1000).is_err());
    assert_eq!(timeline.poll(timeline.reached() + 1000).ok(), Some(false));
    setup.backend.drain().unwrap();
}
