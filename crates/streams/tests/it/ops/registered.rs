//! Registered memory and work in flight: nothing ends, and nobody else gets at the bytes, before the work is over.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, RawBuffer};
use transload_memory::{CudaMemoryManager, RegistrationCache};
use transload_streams::CudaStream;

use crate::{
    allocator::{calls_of, watched},
    support::{
        gate::Gate,
        heap::heap,
        setup::{Setup, noise},
    },
};

struct Bed {
    setup: Setup,
    memory: Arc<CudaMemoryManager>,
    cache: RegistrationCache,
    stream: CudaStream,
    device_side: RawBuffer,
    content: Vec<u8>,
}

const BYTES: usize = 3_000_001;

impl Bed {
    /// Ends a registration that is idle, once no gate of another test defers frees.
    fn forget(&self, source: &RawBuffer) {
        while let Err(error) = self.cache.forget(source) {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            std::thread::yield_now();
        }
    }

    fn new(seed: u64) -> Self {
        let setup = Setup::new();
        let memory = Arc::new(CudaMemoryManager::new(&setup.device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let stream = CudaStream::new(&setup.device).unwrap();
        let device_side = setup.device(BYTES);
        Self { setup, memory, cache, stream, device_side, content: noise(BYTES, seed) }
    }

    fn source(&self) -> RawBuffer {
        let (buffer, _) = heap(BYTES, true);
        buffer.write().unwrap().copy_from_slice(&self.content);
        buffer
    }

    fn arrived(&self) -> Vec<u8> {
        let back = self.setup.pinned(&vec![0; BYTES]);
        self.stream.copy_to_host_async(&self.device_side, &back).wait().unwrap();
        back.read().unwrap().to_vec()
    }

    fn finish(self) {
        let Self { setup, memory, cache, stream, device_side, .. } = self;
        drop((cache, device_side, stream));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop(memory);
        setup.finish();
    }
}

#[test]
fn a_registration_in_flight_stays_and_its_buffer_comes_behind_the_work() {
    watched(|| {
        let bed = Bed::new(1);
        let source = bed.source();
        let pinned = bed.cache.register(&source).unwrap();
        let gate = Gate::before(&bed.setup.device, &[&bed.stream]);
        let (copied, calls) = calls_of(|| bed.stream.copy_from_host_async(&pinned, &bed.device_side));
        assert!(calls.contains(&"cuMemcpyHtoDAsync_v2"), "{calls:?}");
        drop(copied);
        drop(pinned);
        // Nobody has a handle of the registered buffer any more, but the copy engine does.
        assert_eq!(bed.cache.forget(&source).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(bed.cache.trim().unwrap(), 0);
        assert_eq!(source.try_write().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(bed.cache.statistics().registrations, 1);
        gate.open();
        // Waits by itself.
        source.write().unwrap().fill(0xEE);
        bed.forget(&source);
        assert_eq!(bed.cache.statistics().registrations, 0);
        assert!(bed.arrived() == bed.content);
        drop(source);
        bed.finish();
    });
}

#[test]
fn dropping_everything_while_work_is_in_flight_keeps_the_memory_until_it_is_over() {
    watched(|| {
        let mut bed = Bed::new(2);
        let (source, freed) = heap(BYTES, true);
        source.write().unwrap().copy_from_slice(&bed.content);
        let pinned = bed.cache.register(&source).unwrap();
        let gate = Gate::before(&bed.setup.device, &[&bed.stream]);
        drop(bed.stream.copy_from_host_async(&pinned, &bed.device_side));
        drop((pinned, source));
        let cache = std::mem::replace(&mut bed.cache, RegistrationCache::new(&bed.memory, 0).unwrap());
        drop(cache);
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 0);
        assert_eq!(bed.memory.resource_counts().allocations, 1);
        gate.open();
        assert!(bed.arrived() == bed.content);
        bed.memory.drain().unwrap();
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 1);
        bed.finish();
    });
}

#[test]
fn the_limit_takes_no_registration_away_from_work_in_flight() {
    watched(|| {
        let mut bed = Bed::new(3);
        bed.cache = RegistrationCache::new(&bed.memory, 4_000_000).unwrap();
        let (source, other) = (bed.source(), bed.source());
        let pinned = bed.cache.register(&source).unwrap();
        let gate = Gate::before(&bed.setup.device, &[&bed.stream]);
        drop(bed.stream.copy_from_host_async(&pinned, &bed.device_side));
        drop(pinned);
        let error = bed.cache.register(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(other.write().is_ok(), "a refusal lends nothing");
        gate.open();
        bed.stream.synchronize().unwrap();
        drop(bed.cache.register(&other).unwrap());
        assert_eq!(bed.cache.statistics().registrations, 1);
        assert!(bed.arrived() == bed.content);
        drop((source, other));
        bed.finish();
    });
}

#[test]
fn threads_that_register_copy_and_forget_never_take_memory_from_under_a_copy() {
    watched(|| {
        const PART: usize = 65_536;
        const THREADS: usize = 4;
        let mut bed = Bed::new(5);
        // Too little for everybody, so that registrations come and go.
        bed.cache = RegistrationCache::new(&bed.memory, 10 * PART as u64).unwrap();
        let (host, _) = heap(16 * PART, true);
        host.write().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / PART) as u8);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (bed, host) = (&bed, &host);
                scope.spawn(move || {
                    let stream = CudaStream::new(&bed.setup.device).unwrap();
                    for round in 0..60_usize {
                        let from = (thread * 7 + round * 5) % 15;
                        let part = host.slice(from * PART..(from + 1 + round % 2) * PART).unwrap();
                        let there = bed.setup.device(part.len());
                        let pinned = match bed.cache.register_source(&part) {
                            Ok(pinned) => pinned,
                            Err(error) => {
                                let kinds = [ErrorKind::Busy, ErrorKind::OutOfMemory];
                                assert!(kinds.contains(&error.kind()), "{error}");
                                continue;
                            }
                        };
                        drop(stream.copy_from_host_async(&pinned, &there));
                        drop(pinned);
                        if round % 3 == 0 {
                            // In flight it is kept, and told so.
                            drop(bed.cache.forget(&part));
                        }
                        let back = bed.setup.pinned(&vec![0xEE; part.len()]);
                        stream.copy_to_host_async(&there, &back).wait().unwrap();
                        let seen = back.read().unwrap();
                        let is_right = |(at, byte): (usize, &u8)| usize::from(*byte) == from + at / PART;
                        assert!(seen.iter().enumerate().all(is_right), "thread {thread}, round {round}");
                    }
                });
            }
        });
        let statistics = bed.cache.statistics();
        assert!(statistics.bytes <= 10 * PART as u64, "{statistics:?}");
        // Gates of other tests may have kept all of them until now.
        while bed.cache.statistics().evicted == 0 {
            bed.cache.trim().unwrap();
            std::thread::yield_now();
        }
        drop(host);
        bed.finish();
    });
}

