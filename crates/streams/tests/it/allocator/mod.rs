//! The allocator on one stream: immediate reuse, splitting, merging and statistics.

pub(crate) mod across_streams;
mod bad_use;
mod buffers;
mod global_capture;
mod of_stream;
mod out_of_memory;
mod pinned;
mod random;
mod run_ahead;
mod run_ahead_across;
mod stream_capture;

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::support::{gate::within, setup::Setup};

/// A device, its memory, and an allocator over one kind of it.
pub(crate) struct Fixture {
    pub(crate) allocator: StreamOrderedAllocator,
    pub(crate) memory: Arc<CudaMemoryManager>,
    /// Dropped last: checks that nothing leaked.
    pub(crate) setup: Setup,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::over(MemoryKind::Device)
    }

    pub(crate) fn over(kind: MemoryKind) -> Self {
        Self::with(kind, StreamOrderedAllocator::new)
    }

    pub(crate) fn with(kind: MemoryKind, make: impl FnOnce(CudaResource) -> StreamOrderedAllocator) -> Self {
        let setup = Setup::new();
        let memory = Arc::new(CudaMemoryManager::new(&setup.device).unwrap());
        let allocator = make(CudaResource::new(&memory, kind).unwrap());
        Self { setup, memory, allocator }
    }

    pub(crate) fn device(&self) -> &CudaDevice {
        &self.setup.device
    }

    pub(crate) fn stream(&self) -> CudaStream {
        CudaStream::new(self.device()).unwrap()
    }

    /// Frees everything and checks that nothing leaked.
    pub(crate) fn finish(self) {
        let Self { allocator, memory, setup } = self;
        drop(allocator);
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop(memory);
        setup.finish();
    }
}

/// Fails instead of hanging.
pub(crate) fn watched(work: impl FnOnce() + Send + 'static) {
    within(std::time::Duration::from_secs(300), work);
}

/// Returns the names of this thread's driver calls during `work`.
pub(crate) fn calls_of<T>(work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let trace = transload_cuda_sys::trace::start();
    let result = work();
    let calls = trace.calls_of_this_thread().iter().map(|call| call.name).collect();
    (result, calls)
}

#[test]
fn freed_block_is_reused_at_once_without_a_driver_call() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    for bytes in [1, 512, 4096, 1 << 20, 5 << 20] {
        let first = fixture.allocator.allocate_for_stream(&stream, bytes).unwrap();
        fixture.allocator.free_on(first, &stream).unwrap();
        let (again, calls) = calls_of(|| {
            let again = fixture.allocator.allocate_for_stream(&stream, bytes).unwrap();
            fixture.allocator.free_on(again, &stream).unwrap();
            again
        });
        assert_eq!(again.address(), first.address(), "{bytes} bytes");
        assert!(calls.is_empty(), "{bytes} bytes: {calls:?}");
    }
    assert!(fixture.allocator.statistics().served.same_size >= 5);
    drop(stream);
    fixture.finish();
}

#[test]
fn blocks_are_aligned_and_do_not_overlap() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let sizes = [1, 511, 513, 100_000, 1 << 20, (1 << 20) + 1, 3 << 20, 512, 70_000];
    let mut blocks: Vec<_> =
        sizes.iter().map(|bytes| fixture.allocator.allocate_for_stream(&stream, *bytes).unwrap()).collect();
    blocks.sort_by_key(|block| block.address());
    for pair in blocks.windows(2) {
        assert!(pair[0].address() + pair[0].bytes() <= pair[1].address(), "{pair:?}");
    }
    for block in blocks {
        assert_eq!(block.address() % 512, 0);
        fixture.allocator.free_on(block, &stream).unwrap();
    }
    drop(stream);
    fixture.finish();
}

#[test]
fn neighbours_are_joined_when_a_larger_block_is_wanted() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    // One whole small segment, in eighths.
    let eighths: Vec<_> =
        (0..8).map(|_| fixture.allocator.allocate_for_stream(&stream, 256 << 10).unwrap()).collect();
    let lowest = eighths.iter().map(|block| block.address()).min().unwrap();
    // Freed so that no two neighbours are freed in succession.
    for index in [1, 3, 5, 7, 0, 2, 4, 6] {
        fixture.allocator.free_on(eighths[index], &stream).unwrap();
    }
    let half = fixture.allocator.allocate_for_stream(&stream, 1 << 20).unwrap();
    assert_eq!(half.address(), lowest);
    let numbers = fixture.allocator.statistics();
    assert_eq!((numbers.segments, numbers.reserved), (1, 2 << 20));
    assert_eq!((numbers.free, numbers.largest_free, numbers.fragmentation), (1 << 20, 1 << 20, 0.0));
    fixture.allocator.free(half).unwrap();
    drop(stream);
    fixture.finish();
}

