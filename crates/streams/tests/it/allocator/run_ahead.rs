//! Running ahead: the host writes the next pinned buffer during the upload of the last one, within a bound of memory.

use transload_core::{ErrorKind, RawBuffer};
use transload_cuda_sim::harness::is_real;
use transload_memory::PinnedResource;
use transload_streams::{AllocatorBuilder, CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::{Fixture, calls_of},
    support::{
        gate::{Gate, limited},
        setup::noise,
    },
};

const MIB: usize = 1 << 20;

fn builder(fixture: &Fixture) -> AllocatorBuilder<PinnedResource> {
    StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory)).exact_segments()
}

fn address(buffer: &RawBuffer) -> usize {
    buffer.host_address().unwrap().addr().get()
}

/// One iteration of a loop: the buffer is dropped during its upload.
fn upload(stream: &CudaStream, source: RawBuffer, target: &RawBuffer) {
    drop(stream.copy_from_host_async(&source, target));
}

/// Pins memory before a gate is closed, since a real driver may wait for the device to pin.
fn pinned_before(pool: &StreamOrderedAllocator, stream: &CudaStream, buffers: usize) {
    if is_real() {
        let held: Vec<_> = (0..buffers).map(|_| pool.allocate_buffer(stream, MIB).unwrap()).collect();
        drop(held);
    }
}

#[test]
fn host_writes_the_next_buffer_during_uploads() {
    limited(|| {
        let fixture = Fixture::new();
        let (stream, pool) = (fixture.stream(), builder(&fixture).build().unwrap());
        let targets: Vec<RawBuffer> = (0..5).map(|_| fixture.setup.device(MIB)).collect();
        pinned_before(&pool, &stream, 5);
        let gate = Gate::before(fixture.device(), &[&stream]);
        for (round, target) in targets.iter().enumerate() {
            let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
            // A buffer that is still being read would be busy.
            buffer.try_write().unwrap().copy_from_slice(&noise(MIB, round as u64));
            upload(&stream, buffer, target);
        }
        gate.open();
        let back = fixture.setup.pinned(&vec![0; MIB]);
        for (round, target) in targets.iter().enumerate() {
            stream.copy_to_host_async(target, &back).wait().unwrap();
            assert!(*back.read().unwrap() == noise(MIB, round as u64)[..], "round {round}");
        }
        drop((pool, targets, back, stream));
        fixture.finish();
    });
}

#[test]
fn run_ahead_is_bounded_then_the_first_complete_is_used() {
    limited(|| {
        let fixture = Fixture::new();
        let (stream, pool) =
            (fixture.stream(), builder(&fixture).run_ahead_limit(3 * MIB as u64).build().unwrap());
        let target = fixture.setup.device(MIB);
        pinned_before(&pool, &stream, 3);
        let gate = Gate::before(fixture.device(), &[&stream]);
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
        fixture.finish();
    });
}

#[test]
fn no_run_ahead_reuses_a_block_in_flight() {
    limited(|| {
        let fixture = Fixture::new();
        let stream = fixture.stream();
        let target = fixture.setup.device(MIB);
        for pool in [builder(&fixture).limit(MIB as u64), builder(&fixture).run_ahead_limit(0)] {
            let pool = pool.build().unwrap();
            let first = pool.allocate_buffer(&stream, MIB).unwrap();
            let gate = Gate::before(fixture.device(), &[&stream]);
            let was = address(&first);
            upload(&stream, first, &target);
            let next = pool.allocate_buffer(&stream, MIB).unwrap();
            assert_eq!(address(&next), was);
            assert_eq!(next.try_write().unwrap_err().kind(), ErrorKind::Busy);
            gate.open();
            next.write().unwrap().fill(0);
        }
        drop((target, stream));
        fixture.finish();
    });
}

#[test]
fn completed_block_is_preferred_to_new_memory() {
    let fixture = Fixture::new();
    let (stream, pool) = (fixture.stream(), builder(&fixture).build().unwrap());
    let target = fixture.setup.device(MIB);
    let first = pool.allocate_buffer(&stream, MIB).unwrap();
    let was = address(&first);
    upload(&stream, first, &target);
    for round in 0..10 {
        // The library has not queried its completion yet.
        transload_cuda_sys::AsStream::context(&stream).synchronize().unwrap();
        let (next, calls) = calls_of(|| pool.allocate_buffer(&stream, MIB).unwrap());
        assert_eq!(address(&next), was, "round {round}");
        let questions = calls.iter().filter(|call| **call != "cuThreadExchangeStreamCaptureMode");
        assert!(questions.eq(["cuEventQuery"].iter()), "one question is enough: {calls:?}");
        upload(&stream, next, &target);
    }
    // Once known complete, it needs no call.
    stream.synchronize().unwrap();
    let (next, calls) = calls_of(|| pool.allocate_buffer(&stream, MIB).unwrap());
    assert_eq!((address(&next), calls.as_slice()), (was, [].as_slice()));
    assert_eq!(pool.statistics().reserved, MIB as u64);
    drop((next, pool, target, stream));
    fixture.finish();
}

