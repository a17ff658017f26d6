//! The host writes the next pinned buffer while the last one is still uploaded, and what that takes stays within a bound.

use transload_core::{ErrorKind, RawBuffer};
use transload_cuda_sim::harness::is_real;
use transload_memory::PinnedResource;
use transload_streams::{AllocatorBuilder, CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::{Bed, calls_of},
    support::{
        gate::{Gate, limited},
        setup::noise,
    },
};

const MIB: usize = 1 << 20;

fn builder(bed: &Bed) -> AllocatorBuilder<PinnedResource> {
    StreamOrderedAllocator::builder(PinnedResource::new(&bed.memory)).exact_segments()
}

fn address(buffer: &RawBuffer) -> usize {
    buffer.host_address().unwrap().addr().get()
}

/// What a loop does with each buffer; it is dropped while the upload runs.
fn upload(stream: &CudaStream, source: RawBuffer, target: &RawBuffer) {
    drop(stream.copy_from_host_async(&source, target));
}

/// A real driver may wait for the device before it pins memory, so what a test needs behind a gate is pinned before.
fn pinned_before(pool: &StreamOrderedAllocator, stream: &CudaStream, buffers: usize) {
    if is_real() {
        let held: Vec<_> = (0..buffers).map(|_| pool.allocate_buffer(stream, MIB).unwrap()).collect();
        drop(held);
    }
}

#[test]
fn the_host_writes_the_next_buffer_while_the_last_ones_are_uploaded() {
    limited(|| {
        let bed = Bed::new();
        let (stream, pool) = (bed.stream(), builder(&bed).build().unwrap());
        let targets: Vec<RawBuffer> = (0..5).map(|_| bed.setup.device(MIB)).collect();
        pinned_before(&pool, &stream, 5);
        let gate = Gate::before(bed.device(), &[&stream]);
        for (round, target) in targets.iter().enumerate() {
            let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
            // Were it one of those that are read, it would be busy.
            buffer.try_write().unwrap().copy_from_slice(&noise(MIB, round as u64));
            upload(&stream, buffer, target);
        }
        gate.open();
        let back = bed.setup.pinned(&vec![0; MIB]);
        for (round, target) in targets.iter().enumerate() {
            stream.copy_to_host_async(target, &back).wait().unwrap();
            assert!(*back.read().unwrap() == noise(MIB, round as u64)[..], "round {round}");
        }
        drop((pool, targets, back, stream));
        bed.finish();
    });
}

#[test]
fn what_is_held_for_that_is_bounded_and_then_the_block_comes_that_is_over_first() {
    limited(|| {
        let bed = Bed::new();
        let (stream, pool) = (bed.stream(), builder(&bed).ahead(3 * MIB as u64).build().unwrap());
        let target = bed.setup.device(MIB);
        pinned_before(&pool, &stream, 3);
        let gate = Gate::before(bed.device(), &[&stream]);
        let mut addresses = Vec::new();
        for _ in 0..12 {
            let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
            addresses.push(address(&buffer));
            if addresses.len() > 3 {
                assert_eq!(buffer.try_write().unwrap_err().kind(), ErrorKind::Busy);
            }
            upload(&stream, buffer, &target);
            assert!(pool.statistics().reserved <= 3 * MIB as u64);
        }
        let distinct: std::collections::HashSet<_> = addresses[..3].iter().collect();
        assert_eq!(distinct.len(), 3);
        assert!(addresses.iter().zip(&addresses[3..]).all(|(before, now)| before == now), "{addresses:x?}");
        gate.open();
        drop((pool, target, stream));
        bed.finish();
    });
}

#[test]
fn a_limit_or_an_allocator_that_may_not_run_ahead_gives_what_is_there() {
    limited(|| {
        let bed = Bed::new();
        let stream = bed.stream();
        let target = bed.setup.device(MIB);
        for pool in [builder(&bed).limit(MIB as u64), builder(&bed).ahead(0)] {
            let pool = pool.build().unwrap();
            let first = pool.allocate_buffer(&stream, MIB).unwrap();
            let gate = Gate::before(bed.device(), &[&stream]);
            let was = address(&first);
            upload(&stream, first, &target);
            let next = pool.allocate_buffer(&stream, MIB).unwrap();
            assert_eq!(address(&next), was);
            assert_eq!(next.try_write().unwrap_err().kind(), ErrorKind::Busy);
            gate.open();
            next.write().unwrap().fill(0);
        }
        drop((target, stream));
        bed.finish();
    });
}

