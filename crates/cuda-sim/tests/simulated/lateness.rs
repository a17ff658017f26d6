//! Work runs late, in a seeded random order, and in pieces.

use transload_cuda_sim::{
    SimDevice,
    harness::{self, noise},
};
use transload_cuda_sys::{AsStream, Event, EventTiming, Stream, check, ffi};

use crate::raw::{Bench, NOT_READY, contents, download, fill, upload};

/// Runs several operations on several streams by waiting for one stream. Returns the order in which they ran.
fn interleaving(seed: u64) -> Vec<(u32, &'static str)> {
    let Some(test) = harness::device_with(|builder| builder.seed(seed)) else { return Vec::new() };
    let bench = Bench::new(test);
    let streams: Vec<Stream> = (0..4).map(|_| bench.stream()).collect();
    let memory = bench.memory(4 << 20);
    for round in 0..6 {
        for stream in &streams {
            fill(stream, memory.address, round, 16).expect("fill");
        }
    }
    for stream in &streams {
        stream.synchronize().expect("healthy");
    }
    let executed = bench.device.sim().map(SimDevice::executed).unwrap_or_default();
    assert_eq!(executed.len(), 24, "all of it ran once");
    executed
}

#[test]
fn a_seed_gives_the_same_order_again() {
    for seed in 0..20 {
        assert_eq!(interleaving(seed), interleaving(seed), "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_orders() {
    let mut orders: Vec<_> = (0..20).map(interleaving).collect();
    orders.sort_unstable();
    orders.dedup();
    assert!(orders.len() >= 15, "only {} orders out of 20 seeds", orders.len());
}

#[test]
fn nothing_runs_before_a_wait() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let memory = bench.memory(1 << 20);
    let target = bench.pinned(1 << 20);
    let mut source = bench.pinned(1 << 20);
    source.set(&noise(1 << 20, 1));
    upload(&stream, memory.address, &source, 0, 1 << 20).expect("up");
    download(&stream, &target, 0, memory.address, 1 << 20).expect("down");
    assert_eq!(target.snapshot(), vec![0; 1 << 20], "the bytes must not be there before the wait");
    // A pinned source is read when the copy runs: real hardware may or may not see this change.
    source.set(&noise(1 << 20, 2));
    stream.synchronize().expect("healthy");
    assert_eq!(target.snapshot(), noise(1 << 20, 2));
}

#[test]
fn a_small_pageable_source_is_read_early_and_lands_late() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let _bound = bench.context.enter().expect("enter");
    let memory = bench.memory(4096);
    let reader = bench.stream();
    let target = bench.pinned(4096);
    let source = vec![5_u8; 4096];
    // SAFETY: the vector has 4096 bytes. This synchronous copy may return before the bytes are on the device.
    check("up", unsafe { ffi::cuMemcpyHtoD_v2(memory.address, source.as_ptr().cast(), 4096) }).expect("up");
    download(&reader, &target, 0, memory.address, 4096).expect("down");
    let queued = bench.device.sim().map(SimDevice::queued);
    assert_eq!(queued, Some(2), "a non-blocking stream is not ordered behind the default stream's copy");
    bench.context.synchronize().expect("healthy");
    assert_eq!(contents(&bench, memory.address, 4096), source);
}

#[test]
fn queries_alone_bring_work_to_its_end() {
    for seed in 0..30 {
        let Some(test) = harness::device_with(|builder| builder.seed(seed)) else { return };
        let bench = Bench::new(test);
        let stream = bench.stream();
        let memory = bench.memory(64);
        for value in 0..10 {
            fill(&stream, memory.address, value, 64).expect("fill");
        }
        let mut queries = 0;
        while !stream.is_idle().expect("healthy") {
            queries += 1;
            assert!(queries < 200, "seed {seed}: 10 operations are not done after 200 queries");
        }
        assert_eq!(contents(&bench, memory.address, 64), [9; 64]);
    }
}

#[test]
fn a_large_copy_lands_in_pieces() {
    let mut partial = 0;
    for seed in 0..40 {
        let Some(test) = harness::device_with(|builder| builder.seed(seed)) else { return };
        let bench = Bench::new(test);
        let stream = bench.stream();
        let bytes = 2 << 20;
        let memory = bench.memory(bytes);
        let target = bench.pinned(bytes);
        let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
        fill(&stream, memory.address, 1, bytes).expect("fill");
        download(&stream, &target, 0, memory.address, bytes).expect("down");
        event.record(&stream).expect("record");
        while !event.is_done().expect("healthy") {
            let ones = target.snapshot().iter().filter(|byte| **byte == 1).count();
            partial += u32::from(ones > 0 && ones < bytes);
        }
        assert_eq!(target.snapshot(), vec![1; bytes]);
    }
    assert!(partial > 10, "a copy was seen half way only {partial} times");
}

#[test]
fn missing_wait_gives_wrong_bytes_for_some_seed() {
    let mut stale = 0;
    for seed in 0..32 {
        let Some(test) = harness::device_with(|builder| builder.seed(seed)) else { return };
        let bench = Bench::new(test);
        let (producer, consumer) = (bench.stream(), bench.stream());
        let memory = bench.memory(4096);
        let target = bench.pinned(4096);
        fill(&producer, memory.address, 1, 4096).expect("fill");
        download(&consumer, &target, 0, memory.address, 4096).expect("down");
        consumer.synchronize().expect("healthy");
        stale += u32::from(target.snapshot() != vec![1; 4096]);
    }
    assert!((8..=32).contains(&stale), "{stale} of 32");
}

#[test]
fn a_query_that_is_not_ready_is_no_error() {
    let Some(test) = harness::device_with(|builder| builder.seed(1)) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let memory = bench.memory(64);
    for value in 0..50 {
        fill(&stream, memory.address, value, 64).expect("fill");
    }
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { ffi::cuStreamQuery(stream.as_raw()) }, NOT_READY);
    assert_eq!(stream.synchronize(), Ok(()));
}

#[test]
fn a_synchronous_copy_to_pinned_memory_is_done_when_it_returns() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let _bound = bench.context.enter().expect("enter");
    let memory = bench.memory(1 << 20);
    let mut source = bench.pinned(1 << 20);
    let target = bench.pinned(1 << 20);
    source.set(&noise(1 << 20, 70));
    // SAFETY: all memory is owned.
    unsafe {
        check("up", ffi::cuMemcpyHtoD_v2(memory.address, source.pointer().cast(), 1 << 20)).expect("up");
        source.set(&noise(1 << 20, 71));
        check("down", ffi::cuMemcpyDtoH_v2(target.pointer().cast(), memory.address, 1 << 20)).expect("down");
    }
    assert_eq!(target.snapshot(), noise(1 << 20, 70));
}

#[test]
fn freeing_memory_waits_for_the_work_that_uses_it() {
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let memory = bench.memory(4096);
    let target = bench.pinned(4096);
    fill(&stream, memory.address, 8, 4096).expect("fill");
    download(&stream, &target, 0, memory.address, 4096).expect("down");
    drop(memory);
    assert_eq!(target.snapshot(), [8; 4096]);
    let source = bench.pinned(4096);
    let memory = bench.memory(4096);
    upload(&stream, memory.address, &source, 0, 4096).expect("up");
    drop(source);
    assert_eq!(bench.device.sim().map(SimDevice::queued), Some(0), "freeing pinned memory waits as well");
    assert_eq!(stream.synchronize(), Ok(()));
    assert_eq!(contents(&bench, memory.address, 4096), [0; 4096]);
}
