//! The allocator on a failing driver, a small or lost device, and without a necessary wait.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, Pattern, Result};
use transload_cuda_sim::{SimDevice, harness};
use transload_cuda_sys::{AsStream, check, ffi};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

use crate::{ILLEGAL_ADDRESS, UNKNOWN, alone_with_drop_errors, builder};

const MIB: usize = 1 << 20;

struct Fixture {
    device: CudaDevice,
    memory: Arc<CudaMemoryManager>,
    allocator: StreamOrderedAllocator,
}

fn fixture(sim: &SimDevice, limit: usize) -> Result<Fixture> {
    let device = CudaDevice::new(sim.ordinal())?;
    let memory = Arc::new(CudaMemoryManager::new(&device)?);
    let upstream = CudaResource::new(&memory, MemoryKind::Device)?;
    let builder = StreamOrderedAllocator::builder(upstream).segments(MIB as u64, MIB as u64);
    let allocator = builder.limit(limit as u64).build()?;
    Ok(Fixture { device, memory, allocator })
}

fn fill(stream: &CudaStream, block: StreamBlock, value: u8) -> Result<()> {
    let _bound = stream.context().enter().map_err(transload_memory::lift)?;
    // SAFETY: the block is live; a wrong order is what the test looks for.
    let code =
        unsafe { ffi::cuMemsetD8Async(block.address(), value, block.bytes() as usize, stream.as_raw()) };
    check("cuMemsetD8Async", code).map_err(transload_memory::lift)
}

/// Same-stream and cross-stream reuse of blocks and buffers, a recorded use, a dropped stream, coalescing, trimming.
fn scenario(Fixture { device, memory, allocator }: &Fixture) -> Result<()> {
    let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let gone = CudaStream::new(device)?;
    let block = allocator.allocate_for_stream(&one, 300_000)?;
    fill(&one, block, 1)?;
    allocator.add_stream_dependency(&two, &one)?;
    allocator.record_use(block, &two)?;
    fill(&two, block, 2)?;
    allocator.free_on(block, &one)?;
    let left = allocator.allocate_for_stream(&gone, 300_000)?;
    fill(&gone, left, 3)?;
    allocator.free_on(left, &gone)?;
    drop(gone);
    let buffer = allocator.allocate_buffer(&two, 200_000)?;
    let filled = two.memset_async(&buffer, Pattern::U8(4));
    let again = one.memset_async(&buffer, Pattern::U8(5));
    drop(buffer);
    let whole = allocator.allocate_for_stream(&one, MIB)?;
    fill(&one, whole, 6)?;
    allocator.free_on(whole, &one)?;
    let buffer = allocator.allocate_buffer(&two, MIB)?;
    let last = two.memset_async(&buffer, Pattern::U8(7));
    drop(buffer);
    filled.wait()?;
    again.wait()?;
    last.wait()?;
    one.synchronize()?;
    allocator.trim()?;
    memory.drain()
}

#[test]
fn each_failing_call_of_the_allocator_is_a_typed_error() {
    let _alone = alone_with_drop_errors();
    let kinds = [ErrorKind::Device, ErrorKind::OutOfMemory];
    harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN],
        &kinds,
        |sim| {
            let fixture = fixture(&sim, MIB)?;
            let outcome = scenario(&fixture);
            let Fixture { memory, allocator, .. } = fixture;
            drop(allocator);
            outcome.and(memory.drain())
        },
    );
}

#[test]
fn reuse_across_streams_has_no_race_under_thirty_seeds() {
    for seed in 0..30 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let fixture = fixture(&sim, MIB).unwrap();
        scenario(&fixture).unwrap();
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
        let Fixture { device, memory, allocator } = fixture;
        drop(allocator);
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.live_objects().is_empty(), "seed {seed}: {}", sim.live_objects());
    }
}