#[test]
fn a_block_whose_work_is_over_comes_before_new_memory() {
    let bed = Bed::new();
    let (stream, pool) = (bed.stream(), builder(&bed).build().unwrap());
    let target = bed.setup.device(MIB);
    let first = pool.allocate_buffer(&stream, MIB).unwrap();
    let was = address(&first);
    upload(&stream, first, &target);
    for round in 0..10 {
        // Nobody of ours knows that it is over.
        transload_cuda_sys::AsStream::context(&stream).synchronize().unwrap();
        let (next, calls) = calls_of(|| pool.allocate_buffer(&stream, MIB).unwrap());
        assert_eq!(address(&next), was, "round {round}");
        let questions = calls.iter().filter(|call| **call != "cuThreadExchangeStreamCaptureMode");
        assert!(questions.eq(["cuEventQuery"].iter()), "one question is enough: {calls:?}");
        upload(&stream, next, &target);
    }
    // Known to be over, it costs nothing at all.
    stream.synchronize().unwrap();
    let (next, calls) = calls_of(|| pool.allocate_buffer(&stream, MIB).unwrap());
    assert_eq!((address(&next), calls.as_slice()), (was, [].as_slice()));
    assert_eq!(pool.statistics().reserved, MIB as u64);
    drop((next, pool, target, stream));
    bed.finish();
}

#[test]
fn a_run_of_small_uploads_still_shares_its_events() {
    let bed = Bed::new();
    let (stream, pool) = (bed.stream(), builder(&bed).build().unwrap());
    let target = bed.setup.device(4096);
    // The segment that they share.
    drop(pool.allocate_buffer(&stream, 4096).unwrap());
    let ((), calls) = calls_of(|| {
        for round in 0..160 {
            let buffer = pool.allocate_buffer(&stream, 4096).unwrap();
            buffer.try_write().unwrap().fill(round);
            upload(&stream, buffer, &target);
        }
    });
    let events = calls.iter().filter(|call| **call == "cuEventRecord").count();
    assert!(events <= 12, "{events} events for 160 uploads of 4 KiB: a run has 16");
    drop((pool, target, stream));
    bed.finish();
}