#[test]
fn registered_memory_is_a_destination_too() {
    let bed = Bed::new(4);
    let (target, _) = heap(BYTES, true);
    let source = bed.setup.pinned(&bed.content);
    drop(bed.stream.copy_from_host_async(&source, &bed.device_side));
    let registered = bed.cache.register(&target).unwrap();
    let (down, calls) = calls_of(|| bed.stream.copy_to_host_async(&bed.device_side, &registered));
    assert!(calls.contains(&"cuMemcpyDtoHAsync_v2"), "{calls:?}");
    drop(down);
    drop(registered);
    assert!(*target.read().unwrap() == bed.content[..], "a view comes behind the copy");
    // Read-only memory is refused before anything is enqueued.
    let only_source = bed.cache.register_source(&target).unwrap();
    let refused = bed.stream.copy_to_host_async(&bed.device_side, &only_source).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    drop((only_source, target, source));
    bed.finish();
}

#[test]
fn a_registration_stays_while_the_buffer_itself_is_in_flight() {
    watched(|| {
        let bed = Bed::new(8);
        let source = bed.source();
        drop(bed.cache.register(&source).unwrap());
        // It is registered still, so the driver's copy engine reads it where it is, whatever its buffer calls it.
        let gate = Gate::before(&bed.setup.device, &[&bed.stream]);
        let copied = bed.stream.copy_from_host_async(&source, &bed.device_side);
        assert_eq!(bed.cache.trim().unwrap(), 0);
        assert_eq!(bed.cache.forget(&source).unwrap_err().kind(), ErrorKind::Busy);
        gate.open();
        copied.wait().unwrap();
        bed.forget(&source);
        assert!(bed.arrived() == bed.content);
        // Nor does it end with its cache.
        let cache = RegistrationCache::new(&bed.memory, u64::MAX).unwrap();
        drop(cache.register(&source).unwrap());
        let gate = Gate::before(&bed.setup.device, &[&bed.stream]);
        let copied = bed.stream.copy_from_host_async(&source, &bed.device_side);
        drop(cache);
        assert_eq!(bed.memory.resource_counts().parked, 1);
        gate.open();
        copied.wait().unwrap();
        drop(source);
        bed.finish();
    });
}

