//! Registered memory with work in flight stays registered, and unavailable to others, until the work completes.

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

struct Fixture {
    setup: Setup,
    memory: Arc<CudaMemoryManager>,
    cache: RegistrationCache,
    stream: CudaStream,
    device_side: RawBuffer,
    content: Vec<u8>,
}

const BYTES: usize = 3_000_001;

impl Fixture {
    /// Registers memory that needs the room of an idle registration, once no gate of another test defers frees.
    fn register_instead(&self, source: &RawBuffer) -> RawBuffer {
        loop {
            match self.cache.register(source) {
                Ok(pinned) => return pinned,
                Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    /// Ends an idle registration, once no gate of another test defers frees.
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
fn registration_in_flight_stays_until_complete() {
    watched(|| {
        let fixture = Fixture::new(1);
        let source = fixture.source();
        let pinned = fixture.cache.register(&source).unwrap();
        let gate = Gate::before(&fixture.setup.device, &[&fixture.stream]);
        let (copied, calls) = calls_of(|| fixture.stream.copy_from_host_async(&pinned, &fixture.device_side));
        assert!(calls.contains(&"cuMemcpyHtoDAsync_v2"), "{calls:?}");
        drop(copied);
        drop(pinned);
        // No handle of the registered buffer is left, but the copy engine still uses it.
        assert_eq!(fixture.cache.forget(&source).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(fixture.cache.trim().unwrap(), 0);
        assert_eq!(source.try_write().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(fixture.cache.statistics().registrations, 1);
        gate.open();
        // Waits by itself.
        source.write().unwrap().fill(0xEE);
        fixture.forget(&source);
        assert_eq!(fixture.cache.statistics().registrations, 0);
        assert!(fixture.arrived() == fixture.content);
        drop(source);
        fixture.finish();
    });
}

#[test]
fn memory_dropped_in_flight_lives_until_complete() {
    watched(|| {
        let mut fixture = Fixture::new(2);
        let (source, freed) = heap(BYTES, true);
        source.write().unwrap().copy_from_slice(&fixture.content);
        let pinned = fixture.cache.register(&source).unwrap();
        let gate = Gate::before(&fixture.setup.device, &[&fixture.stream]);
        drop(fixture.stream.copy_from_host_async(&pinned, &fixture.device_side));
        drop((pinned, source));
        let cache =
            std::mem::replace(&mut fixture.cache, RegistrationCache::new(&fixture.memory, 0).unwrap());
        drop(cache);
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 0);
        assert_eq!(fixture.memory.resource_counts().allocations, 1);
        gate.open();
        assert!(fixture.arrived() == fixture.content);
        fixture.memory.drain().unwrap();
        assert_eq!(freed.load(std::sync::atomic::Ordering::SeqCst), 1);
        fixture.finish();
    });
}

#[test]
fn limit_evicts_no_registration_in_flight() {
    watched(|| {
        let mut fixture = Fixture::new(3);
        fixture.cache = RegistrationCache::new(&fixture.memory, 4_000_000).unwrap();
        let (source, other) = (fixture.source(), fixture.source());
        let pinned = fixture.cache.register(&source).unwrap();
        let gate = Gate::before(&fixture.setup.device, &[&fixture.stream]);
        drop(fixture.stream.copy_from_host_async(&pinned, &fixture.device_side));
        drop(pinned);
        let error = fixture.cache.register(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(other.write().is_ok(), "a refusal lends nothing");
        gate.open();
        fixture.stream.synchronize().unwrap();
        drop(fixture.register_instead(&other));
        assert_eq!(fixture.cache.statistics().registrations, 1);
        assert!(fixture.arrived() == fixture.content);
        drop((source, other));
        fixture.finish();
    });
}

#[test]
fn concurrent_unregistering_waits_for_copies_in_flight() {
    watched(|| {
        const PART: usize = 65_536;
        const THREADS: usize = 4;
        let mut fixture = Fixture::new(5);
        // Too small for all threads, so that registrations are evicted.
        fixture.cache = RegistrationCache::new(&fixture.memory, 10 * PART as u64).unwrap();
        let (host, _) = heap(16 * PART, true);
        host.write().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / PART) as u8);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fixture, host) = (&fixture, &host);
                scope.spawn(move || {
                    let stream = CudaStream::new(&fixture.setup.device).unwrap();
                    for round in 0..60_usize {
                        let from = (thread * 7 + round * 5) % 15;
                        let part = host.slice(from * PART..(from + 1 + round % 2) * PART).unwrap();
                        let there = fixture.setup.device(part.len());
                        let pinned = match fixture.cache.register_source(&part) {
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
                            // In flight it is kept, and the call reports so.
                            drop(fixture.cache.forget(&part));
                        }
                        let back = fixture.setup.pinned(&vec![0xEE; part.len()]);
                        stream.copy_to_host_async(&there, &back).wait().unwrap();
                        let seen = back.read().unwrap();
                        let is_right = |(at, byte): (usize, &u8)| usize::from(*byte) == from + at / PART;
                        assert!(seen.iter().enumerate().all(is_right), "thread {thread}, round {round}");
                    }
                });
            }
        });
        let statistics = fixture.cache.statistics();
        assert!(statistics.bytes <= 10 * PART as u64, "{statistics:?}");
        // Gates of other tests may have kept all of them alive until now.
        while fixture.cache.statistics().evicted == 0 {
            fixture.cache.trim().unwrap();
            std::thread::yield_now();
        }
        drop(host);
        fixture.finish();
    });
}