#[test]
fn a_buffer_that_another_stream_still_reads_is_not_written_next_either() {
    limited(|| {
        let bed = Bed::new();
        let (own, other) = (bed.stream(), bed.stream());
        let pool = builder(&bed).ahead(2 * MIB as u64).build().unwrap();
        let target = bed.setup.device(MIB);
        pinned_before(&pool, &own, 2);
        let gate = Gate::before(bed.device(), &[&other]);
        let first = pool.allocate_buffer(&own, MIB).unwrap();
        upload(&other, first, &target);
        let second = pool.allocate_buffer(&own, MIB).unwrap();
        second.try_write().unwrap().fill(1);
        upload(&other, second, &target);
        // Both are in flight, which is all that may be.
        let third = pool.allocate_buffer(&own, MIB).unwrap();
        assert_eq!(third.try_write().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(pool.statistics().reserved, 2 * MIB as u64);
        gate.open();
        third.write().unwrap().fill(2);
        drop((third, pool, target, own, other));
        bed.finish();
    });
}

#[test]
fn a_buffer_of_which_only_another_streams_work_is_over_is_not_written_next_either() {
    limited(|| {
        let bed = Bed::new();
        let (own, other) = (bed.stream(), bed.stream());
        let pool = builder(&bed).build().unwrap();
        let targets = [bed.setup.device(MIB), bed.setup.device(MIB)];
        pinned_before(&pool, &own, 2);
        let gate = Gate::before(bed.device(), &[&own]);
        let first = pool.allocate_buffer(&own, MIB).unwrap();
        let up = other.copy_from_host_async(&first, &targets[0]);
        upload(&own, first, &targets[1]);
        up.wait().unwrap();
        for _ in 0..2 {
            let next = pool.allocate_buffer(&own, MIB).unwrap();
            next.try_write().unwrap().fill(1);
        }
        gate.open();
        drop((pool, targets, own, other));
        bed.finish();
    });
}

#[test]
fn plain_blocks_are_given_in_the_order_of_the_stream_also_while_in_flight() {
    limited(|| {
        let bed = Bed::new();
        let (stream, pool) = (bed.stream(), builder(&bed).build().unwrap());
        let target = bed.setup.device(MIB);
        let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
        let gate = Gate::before(bed.device(), &[&stream]);
        let was = address(&buffer);
        upload(&stream, buffer, &target);
        let block = pool.allocate_for_stream(&stream, MIB).unwrap();
        assert_eq!(block.address(), was as u64);
        pool.free_for_stream(block, &stream).unwrap();
        gate.open();
        drop((pool, target, stream));
        bed.finish();
    });
}

#[test]
fn what_was_in_flight_is_joined_and_given_back_once_it_is_over() {
    limited(|| {
        let bed = Bed::new();
        let pool = builder(&bed).segments(4 * MIB as u64, 4 * MIB as u64).build().unwrap();
        let target = bed.setup.device(32 << 10);
        for _ in 0..2 {
            let stream = bed.stream();
            drop(pool.allocate_buffer(&stream, 32 << 10).unwrap());
            let gate = Gate::before(bed.device(), &[&stream]);
            for _ in 0..128 {
                upload(&stream, pool.allocate_buffer(&stream, 32 << 10).unwrap(), &target);
            }
            assert_eq!(pool.statistics().reserved, 4 * MIB as u64);
            assert_eq!(pool.trim().unwrap(), 0, "nothing is over");
            gate.open();
            stream.synchronize().unwrap();
            assert_eq!(pool.trim().unwrap(), 4 * MIB as u64);
        }
        // The same of a stream that is gone.
        let (gone, stream) = (bed.stream(), bed.stream());
        for _ in 0..128 {
            upload(&gone, pool.allocate_buffer(&gone, 32 << 10).unwrap(), &target);
        }
        gone.synchronize().unwrap();
        drop(gone);
        for _ in 0..128 {
            upload(&stream, pool.allocate_buffer(&stream, 32 << 10).unwrap(), &target);
        }
        assert_eq!(pool.statistics().reserved, 4 * MIB as u64);
        drop((pool, target, stream));
        bed.finish();
    });
}

const THREADS: u64 = 4;
const LARGEST: usize = 60_000;

/// One thread's uploads: written by the host, read by a copy engine of any stream, and dropped meanwhile.
fn work(bed: &Bed, pool: &StreamOrderedAllocator, streams: &[CudaStream], seed: u64, uploads: u64) {
    let target = bed.memory.allocate(transload_core::MemoryKind::Device, LARGEST).unwrap();
    let back = bed.memory.allocate(transload_core::MemoryKind::Pinned, LARGEST).unwrap();
    for round in 0..uploads {
        let draw = noise(8, seed * 1000 + round);
        let (of, by) = (usize::from(draw[0]) % streams.len(), usize::from(draw[1]) % streams.len());
        let bytes = 1 + usize::from(draw[2]) * usize::from(draw[3]) % LARGEST;
        let buffer = pool.allocate_buffer(&streams[of], bytes).unwrap();
        buffer.write().unwrap().fill(draw[4]);
        let part = target.slice(..bytes).unwrap();
        drop(streams[by].copy_from_host_async(&buffer, &part));
        drop(buffer);
        if draw[5] < 64 {
            let into = back.slice(..bytes).unwrap();
            streams[of].copy_to_host_async(&part, &into).wait().unwrap();
            assert!(into.read().unwrap().iter().all(|byte| *byte == draw[4]), "another block's bytes");
        }
    }
}

#[test]
fn random_uploads_of_many_threads_and_streams_mix_up_nothing_and_race_nowhere() {
    for seed in 0..4 {
        limited(move || {
            let bed = Bed::new();
            let streams: Vec<CudaStream> = (0..3).map(|_| bed.stream()).collect();
            let (bound, limit) = ((4 * LARGEST) as u64, 2 * MIB as u64);
            let pool = builder(&bed).segments(1 << 19, 1 << 19).ahead(bound).limit(limit).build().unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (bed, pool, streams) = (&bed, &pool, &streams[..]);
                    scope.spawn(move || work(bed, pool, streams, seed * THREADS + thread, 100));
                }
            });
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            pool.trim().unwrap();
            assert_eq!(pool.statistics().reserved, 0, "seed {seed}");
            drop((pool, streams));
            bed.finish();
        });
    }
}