#[test]
fn the_best_fit_is_split_and_its_rest_stays_free() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let allocate = |bytes| fixture.allocator.allocate_for_stream(&stream, bytes).unwrap();
    let (large, _keeps_apart, small) = (allocate(64 << 10), allocate(512), allocate(16 << 10));
    let _end = allocate(512);
    // The rest of the segment.
    let _others = (allocate(1 << 20), allocate((1 << 20) - (81 << 10)));
    fixture.allocator.free_on(large, &stream).unwrap();
    fixture.allocator.free_on(small, &stream).unwrap();
    let fitted = allocate(15 << 10);
    assert_eq!(fitted.address(), small.address(), "the smallest block that is large enough");
    let rest = allocate(1 << 10);
    assert_eq!(rest.address(), small.address() + (15 << 10), "what was left of it");
    drop(stream);
    fixture.finish();
}

#[test]
fn statistics_count_live_and_peak() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let blocks: Vec<_> =
        [1000, 2000, 3000].map(|bytes| fixture.allocator.allocate_for_stream(&stream, bytes).unwrap()).into();
    let numbers = fixture.allocator.statistics();
    assert_eq!((numbers.live_blocks, numbers.requested, numbers.in_use), (3, 6000, 1024 + 2048 + 3072));
    for block in blocks {
        fixture.allocator.free_on(block, &stream).unwrap();
    }
    let numbers = fixture.allocator.statistics();
    assert_eq!((numbers.live_blocks, numbers.in_use, numbers.peak_in_use), (0, 0, 6144));
    assert_eq!(numbers.free, numbers.reserved);
    let classes: Vec<_> = numbers.classes.iter().map(|class| (class.up_to, class.allocations)).collect();
    assert_eq!(classes, [(1024, 1), (2048, 1), (4096, 1)]);
    drop(stream);
    fixture.finish();
}

#[test]
fn request_sizes_are_rounded_to_multiples_of_512() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    for (bytes, size) in [(1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)] {
        let block = fixture.allocator.allocate_for_stream(&stream, bytes).unwrap();
        assert_eq!(fixture.allocator.statistics().in_use, size);
        fixture.allocator.free_on(block, &stream).unwrap();
    }
    drop(stream);
    fixture.finish();
}

#[test]
fn exact_segments_are_rounded_to_pages_and_shared_when_small() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    for (bytes, segment) in
        [((1 << 20) + 1, (1 << 20) + 4096), ((64 << 10) + 1, (64 << 10) + 4096), (100, 2 << 20)]
    {
        let upstream = CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap();
        let exact = StreamOrderedAllocator::builder(upstream).exact_segments().build().unwrap();
        exact.allocate_for_stream(&stream, bytes).unwrap();
        assert_eq!(exact.statistics().reserved, segment);
    }
    drop(stream);
    fixture.finish();
}

#[test]
fn impossible_sizes_are_refused_without_overflow() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    for bytes in [0, usize::MAX, i64::MAX as usize] {
        let error = fixture.allocator.allocate_for_stream(&stream, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    drop(stream);
    fixture.finish();
}

#[test]
fn trim_releases_only_free_segments() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let small = fixture.allocator.allocate_for_stream(&stream, 1000).unwrap();
    let large = fixture.allocator.allocate_for_stream(&stream, 4 << 20).unwrap();
    fixture.allocator.free_on(large, &stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fixture.allocator.trim().unwrap(), 20 << 20);
    assert_eq!(fixture.allocator.statistics().reserved, 2 << 20, "a live block keeps its segment");
    fixture.allocator.free_on(small, &stream).unwrap();
    assert_eq!(fixture.allocator.trim().unwrap(), 2 << 20);
    assert_eq!(fixture.memory.resource_counts().bytes, 0);
    drop(stream);
    fixture.finish();
}

#[test]
fn it_works_over_every_kind_of_memory() {
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified] {
        let fixture = Fixture::over(kind);
        let stream = fixture.stream();
        let block = fixture.allocator.allocate_for_stream(&stream, 5000).unwrap();
        fixture.allocator.free_on(block.address(), &stream).unwrap();
        let buffer = fixture.allocator.allocate_buffer(&stream, 5000).unwrap();
        assert_eq!((buffer.len(), buffer.place().kind), (5000, kind));
        if kind.is_host_visible() {
            buffer.write().unwrap().fill(5);
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 5));
        }
        drop((buffer, stream));
        fixture.finish();
    }
}

#[test]
fn eight_threads_on_their_own_streams_each_get_their_own_memory() {
    watched(eight_threads);
}

fn eight_threads() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let stream = fixture.stream();
                for round in 0..200 {
                    let blocks: Vec<_> = (1..5)
                        .map(|factor| {
                            fixture.allocator.allocate_for_stream(&stream, factor * 3000 + round).unwrap()
                        })
                        .collect();
                    for block in blocks {
                        fixture.allocator.free_on(block, &stream).unwrap();
                    }
                }
            });
        }
    });
    let numbers = fixture.allocator.statistics();
    assert_eq!((numbers.live_blocks, numbers.in_use), (0, 0));
    fixture.finish();
}
