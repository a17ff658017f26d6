//! Freeing all blocks of a stream at once.

use transload_streams::StreamOrderedAllocator;

use super::{
    Fixture,
    across_streams::{fill, read_back},
};
use crate::support::gate::Gate;

#[test]
fn all_plain_blocks_of_one_stream_are_freed() {
    let fixture = Fixture::new();
    let (own, other) = (fixture.stream(), fixture.stream());
    let allocator: &StreamOrderedAllocator = &fixture.allocator;
    assert_eq!(allocator.free_for_stream(&own).unwrap(), 0, "a stream without blocks");
    let blocks = [512, 5000, 3 << 20].map(|bytes| allocator.allocate_for_stream(&own, bytes).unwrap());
    let (foreign, buffer) = (
        allocator.allocate_for_stream(&other, 5000).unwrap(),
        allocator.allocate_buffer(&own, 5000).unwrap(),
    );
    allocator.free_on(blocks[0], &own).unwrap();
    assert_eq!(allocator.free_for_stream(&own).unwrap(), 2);
    assert_eq!(allocator.statistics().live_blocks, 2, "the other stream's block and the buffer");
    for block in blocks {
        assert!(allocator.free(block).is_err(), "freed before");
    }
    drop(buffer);
    allocator.free_on(foreign, &other).unwrap();
    assert_eq!(allocator.free_for_stream(&own).unwrap(), 0);
    drop((own, other));
    fixture.finish();
}

#[test]
fn freed_blocks_wait_for_their_recorded_users() {
    let fixture = Fixture::with(transload_core::MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).segments(1 << 20, 1 << 20).limit(1 << 20).build().unwrap()
    });
    let (own, user) = (fixture.stream(), fixture.stream());
    let back = fixture.setup.pinned(&vec![0; 1 << 20]);
    let block = fixture.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
    fill(&own, block, 7);
    fixture.allocator.add_stream_dependency(&user, &own).unwrap();
    read_back(&user, block, &back);
    fixture.allocator.record_use(block, &user).unwrap();
    assert_eq!(fixture.allocator.free_for_stream(&own).unwrap(), 1);
    // The only memory: it is overwritten after the copy.
    let again = fixture.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
    assert_eq!(again.address(), block.address());
    fill(&own, again, 0xFF);
    user.synchronize().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
    own.synchronize().unwrap();
    drop((own, user, back));
    fixture.finish();
}

#[test]
fn blocks_of_a_released_stream_are_freed_in_order() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let before = fixture.allocator.allocate_for_stream(&stream, 5000).unwrap();
    fixture.allocator.release_stream(&stream).unwrap();
    let gate = Gate::before(fixture.device(), &[&stream]);
    fill(&stream, before, 1);
    let after = fixture.allocator.allocate_for_stream(&stream, 5000).unwrap();
    assert_ne!(before.address(), after.address());
    assert_eq!(fixture.allocator.free_for_stream(&stream).unwrap(), 2);
    let statistics = fixture.allocator.statistics();
    assert_eq!((statistics.live_blocks, statistics.pending_free_blocks), (0, 1), "the fill is in flight");
    gate.open();
    stream.synchronize().unwrap();
    drop(stream);
    fixture.finish();
}
