//! Failed calls that this library works around, each in its situation.

use transload_core::{Access, MemoryKind, Operation, Pattern, RawBuffer, StreamPriority, events};
use transload_memory::CudaResource;
use transload_streams::{CudaGraph, CudaStream, MultiStreamCoordinator, StreamOrderedAllocator};

use crate::{Fixture, UNKNOWN, find_one, record};

const BYTES: usize = 4096;
const WAITS: &str = "waiting for a stream instead of a fence";

/// Runs a situation, which ends with its workaround, and checks that it was reported once, as this.
#[track_caller]
fn check(what: &str, situation: impl FnOnce(&Fixture, &RawBuffer)) {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        let there = fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap();
        situation(&fixture, &there);
        drop(there);
        fixture.memory.drain().unwrap();
    });
    let failed = find_one(&records, events::CALL_FAILED, events::DRIVER, &["error"]);
    let device = failed.field("device").unwrap_or(&name);
    assert_eq!((failed.field("what"), device), (Some(what), &*name));
    assert!(failed.field("error").unwrap().contains("cu"), "{failed:?}");
}

fn fill(stream: &CudaStream, there: &RawBuffer) {
    drop(stream.memset_async(there, Pattern::U8(1)));
}

fn fail(fixture: &Fixture, call: &str) {
    fixture.sim.fail_call(Some(call), 1, UNKNOWN);
}

fn allocator(fixture: &Fixture) -> StreamOrderedAllocator {
    let resource = CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap();
    StreamOrderedAllocator::builder(resource).build().unwrap()
}

#[test]
fn exposed_handle_without_an_event_before_it() {
    check("a fence may also wait for work of the raw handle", |fixture, there| {
        let stream = CudaStream::new(&fixture.device).unwrap();
        fill(&stream, there);
        fail(fixture, "cuEventRecord");
        let _exposed = stream.handle();
        stream.synchronize().unwrap();
    });
}

#[test]
fn use_of_a_buffer_that_ends_without_an_event() {
    check(WAITS, |fixture, there| {
        let stream = CudaStream::new(&fixture.device).unwrap();
        let using = stream.use_buffer(there, Access::Write).unwrap();
        fail(fixture, "cuEventRecord");
        using.end().unwrap();
    });
}

#[test]
fn parallel_task_that_ends_without_an_event() {
    check(WAITS, |fixture, _| {
        let coordinator = MultiStreamCoordinator::new();
        coordinator.register(&CudaStream::new(&fixture.device).unwrap());
        let task = |_: &CudaStream| {
            fail(fixture, "cuEventRecord");
            Ok(())
        };
        assert!(coordinator.execute_parallel([task]).unwrap().iter().all(Result::is_ok));
    });
}

#[test]
fn block_freed_without_an_event_of_its_user() {
    check(WAITS, |fixture, there| {
        let (allocator, stream) = (allocator(fixture), CudaStream::new(&fixture.device).unwrap());
        let other = CudaStream::new(&fixture.device).unwrap();
        let block = allocator.allocate_for_stream(&stream, BYTES).unwrap();
        fill(&other, there);
        allocator.record_use(block, &other).unwrap();
        fail(fixture, "cuEventRecord");
        allocator.free_on(block, &stream).unwrap();
    });
}

#[test]
fn allocator_dropped_without_an_event_of_its_stream() {
    check(WAITS, |fixture, there| {
        let (allocator, stream) = (allocator(fixture), CudaStream::new(&fixture.device).unwrap());
        let block = allocator.allocate_for_stream(&stream, BYTES).unwrap();
        fill(&stream, there);
        allocator.free_on(block, &stream).unwrap();
        fail(fixture, "cuEventRecord");
        drop(allocator);
    });
}

#[test]
fn stream_destroyed_without_an_event() {
    check(WAITS, |fixture, there| {
        let (allocator, stream) = (allocator(fixture), CudaStream::new(&fixture.device).unwrap());
        let block = allocator.allocate_for_stream(&stream, BYTES).unwrap();
        fill(&stream, there);
        allocator.free_on(block, &stream).unwrap();
        // Whether it is idle is not known either.
        fail(fixture, "cuStreamQuery");
        fail(fixture, "cuEventRecord");
        drop(stream);
    });
}

#[test]
fn graph_launched_without_an_event() {
    check("a graph's kernels stay loaded", |fixture, there| {
        let pattern = Pattern::from_bytes(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let work = [Operation::Fill { dst: there, pattern }];
        let graph = CudaGraph::record(&fixture.device, StreamPriority::Normal, &work).unwrap();
        let stream = CudaStream::new(&fixture.device).unwrap();
        fail(fixture, "cuEventRecord");
        graph.launch(&stream).unwrap().wait().unwrap();
    });
}
