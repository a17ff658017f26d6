//! Running ahead across streams: a new buffer of any stream avoids memory in flight on others.

use transload_core::{ErrorKind, Fence, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::is_real;
use transload_cuda_sys::{AsStream, Capture, CaptureMode, check, ffi};
use transload_memory::PinnedResource;
use transload_streams::{AllocatorBuilder, CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::Fixture,
    support::{
        cpu_gate::Gate as Elsewhere,
        gate::{Gate, limited},
    },
};

const MIB: usize = 1 << 20;

fn builder(fixture: &Fixture) -> AllocatorBuilder<PinnedResource> {
    StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory)).exact_segments()
}

fn upload(stream: &CudaStream, source: RawBuffer, target: &RawBuffer) {
    drop(stream.copy_from_host_async(&source, target));
}

/// Allocates before a gate is closed, since a real driver may wait for the device to allocate.
fn kept_before(pool: &StreamOrderedAllocator, stream: &CudaStream, buffers: usize, bytes: usize) {
    if is_real() {
        let held: Vec<_> = (0..buffers).map(|_| pool.allocate_buffer(stream, bytes).unwrap()).collect();
        drop(held);
    }
}

/// Waits for a stream without the library noticing.
fn wait_unseen(stream: &CudaStream) {
    let _bound = stream.context().enter().unwrap();
    let raw = stream.driver().as_raw();
    // SAFETY: the stream lives.
    check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(raw) }).unwrap();
}

#[test]
fn first_buffer_avoids_blocks_read_by_other_streams() {
    limited(|| {
        let fixture = Fixture::new();
        let (one, other) = (fixture.stream(), fixture.stream());
        let pool = builder(&fixture).build().unwrap();
        let target = fixture.setup.device(MIB);
        kept_before(&pool, &one, 2, MIB);
        let gate = Gate::before(fixture.device(), &[&one]);
        upload(&one, pool.allocate_buffer(&one, MIB).unwrap(), &target);
        let first = pool.allocate_buffer(&other, MIB).unwrap();
        first.try_write().unwrap().fill(1);
        gate.open();
        drop((first, pool, target, one, other));
        fixture.finish();
    });
}

#[test]
fn idle_buffer_avoids_blocks_in_flight_elsewhere() {
    limited(|| {
        let fixture = Fixture::new();
        let (one, home) = (fixture.stream(), fixture.stream());
        for kind in [MemoryKind::Device, MemoryKind::Pinned] {
            let resource = transload_memory::CudaResource::new(&fixture.memory, kind).unwrap();
            let pool = StreamOrderedAllocator::builder(resource).exact_segments().build().unwrap();
            kept_before(&pool, &one, 2, MIB);
            let far = fixture.setup.device(MIB);
            let near = fixture.setup.pinned(&vec![0; MIB]);
            let gate = Gate::before(fixture.device(), &[&one]);
            let used = pool.allocate_buffer(&one, MIB).unwrap();
            match kind {
                MemoryKind::Device => drop(one.copy_from_host_async(&near, &used)),
                _ => drop(one.copy_from_host_async(&used, &far)),
            }
            drop(used);
            let idle = pool.allocate_idle_buffer(&home, MIB).unwrap();
            let busy = idle.in_flight().unwrap_or_default();
            assert!(busy.iter().all(Fence::is_complete), "{kind}: {busy:?}");
            gate.open();
            drop((idle, pool, far, near));
        }
        drop((one, home));
        fixture.finish();
    });
}

#[test]
fn unmet_plain_block_leaves_idle_buffers_idle() {
    plain_block_for(|_, other| other.clone());
    plain_block_for(|one, _| one.clone());
}

fn plain_block_for(choose: fn(&CudaStream, &CudaStream) -> CudaStream) {
    limited(move || {
        let fixture = Fixture::new();
        let (one, beside) = (fixture.stream(), fixture.stream());
        let other = choose(&one, &beside);
        let pool = builder(&fixture).build().unwrap();
        let target = fixture.setup.device(MIB);
        kept_before(&pool, &one, 2, MIB);
        if is_real() {
            let large = pool.allocate_for_stream(&other, 3 * MIB).unwrap();
            pool.free_on(large, &other).unwrap();
        }
        let gate = Gate::before(fixture.device(), &[&one]);
        upload(&one, pool.allocate_buffer(&one, MIB).unwrap(), &target);
        // None of the first stream's blocks is large enough.
        let block = pool.allocate_for_stream(&other, 3 * MIB).unwrap();
        let next = pool.allocate_buffer(&one, MIB).unwrap();
        next.try_write().unwrap().fill(1);
        gate.open();
        pool.free_on(block, &other).unwrap();
        drop((next, pool, target, one, other, beside));
        fixture.finish();
    });
}