#[test]
fn small_uploads_still_share_events() {
    let fixture = Fixture::new();
    let (stream, pool) = (fixture.stream(), builder(&fixture).build().unwrap());
    let target = fixture.setup.device(4096);
    // Their shared segment.
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
    fixture.finish();
}

#[test]
fn buffer_read_by_another_stream_is_not_reused() {
    limited(|| {
        let fixture = Fixture::new();
        let (own, other) = (fixture.stream(), fixture.stream());
        let pool = builder(&fixture).run_ahead_limit(2 * MIB as u64).build().unwrap();
        let target = fixture.setup.device(MIB);
        pinned_before(&pool, &own, 2);
        let gate = Gate::before(fixture.device(), &[&other]);
        let first = pool.allocate_buffer(&own, MIB).unwrap();
        upload(&other, first, &target);
        let second = pool.allocate_buffer(&own, MIB).unwrap();
        second.try_write().unwrap().fill(1);
        upload(&other, second, &target);
        // Both are in flight, which is the limit.
        let third = pool.allocate_buffer(&own, MIB).unwrap();
        assert_eq!(third.try_write().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(pool.statistics().reserved, 2 * MIB as u64);
        gate.open();
        third.write().unwrap().fill(2);
        drop((third, pool, target, own, other));
        fixture.finish();
    });
}

#[test]
fn buffer_complete_on_another_stream_only_is_not_reused() {
    limited(|| {
        let fixture = Fixture::new();
        let (own, other) = (fixture.stream(), fixture.stream());
        let pool = builder(&fixture).build().unwrap();
        let targets = [fixture.setup.device(MIB), fixture.setup.device(MIB)];
        pinned_before(&pool, &own, 2);
        let gate = Gate::before(fixture.device(), &[&own]);
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
        fixture.finish();
    });
}

#[test]
fn plain_blocks_are_reused_in_stream_order_in_flight() {
    limited(|| {
        let fixture = Fixture::new();
        let (stream, pool) = (fixture.stream(), builder(&fixture).build().unwrap());
        let target = fixture.setup.device(MIB);
        let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
        let gate = Gate::before(fixture.device(), &[&stream]);
        let was = address(&buffer);
        upload(&stream, buffer, &target);
        let block = pool.allocate_for_stream(&stream, MIB).unwrap();
        assert_eq!(block.address(), was as u64);
        pool.free_on(block, &stream).unwrap();
        gate.open();
        drop((pool, target, stream));
        fixture.finish();
    });
}

#[test]
fn blocks_in_flight_are_merged_once_complete() {
    limited(|| {
        let fixture = Fixture::new();
        let pool = builder(&fixture).segments(4 * MIB as u64, 4 * MIB as u64).build().unwrap();
        let target = fixture.setup.device(32 << 10);
        for _ in 0..2 {
            let stream = fixture.stream();
            drop(pool.allocate_buffer(&stream, 32 << 10).unwrap());
            let gate = Gate::before(fixture.device(), &[&stream]);
            for _ in 0..128 {
                upload(&stream, pool.allocate_buffer(&stream, 32 << 10).unwrap(), &target);
            }
            assert_eq!(pool.statistics().reserved, 4 * MIB as u64);
            assert_eq!(pool.trim().unwrap(), 0, "nothing is complete");
            gate.open();
            stream.synchronize().unwrap();
            assert_eq!(pool.trim().unwrap(), 4 * MIB as u64);
        }
        // The same for a dropped stream.
        let (gone, stream) = (fixture.stream(), fixture.stream());
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
        fixture.finish();
    });
}

const THREADS: u64 = 4;
const LARGEST: usize = 60_000;

/// One thread's uploads: written by the host, read by a copy engine on any stream, and dropped in flight.
fn work(fixture: &Fixture, pool: &StreamOrderedAllocator, streams: &[CudaStream], seed: u64, uploads: u64) {
    let target = fixture.memory.allocate(transload_core::MemoryKind::Device, LARGEST).unwrap();
    let back = fixture.memory.allocate(transload_core::MemoryKind::Pinned, LARGEST).unwrap();
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
fn random_concurrent_uploads_keep_contents() {
    for seed in 0..4 {
        limited(move || {
            let fixture = Fixture::new();
            let streams: Vec<CudaStream> = (0..3).map(|_| fixture.stream()).collect();
            let (bound, limit) = ((4 * LARGEST) as u64, 2 * MIB as u64);
            let pool = builder(&fixture)
                .segments(1 << 19, 1 << 19)
                .run_ahead_limit(bound)
                .limit(limit)
                .build()
                .unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (fixture, pool, streams) = (&fixture, &pool, &streams[..]);
                    scope.spawn(move || work(fixture, pool, streams, seed * THREADS + thread, 100));
                }
            });
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            pool.trim().unwrap();
            assert_eq!(pool.statistics().reserved, 0, "seed {seed}");
            drop((pool, streams));
            fixture.finish();
        });
    }
}
