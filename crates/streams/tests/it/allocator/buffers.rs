//! Buffers are freed on drop, even with work in flight.

use transload_core::{MemoryKind, Pattern, submit};
use transload_cuda_sim::harness::is_real;
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::{Fixture, calls_of},
    support::setup::noise,
};

#[test]
fn dropped_buffer_is_reused_at_once_without_a_driver_call() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let first = fixture.allocator.allocate_buffer(&stream, 100_000).unwrap();
    let address = first.device_address();
    drop(stream.memset_async(&first, Pattern::U8(1)));
    let (second, calls) = calls_of(|| {
        drop(first);
        fixture.allocator.allocate_buffer(&stream, 100_000).unwrap()
    });
    assert_eq!(second.device_address(), address);
    assert!(calls.is_empty(), "{calls:?}");
    let ((), calls) = calls_of(|| drop(stream.memset_async(&second, Pattern::U8(2))));
    assert!(!calls.contains(&"cuStreamWaitEvent"), "one stream is in order by itself: {calls:?}");
    assert_eq!(fixture.memory.resource_counts().pending_free, 0, "nothing is parked");
    stream.synchronize().unwrap();
    drop((second, stream));
    fixture.finish();
}

#[test]
fn buffer_over_used_memory_waits_on_its_first_stream() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.stream(), fixture.stream());
    let back = fixture.setup.pinned(&vec![0; 300_000]);
    for round in 0..20 {
        let content = noise(300_000, round);
        let host = fixture.setup.pinned(&content);
        let first = fixture.allocator.allocate_buffer(&one, 300_000).unwrap();
        drop(one.copy_from_host_async(&host, &first));
        let down = one.copy_to_host_async(&first, &back);
        drop(first);
        // From the first stream's memory, but used on the second.
        let second = fixture.allocator.allocate_buffer(&one, 300_000).unwrap();
        let over = two.memset_async(&second, Pattern::U8(0xFF));
        down.wait().unwrap();
        assert!(*back.read().unwrap() == content[..], "round {round}");
        over.wait().unwrap();
    }
    drop((one, two, back));
    fixture.finish();
}

#[test]
fn uses_on_other_streams_need_not_be_recorded() {
    let fixture = Fixture::with(MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).segments(1 << 20, 1 << 20).limit(1 << 20).build().unwrap()
    });
    let streams: Vec<_> = (0..3).map(|_| fixture.stream()).collect();
    let back = fixture.setup.pinned(&vec![0; 1 << 20]);
    for round in 0..12_u8 {
        let (writer, reader) = (&streams[usize::from(round) % 3], &streams[usize::from(round + 1) % 3]);
        let buffer = fixture.allocator.allocate_buffer(writer, 1 << 20).unwrap();
        drop(writer.memset_async(&buffer, Pattern::U8(round)));
        let down = reader.copy_to_host_async(&buffer, &back);
        drop(buffer);
        // The only memory, while another stream still reads it.
        let next = fixture.allocator.allocate_buffer(writer, 1 << 20).unwrap();
        drop(writer.memset_async(&next, Pattern::U8(0xFF)));
        down.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    drop((streams, back));
    fixture.finish();
}

#[test]
fn raw_blocks_and_buffers_share_memory_in_order() {
    let fixture = Fixture::with(MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).segments(1 << 20, 1 << 20).limit(1 << 20).build().unwrap()
    });
    let (one, two) = (fixture.stream(), fixture.stream());
    let back = fixture.setup.pinned(&vec![0; 1 << 20]);
    for round in 0..10_u8 {
        let block = fixture.allocator.allocate_for_stream(&one, 1 << 20).unwrap();
        crate::allocator::across_streams::fill(&one, block, round);
        crate::allocator::across_streams::read_back(&one, block, &back);
        fixture.allocator.free_on(block, &one).unwrap();
        let buffer = fixture.allocator.allocate_buffer(&one, 1 << 20).unwrap();
        // The first use is on another stream, and the raw work has no fence of its own.
        drop(two.memset_async(&buffer, Pattern::U8(0xEE)));
        one.synchronize().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
        drop(buffer);
        let block = fixture.allocator.allocate_for_stream(&one, 1 << 20).unwrap();
        crate::allocator::across_streams::fill(&one, block, 3);
        fixture.allocator.free_on(block, &one).unwrap();
    }
    one.synchronize().unwrap();
    two.synchronize().unwrap();
    drop((one, two, back));
    fixture.finish();
}

#[test]
fn host_views_of_a_reused_block_wait_for_its_last_use() {
    let fixture = Fixture::over(MemoryKind::Pinned);
    let stream = fixture.stream();
    let there = fixture.setup.device(200_000);
    for round in 0..10_u8 {
        let up = fixture.allocator.allocate_buffer(&stream, 200_000).unwrap();
        up.write().unwrap().fill(round);
        drop(stream.copy_from_host_async(&up, &there));
        drop(up);
        let next = fixture.allocator.allocate_buffer(&stream, 200_000).unwrap();
        // Overwriting what the copy still reads must wait for it.
        next.write().unwrap().fill(0xFF);
        let back = fixture.setup.pinned(&vec![0; 200_000]);
        stream.copy_to_host_async(&there, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
    drop((stream, there));
    fixture.finish();
}

#[test]
fn a_buffer_outlives_the_allocator_and_its_stream() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let buffer = fixture.allocator.allocate_buffer(&stream, 4096).unwrap();
    drop(stream);
    let Fixture { setup, memory, allocator } = fixture;
    drop(allocator);
    let other = transload_streams::CudaStream::new(&setup.device).unwrap();
    other.memset_async(&buffer, Pattern::U8(1)).wait().unwrap();
    drop((buffer, other));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    setup.finish();
}

#[test]
fn fence_of_another_backend_delays_reuse() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let buffer = fixture.allocator.allocate_buffer(&stream, 4096).unwrap();
    let address = buffer.device_address();
    // Any timeline other than a stream's stands for another backend's.
    let elsewhere = crate::support::cpu_gate::Gate::before(&buffer);
    drop(buffer);
    let raw = fixture.allocator.allocate_for_stream(&stream, 4096).unwrap();
    assert_ne!(Some(raw.address()), address, "a stream cannot wait for it, so other memory is used");
    elsewhere.open();
    fixture.allocator.free_on(raw, &stream).unwrap();
    drop(stream);
    fixture.finish();
}

#[test]
fn peer_copy_of_a_block_finds_its_context() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let buffer = fixture.allocator.allocate_buffer(&stream, 4096).unwrap();
    assert!(transload_memory::context_of(&buffer).is_some());
    let fill = transload_core::Operation::Fill { dst: &buffer, pattern: Pattern::U8(1) };
    submit(&stream, &fill, transload_core::Timing::Off).unwrap().wait().unwrap();
    if is_real() {
        println!("peer copies themselves are tested where there are two devices");
    }
    drop((buffer, stream));
    fixture.finish();
}