#[test]
fn completed_blocks_are_found_among_many_in_flight() {
    const STUCK: usize = 80;
    const BYTES: usize = 100_000;
    limited(|| {
        let fixture = Fixture::new();
        let (home, slow, fast) = (fixture.stream(), fixture.stream(), fixture.stream());
        let pool = builder(&fixture).build().unwrap();
        let targets = [fixture.setup.device(BYTES), fixture.setup.device(BYTES)];
        kept_before(&pool, &home, STUCK + 2, BYTES);
        let _shared = fast.driver();
        let gate = Gate::before(fixture.device(), &[&slow]);
        let stuck: Vec<_> = (0..STUCK).map(|_| pool.allocate_idle_buffer(&home, BYTES).unwrap()).collect();
        stuck.into_iter().for_each(|buffer| upload(&slow, buffer, &targets[0]));
        let mut used = std::collections::HashSet::new();
        for _ in 0..20 {
            let buffer = pool.allocate_idle_buffer(&home, BYTES).unwrap();
            used.insert(buffer.host_address().unwrap());
            upload(&fast, buffer, &targets[1]);
            wait_unseen(&fast);
        }
        assert!(used.len() <= 2, "the blocks next to those in flight serve all requests, not {}", used.len());
        gate.open();
        drop((pool, targets, home, slow, fast));
        fixture.finish();
    });
}

#[test]
fn shortage_does_not_wait_for_another_backend() {
    limited(|| {
        let fixture = Fixture::new();
        let stream = fixture.stream();
        let pool = builder(&fixture).limit(MIB as u64).build().unwrap();
        let parked = fixture.memory.allocate(MemoryKind::Pinned, MIB).unwrap();
        let elsewhere = Elsewhere::before(&parked);
        drop(parked);
        let held = pool.allocate_buffer(&stream, MIB).unwrap();
        let refused = pool.allocate_buffer(&stream, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        assert_eq!(pool.trim().unwrap(), 0);
        assert_eq!(fixture.memory.resource_counts().pending_free, 1);
        elsewhere.open();
        drop((held, pool, stream));
        fixture.finish();
    });
}

#[test]
fn drain_does_not_block_release_stream() {
    limited(|| {
        let fixture = Fixture::new();
        let (stream, other) = (fixture.stream(), fixture.stream());
        let pool = builder(&fixture).build().unwrap();
        drop(pool.allocate_buffer(&other, MIB).unwrap());
        let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
        let elsewhere = Elsewhere::before(&buffer);
        let asked = elsewhere.holders();
        drop(buffer);
        std::thread::scope(|scope| {
            let drained = scope.spawn(|| pool.drain());
            // Its fence shows that it waits.
            while elsewhere.holders() <= asked {
                std::thread::yield_now();
            }
            pool.release_stream(&other).unwrap();
            elsewhere.open();
            drained.join().unwrap().unwrap();
        });
        assert_eq!(pool.statistics().reserved, 0);
        drop((pool, stream, other));
        fixture.finish();
    });
}

#[test]
fn shortage_does_not_wait_for_a_capture() {
    limited(|| {
        let fixture = Fixture::new();
        let (captured, stream) = (fixture.stream(), fixture.stream());
        let gone = builder(&fixture).build().unwrap();
        let block = gone.allocate_for_stream(&captured, MIB).unwrap();
        gone.free_on(block, &captured).unwrap();
        let pool = builder(&fixture).limit(MIB as u64).build().unwrap();
        let held = pool.allocate_buffer(&stream, MIB).unwrap();
        // SAFETY: the stream has no other user.
        let capture = unsafe { Capture::begin(captured.driver(), CaptureMode::Relaxed) }.unwrap();
        drop(gone);
        assert_eq!(fixture.memory.resource_counts().pending_free, 1, "waiting for the capture");
        let refused = pool.allocate_buffer(&stream, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        drop(capture.end().unwrap());
        drop((held, pool, stream, captured));
        fixture.finish();
    });
}