#[test]
fn reuse_across_streams_without_the_wait_is_found_as_a_race() {
    let sim = builder().record_accesses(true).build();
    let fixture = fixture(&sim, MIB).unwrap();
    let (one, two) = (CudaStream::new(&fixture.device).unwrap(), CudaStream::new(&fixture.device).unwrap());
    let block = fixture.allocator.allocate_for_stream(&one, MIB).unwrap();
    fill(&one, block, 1).unwrap();
    fixture.allocator.free_on(block, &one).unwrap();
    // Like an allocator that does not wait for events.
    fill(&two, block, 2).unwrap();
    one.synchronize().unwrap();
    two.synchronize().unwrap();
    assert!(!sim.races().is_empty(), "the checker must see a reuse that nothing orders");
}

#[test]
fn only_an_unrecorded_use_is_a_race() {
    for recorded in [false, true] {
        let sim = builder().record_accesses(true).build();
        let fixture = fixture(&sim, MIB).unwrap();
        let (own, user) =
            (CudaStream::new(&fixture.device).unwrap(), CudaStream::new(&fixture.device).unwrap());
        let block = fixture.allocator.allocate_for_stream(&own, MIB).unwrap();
        fill(&user, block, 1).unwrap();
        if recorded {
            fixture.allocator.record_use(block, &user).unwrap();
        }
        fixture.allocator.free_on(block, &own).unwrap();
        let next = fixture.allocator.allocate_for_stream(&own, MIB).unwrap();
        fill(&own, next, 2).unwrap();
        own.synchronize().unwrap();
        user.synchronize().unwrap();
        assert_eq!(sim.races().is_empty(), recorded, "recorded: {recorded}");
    }
}