#[test]
fn memory_that_is_registered_in_part_is_copied_as_a_whole() {
    let bed = Bed::new(6);
    // Kept by the cache after their buffers are gone, as registrations are.
    let parts = [0..1_000_000, 1_000_000..1_500_001, 2_000_000..2_100_000];
    let register = |buffer: &RawBuffer| {
        for part in parts.clone() {
            drop(bed.cache.register(&buffer.slice(part).unwrap()).unwrap());
        }
    };
    let (source, (target, _)) = (bed.source(), heap(BYTES, true));
    register(&source);
    register(&target);
    bed.stream.copy_from_host_async(&source, &bed.device_side).wait().unwrap();
    assert!(bed.arrived() == bed.content);
    bed.stream.copy_to_host_async(&bed.device_side, &target).wait().unwrap();
    assert!(*target.read().unwrap() == bed.content[..]);
    // Also by the short way, and from the middle of one registration to beyond the next.
    let (from, there) = (999_990..1_000_010, bed.device_side.slice(..20).unwrap());
    bed.stream.copy_from_host_async(&source.slice(from.clone()).unwrap(), &there).wait().unwrap();
    assert!(bed.arrived()[..20] == bed.content[from]);
    drop(there);
    // Rows, some of which lie within a registration and some across its end.
    let rows = transload_core::Pitched { width: 1000, height: 40, src_pitch: 2000, dst_pitch: 1000 };
    let (there, from) = (bed.device_side.slice(..40_000).unwrap(), 1_449_501..1_528_501);
    let src = source.slice(from.clone()).unwrap();
    let copy = transload_core::Operation::CopyPitched { src: &src, dst: &there, rows };
    transload_core::submit(&bed.stream, &copy, transload_core::Timing::Off).unwrap().wait().unwrap();
    let expected: Vec<u8> = bed.content[from].chunks(2000).flat_map(|row| row[..1000].to_vec()).collect();
    assert!(bed.arrived()[..40_000] == expected);
    drop((there, src));
    assert_eq!(bed.cache.statistics().registrations, 6);
    drop((source, target));
    bed.finish();
}

#[test]
fn unified_memory_of_a_pool_is_ordered_among_streams_and_the_host() {
    let bed = crate::allocator::Bed::new();
    let Ok(resource) = transload_memory::CudaResource::new(&bed.memory, MemoryKind::Unified) else {
        println!("skipped: the device has no managed memory");
        return;
    };
    let pool = transload_streams::StreamOrderedAllocator::new(resource);
    let (one, two) = (bed.stream(), bed.stream());
    for round in 0..20_u8 {
        let bytes = 100_000 + usize::from(round) * 4099;
        let buffer = pool.allocate_buffer(&one, bytes).unwrap();
        assert_eq!(buffer.place().kind, MemoryKind::Unified);
        let copy = pool.allocate_buffer(&two, bytes).unwrap();
        drop(one.memset_async(&buffer, transload_core::Pattern::U8(round)));
        drop(two.copy_device_to_device_async(&buffer, &copy));
        drop(one.memset_async(&buffer, transload_core::Pattern::U8(0xFF)));
        match copy.read() {
            Ok(seen) => assert!(seen.iter().all(|byte| *byte == round), "round {round}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        }
    }
    assert!(pool.statistics().reserved <= 40 << 20, "the same memory serves all rounds");
    drop((pool, one, two));
    bed.finish();
}

#[test]
fn a_process_ends_well_with_live_registrations_pools_and_memory_being_given_back() {
    const CHILD: &str = "TRANSLOAD_TEST_REGISTERED_EXIT";
    if std::env::var_os(CHILD).is_none() {
        let name =
            "registered::a_process_ends_well_with_live_registrations_pools_and_memory_being_given_back";
        watched(move || {
            let mut child = crate::support::programs::this_program();
            let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
            assert!(child.status().unwrap().success(), "it ends by itself, without a crash");
        });
        return;
    }
    let bed = Bed::new(7);
    let (source, other) = (bed.source(), bed.source());
    let pinned = bed.cache.register(&source).unwrap();
    drop(bed.stream.copy_from_host_async(&pinned, &bed.device_side));
    drop(bed.cache.register(&other).unwrap());
    let pool =
        transload_streams::StreamOrderedAllocator::new(transload_memory::PinnedResource::new(&bed.memory));
    let held = pool.allocate_buffer(&bed.stream, 5 << 20).unwrap();
    drop(bed.stream.copy_to_host_async(&bed.device_side, &held.slice(..BYTES).unwrap()));
    let written = transload_memory::CudaResource::write_combined(&bed.memory);
    let written = transload_memory::MemoryResource::allocate_segment(&written, 1000).unwrap();
    // The thread that frees memory is at it when the process ends.
    for _ in 0..20 {
        drop(bed.setup.pinned(&[1; 100]));
    }
    bed.cache.trim().unwrap();
    std::mem::forget((bed, pinned, pool, held, written, source, other));
    std::process::exit(0);
}
