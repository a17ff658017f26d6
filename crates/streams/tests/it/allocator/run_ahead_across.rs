//! What is in flight on one stream, or behind another one's work, is not what the next buffer of any stream begins behind.

use transload_core::{ErrorKind, Fence, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::is_real;
use transload_cuda_sys::{AsStream, Capture, CaptureMode, check, ffi};
use transload_memory::PinnedResource;
use transload_streams::{AllocatorBuilder, CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::Bed,
    support::{
        cpu_gate::Gate as Elsewhere,
        gate::{Gate, limited},
    },
};

const MIB: usize = 1 << 20;

fn builder(bed: &Bed) -> AllocatorBuilder<PinnedResource> {
    StreamOrderedAllocator::builder(PinnedResource::new(&bed.memory)).exact_segments()
}

fn upload(stream: &CudaStream, source: RawBuffer, target: &RawBuffer) {
    drop(stream.copy_from_host_async(&source, target));
}

/// A real driver may wait for the device before it allocates, so what a test needs behind a gate is allocated before.
fn kept_before(pool: &StreamOrderedAllocator, stream: &CudaStream, buffers: usize, bytes: usize) {
    if is_real() {
        let held: Vec<_> = (0..buffers).map(|_| pool.allocate_buffer(stream, bytes).unwrap()).collect();
        drop(held);
    }
}

/// Waits for a stream without anyone of ours knowing.
fn wait_unseen(stream: &CudaStream) {
    let _bound = stream.context().enter().unwrap();
    let raw = stream.driver().as_raw();
    // SAFETY: the stream lives.
    check("cuStreamSynchronize", unsafe { ffi::cuStreamSynchronize(raw) }).unwrap();
}

#[test]
fn a_streams_first_buffer_is_not_one_that_another_streams_work_reads() {
    limited(|| {
        let bed = Bed::new();
        let (one, other) = (bed.stream(), bed.stream());
        let pool = builder(&bed).build().unwrap();
        let target = bed.setup.device(MIB);
        kept_before(&pool, &one, 2, MIB);
        let gate = Gate::before(bed.device(), &[&one]);
        upload(&one, pool.allocate_buffer(&one, MIB).unwrap(), &target);
        let first = pool.allocate_buffer(&other, MIB).unwrap();
        first.try_write().unwrap().fill(1);
        gate.open();
        drop((first, pool, target, one, other));
        bed.finish();
    });
}

#[test]
fn an_idle_buffer_is_not_behind_another_streams_work_either() {
    limited(|| {
        let bed = Bed::new();
        let (one, home) = (bed.stream(), bed.stream());
        for kind in [MemoryKind::Device, MemoryKind::Pinned] {
            let resource = transload_memory::CudaResource::new(&bed.memory, kind).unwrap();
            let pool = StreamOrderedAllocator::builder(resource).exact_segments().build().unwrap();
            kept_before(&pool, &one, 2, MIB);
            let far = bed.setup.device(MIB);
            let near = bed.setup.pinned(&vec![0; MIB]);
            let gate = Gate::before(bed.device(), &[&one]);
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
        bed.finish();
    });
}

#[test]
fn a_plain_block_that_no_block_in_flight_serves_leaves_the_next_buffers_free_of_work() {
    plain_block_for(|_, other| other.clone());
    plain_block_for(|one, _| one.clone());
}

fn plain_block_for(choose: fn(&CudaStream, &CudaStream) -> CudaStream) {
    limited(move || {
        let bed = Bed::new();
        let (one, beside) = (bed.stream(), bed.stream());
        let other = choose(&one, &beside);
        let pool = builder(&bed).build().unwrap();
        let target = bed.setup.device(MIB);
        kept_before(&pool, &one, 2, MIB);
        if is_real() {
            let large = pool.allocate_for_stream(&other, 3 * MIB).unwrap();
            pool.free_for_stream(large, &other).unwrap();
        }
        let gate = Gate::before(bed.device(), &[&one]);
        upload(&one, pool.allocate_buffer(&one, MIB).unwrap(), &target);
        // Nothing of the first stream's is large enough for it.
        let block = pool.allocate_for_stream(&other, 3 * MIB).unwrap();
        let next = pool.allocate_buffer(&one, MIB).unwrap();
        next.try_write().unwrap().fill(1);
        gate.open();
        pool.free_for_stream(block, &other).unwrap();
        drop((next, pool, target, one, other, beside));
        bed.finish();
    });
}

#[test]
fn blocks_whose_work_is_over_are_found_behind_any_number_that_are_not() {
    const STUCK: usize = 80;
    const BYTES: usize = 100_000;
    limited(|| {
        let bed = Bed::new();
        let (home, slow, fast) = (bed.stream(), bed.stream(), bed.stream());
        let pool = builder(&bed).build().unwrap();
        let targets = [bed.setup.device(BYTES), bed.setup.device(BYTES)];
        kept_before(&pool, &home, STUCK + 2, BYTES);
        let _shared = fast.driver();
        let gate = Gate::before(bed.device(), &[&slow]);
        let stuck: Vec<_> = (0..STUCK).map(|_| pool.allocate_idle_buffer(&home, BYTES).unwrap()).collect();
        stuck.into_iter().for_each(|buffer| upload(&slow, buffer, &targets[0]));
        let mut used = std::collections::HashSet::new();
        for _ in 0..20 {
            let buffer = pool.allocate_idle_buffer(&home, BYTES).unwrap();
            used.insert(buffer.host_address().unwrap());
            upload(&fast, buffer, &targets[1]);
            wait_unseen(&fast);
        }
        assert!(used.len() <= 2, "those beside the stuck ones serve them all, not {}", used.len());
        gate.open();
        drop((pool, targets, home, slow, fast));
        bed.finish();
    });
}

#[test]
fn memory_that_another_backend_still_uses_is_not_waited_for_where_it_is_short() {
    limited(|| {
        let bed = Bed::new();
        let stream = bed.stream();
        let pool = builder(&bed).limit(MIB as u64).build().unwrap();
        let parked = bed.memory.allocate(MemoryKind::Pinned, MIB).unwrap();
        let elsewhere = Elsewhere::before(&parked);
        drop(parked);
        let held = pool.allocate_buffer(&stream, MIB).unwrap();
        let refused = pool.allocate_buffer(&stream, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        assert_eq!(pool.trim().unwrap(), 0);
        assert_eq!(bed.memory.resource_counts().parked, 1);
        elsewhere.open();
        drop((held, pool, stream));
        bed.finish();
    });
}

#[test]
fn who_drains_lets_others_release_their_streams_meanwhile() {
    limited(|| {
        let bed = Bed::new();
        let (stream, other) = (bed.stream(), bed.stream());
        let pool = builder(&bed).build().unwrap();
        drop(pool.allocate_buffer(&other, MIB).unwrap());
        let buffer = pool.allocate_buffer(&stream, MIB).unwrap();
        let elsewhere = Elsewhere::before(&buffer);
        let asked = elsewhere.holders();
        drop(buffer);
        std::thread::scope(|scope| {
            let drained = scope.spawn(|| pool.drain());
            // A fence of its own says that it waits.
            while elsewhere.holders() <= asked {
                std::thread::yield_now();
            }
            pool.release_stream(&other).unwrap();
            elsewhere.open();
            drained.join().unwrap().unwrap();
        });
        assert_eq!(pool.statistics().reserved, 0);
        drop((pool, stream, other));
        bed.finish();
    });
}

#[test]
fn the_end_of_a_capture_is_not_waited_for_where_memory_is_short() {
    limited(|| {
        let bed = Bed::new();
        let (captured, stream) = (bed.stream(), bed.stream());
        let gone = builder(&bed).build().unwrap();
        let block = gone.allocate_for_stream(&captured, MIB).unwrap();
        gone.free_for_stream(block, &captured).unwrap();
        let pool = builder(&bed).limit(MIB as u64).build().unwrap();
        let held = pool.allocate_buffer(&stream, MIB).unwrap();
        // SAFETY: nobody else uses the stream.
        let capture = unsafe { Capture::begin(captured.driver(), CaptureMode::Relaxed) }.unwrap();
        drop(gone);
        assert_eq!(bed.memory.resource_counts().parked, 1, "behind the capture");
        let refused = pool.allocate_buffer(&stream, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        drop(capture.end().unwrap());
        drop((held, pool, stream, captured));
        bed.finish();
    });
}