#[test]
fn registered_memory_is_a_destination_too() {
    let fixture = Fixture::new(4);
    let (target, _) = heap(BYTES, true);
    let source = fixture.setup.pinned(&fixture.content);
    drop(fixture.stream.copy_from_host_async(&source, &fixture.device_side));
    let registered = fixture.cache.register(&target).unwrap();
    let (down, calls) = calls_of(|| fixture.stream.copy_to_host_async(&fixture.device_side, &registered));
    assert!(calls.contains(&"cuMemcpyDtoHAsync_v2"), "{calls:?}");
    drop(down);
    drop(registered);
    assert!(*target.read().unwrap() == fixture.content[..], "a view waits for the copy");
    // Read-only memory is refused before anything is enqueued.
    let only_source = fixture.cache.register_source(&target).unwrap();
    let refused = fixture.stream.copy_to_host_async(&fixture.device_side, &only_source).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    drop((only_source, target, source));
    fixture.finish();
}

#[test]
fn registration_stays_while_its_buffer_is_in_flight() {
    watched(|| {
        let fixture = Fixture::new(8);
        let source = fixture.source();
        drop(fixture.cache.register(&source).unwrap());
        // Still registered, so the copy engine reads it in place, whatever kind its buffer reports.
        let gate = Gate::before(&fixture.setup.device, &[&fixture.stream]);
        let copied = fixture.stream.copy_from_host_async(&source, &fixture.device_side);
        assert_eq!(fixture.cache.trim().unwrap(), 0);
        assert_eq!(fixture.cache.forget(&source).unwrap_err().kind(), ErrorKind::Busy);
        gate.open();
        copied.wait().unwrap();
        fixture.forget(&source);
        assert!(fixture.arrived() == fixture.content);
        // It also outlives its cache.
        let cache = RegistrationCache::new(&fixture.memory, u64::MAX).unwrap();
        drop(cache.register(&source).unwrap());
        let gate = Gate::before(&fixture.setup.device, &[&fixture.stream]);
        let copied = fixture.stream.copy_from_host_async(&source, &fixture.device_side);
        drop(cache);
        assert_eq!(fixture.memory.resource_counts().pending_free, 1);
        gate.open();
        copied.wait().unwrap();
        drop(source);
        fixture.finish();
    });
}