#[test]
fn out_of_memory_reports_numbers_and_ends_after_a_free() {
    let sim = builder().total_memory(64 << 20).checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
    let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device).unwrap());
    let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
    let mut blocks = Vec::new();
    let error = loop {
        let stream = &streams[blocks.len() % 3];
        match allocator.allocate_for_stream(stream, 5 * MIB) {
            Ok(block) => {
                fill(stream, block, 1).unwrap();
                blocks.push((block, stream));
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!((shortage.requested, shortage.total), (5 << 20, Some(64 << 20)));
    assert!(blocks.len() >= 8, "only {} blocks of 5 MiB in 64 MiB", blocks.len());
    for (block, stream) in blocks {
        allocator.free_on(block, stream).unwrap();
    }
    // Larger than any segment, so that segments must be released first.
    let large = allocator.allocate_for_stream(&streams[0], 45 * MIB).unwrap();
    allocator.free_on(large, &streams[0]).unwrap();
    drop((allocator, streams));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}

#[test]
fn lost_device_is_a_typed_error_and_frees_everything() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let fixture = fixture(&sim, 4 * MIB).unwrap();
    let (one, two) = (CudaStream::new(&fixture.device).unwrap(), CudaStream::new(&fixture.device).unwrap());
    let block = fixture.allocator.allocate_for_stream(&one, MIB).unwrap();
    let used = fixture.allocator.allocate_for_stream(&one, 1000).unwrap();
    fixture.allocator.record_use(used, &two).unwrap();
    fill(&one, block, 1).unwrap();
    let buffer = fixture.allocator.allocate_buffer(&two, MIB).unwrap();
    let in_flight = two.memset_async(&buffer, Pattern::U8(1));
    fixture.allocator.free_on(block, &one).unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    assert_eq!(in_flight.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
    fixture.allocator.free_on(used, &one).unwrap();
    drop(buffer);
    // Cached memory is still returned; requests that need the driver fail with a reason.
    for bytes in [MIB, 2 * MIB, 3 * MIB] {
        for stream in [&one, &two] {
            if let Err(error) = fixture.allocator.allocate_for_stream(stream, bytes) {
                assert!(
                    matches!(error.kind(), ErrorKind::DeviceLost | ErrorKind::OutOfMemory),
                    "{bytes}: {error:?}"
                );
            }
        }
    }
    assert!(fixture.allocator.allocate_for_stream(&one, 40 * MIB).is_err());
    let _told = fixture.allocator.trim();
    drop((one, two));
    let Fixture { memory, allocator, .. } = fixture;
    drop(allocator);
    assert_eq!(
        memory.resource_counts().pending_free,
        0,
        "nothing runs on a lost device, so nothing is waited for"
    );
}

#[test]
fn block_in_use_by_another_stream_waits_for_that_use() {
    // A buffer last used by a delayed copy: without other memory, the next one waits for it.
    let sim = builder().checked();
    let fixture = fixture(&sim, MIB).unwrap();
    let (one, two) = (CudaStream::new(&fixture.device).unwrap(), CudaStream::new(&fixture.device).unwrap());
    let buffer = fixture.allocator.allocate_buffer(&one, MIB).unwrap();
    // Queues enough that a few queries do not find it complete.
    for _ in 0..100 {
        drop(two.memset_async(&buffer, Pattern::U8(0)));
    }
    let late = two.memset_async(&buffer, Pattern::U8(1));
    drop(buffer);
    let block = fixture.allocator.allocate_for_stream(&one, MIB).unwrap();
    fill(&one, block, 2).unwrap();
    one.synchronize().unwrap();
    assert!(late.is_complete(), "the work that it waits for completes first");
    let served = fixture.allocator.statistics().served;
    assert_eq!(served.other_stream_waited, 1, "{served:?}");
}

#[test]
fn a_free_that_fails_leaves_the_block_live_and_counted_once() {
    let sim = builder().checked();
    let fixture = fixture(&sim, MIB).unwrap();
    let (own, user) = (CudaStream::new(&fixture.device).unwrap(), CudaStream::new(&fixture.device).unwrap());
    let block = fixture.allocator.allocate_for_stream(&own, MIB).unwrap();
    fixture.allocator.record_use(block, &user).unwrap();
    let counted = |allocator: &StreamOrderedAllocator| {
        let statistics = allocator.statistics();
        let allocations: u64 = statistics.classes.iter().map(|class| class.allocations).sum();
        (statistics.live_blocks, allocations)
    };
    assert_eq!(counted(&fixture.allocator), (1, 1));
    sim.fail_call(Some("cuEventRecord"), 1, UNKNOWN);
    sim.fail_call(Some("cuStreamSynchronize"), 1, UNKNOWN);
    assert_eq!(fixture.allocator.free_on(block, &own).unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(counted(&fixture.allocator), (1, 1));
    fixture.allocator.free_on(block, &own).unwrap();
    assert_eq!(counted(&fixture.allocator), (0, 1));
}

#[test]
fn a_callback_of_one_allocator_may_make_another_one_ask_its_own() {
    let sim = builder().checked();
    let (one, two) = (fixture(&sim, MIB).unwrap(), fixture(&sim, MIB).unwrap());
    let stream = CudaStream::new(&one.device).unwrap();
    let of_two = two.allocator.allocate_for_stream(&stream, MIB).unwrap();
    let full = one.allocator.allocate_for_stream(&stream, MIB).unwrap();
    let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asks = {
        let (asked, allocator) = (Arc::clone(&asked), two.allocator.clone());
        two.allocator.on_out_of_memory(move |_| {
            asked.store(true, std::sync::atomic::Ordering::SeqCst);
            allocator.free(of_two).is_ok()
        })
    };
    let (other, on) = (two.allocator.clone(), stream.clone());
    let needs = one.allocator.on_out_of_memory(move |_| {
        let scratch = other.allocate_for_stream(&on, MIB);
        assert!(scratch.is_ok(), "{scratch:?}");
        false
    });
    let error = one.allocator.allocate_for_stream(&stream, MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(asked.load(std::sync::atomic::Ordering::SeqCst));
    one.allocator.free_on(full, &stream).unwrap();
    one.allocator.remove_callback(needs);
    two.allocator.remove_callback(asks);
}

#[test]
fn largest_size_named_by_the_refusal_is_accepted() {
    let sim = builder().checked();
    let fixture = fixture(&sim, MIB).unwrap();
    let stream = CudaStream::new(&fixture.device).unwrap();
    let refused = fixture.allocator.allocate_for_stream(&stream, usize::MAX).unwrap_err().to_string();
    let valid: usize = refused.rsplit(' ').nth(1).unwrap().parse().unwrap();
    let error = fixture.allocator.allocate_for_stream(&stream, valid).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let error = fixture.allocator.allocate_for_stream(&stream, valid + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
