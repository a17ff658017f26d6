//! Which buffers a ring keeps, and which it counts as there.

use super::{allocation::Allocating, *};

fn ring(buffers: usize) -> Arc<StagingRing> {
    Arc::new(StagingRing::without_memory(&Executor::with_threads(1).unwrap(), buffers))
}

#[test]
fn release_leaves_a_held_buffer() {
    let ring = ring(3);
    let hold = ring.hold(false).unwrap();
    ring.release();
    assert_eq!(ring.bytes(), STAGING_BUFFER);
    drop(hold);
    ring.release();
    assert_eq!(ring.bytes(), 0);
}

#[test]
fn buffer_being_allocated_is_not_there_yet() {
    let ring = ring(1);
    ring.release();
    let whats = [0; 2].map(|_| ring.state.lock().count_allocations(1));
    assert!(whats == [Allocating::First, Allocating::Another]);
    assert!(!ring.has_buffer());
}