#[test]
fn partly_registered_memory_is_copied_whole() {
    let fixture = Fixture::new(6);
    // The cache keeps registrations after their buffers are dropped.
    let parts = [0..1_000_000, 1_000_000..1_500_001, 2_000_000..2_100_000];
    let register = |buffer: &RawBuffer| {
        for part in parts.clone() {
            drop(fixture.cache.register(&buffer.slice(part).unwrap()).unwrap());
        }
    };
    let (source, (target, _)) = (fixture.source(), heap(BYTES, true));
    register(&source);
    register(&target);
    fixture.stream.copy_from_host_async(&source, &fixture.device_side).wait().unwrap();
    assert!(fixture.arrived() == fixture.content);
    fixture.stream.copy_to_host_async(&fixture.device_side, &target).wait().unwrap();
    assert!(*target.read().unwrap() == fixture.content[..]);
    // Also by the short path, and from the middle of one registration past the end of the next.
    let (from, there) = (999_990..1_000_010, fixture.device_side.slice(..20).unwrap());
    fixture.stream.copy_from_host_async(&source.slice(from.clone()).unwrap(), &there).wait().unwrap();
    assert!(fixture.arrived()[..20] == fixture.content[from]);
    drop(there);
    // Rows, some within a registration and some crossing its end.
    let rows = transload_core::Pitched::new(1000, 40, 2000, 1000);
    let (there, from) = (fixture.device_side.slice(..40_000).unwrap(), 1_449_501..1_528_501);
    let src = source.slice(from.clone()).unwrap();
    let copy = transload_core::Operation::CopyPitched { src: &src, dst: &there, rows };
    transload_core::submit(&fixture.stream, &copy, transload_core::Timing::Off).unwrap().wait().unwrap();
    let expected: Vec<u8> = fixture.content[from].chunks(2000).flat_map(|row| row[..1000].to_vec()).collect();
    assert!(fixture.arrived()[..40_000] == expected);
    drop((there, src));
    assert_eq!(fixture.cache.statistics().registrations, 6);
    drop((source, target));
    fixture.finish();
}

#[test]
fn pooled_unified_memory_is_ordered_with_streams_and_host() {
    let fixture = crate::allocator::Fixture::new();
    let Ok(resource) = transload_memory::CudaResource::new(&fixture.memory, MemoryKind::Unified) else {
        println!("skipped: the device has no managed memory");
        return;
    };
    let pool = transload_streams::StreamOrderedAllocator::new(resource);
    let (one, two) = (fixture.stream(), fixture.stream());
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
    fixture.finish();
}

#[test]
fn process_exits_cleanly_with_live_registrations() {
    const CHILD: &str = "TRANSLOAD_TEST_REGISTERED_EXIT";
    if std::env::var_os(CHILD).is_none() {
        let name = "registered::process_exits_cleanly_with_live_registrations";
        watched(move || {
            let mut child = crate::support::programs::this_program();
            let child = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
            assert!(child.status().unwrap().success(), "it ends by itself, without a crash");
        });
        return;
    }
    let fixture = Fixture::new(7);
    let (source, other) = (fixture.source(), fixture.source());
    let pinned = fixture.cache.register(&source).unwrap();
    drop(fixture.stream.copy_from_host_async(&pinned, &fixture.device_side));
    drop(fixture.cache.register(&other).unwrap());
    let pool = transload_streams::StreamOrderedAllocator::new(transload_memory::PinnedResource::new(
        &fixture.memory,
    ));
    let held = pool.allocate_buffer(&fixture.stream, 5 << 20).unwrap();
    drop(fixture.stream.copy_to_host_async(&fixture.device_side, &held.slice(..BYTES).unwrap()));
    let written = transload_memory::CudaResource::write_combined(&fixture.memory);
    let written = transload_memory::MemoryResource::allocate_segment(&written, 1000).unwrap();
    // The free thread is busy when the process exits.
    for _ in 0..20 {
        drop(fixture.setup.pinned(&[1; 100]));
    }
    fixture.cache.trim().unwrap();
    std::mem::forget((fixture, pinned, pool, held, written, source, other));
    std::process::exit(0);
}
