//! Events of streams, their pool and their allocator.

use std::{
    thread,
    time::{Duration, Instant},
};

use transload_core::{Access, MemoryKind, Pattern, Queue, StreamPriority, events, events::report};
use transload_cuda_sys::{AsStream, Capture, CaptureMode};
use transload_memory::CudaResource;
use transload_streams::{AdvancedStreamPool, AllocationStrategy, CudaStream, StreamOrderedAllocator};

use crate::{
    Fixture, INVALID_PTX, MIB, NOT_SUPPORTED, OUT_OF_MEMORY, UNKNOWN,
    event_log::{Record, so_far},
    find, find_one,
    host_line::HostLine,
    record,
};

const BYTES: usize = 4096;

#[test]
fn rejected_kernels_are_reported() {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let there = fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap();
        fixture.sim.fail_call(Some("cuModuleLoadDataEx"), 1, INVALID_PTX);
        stream.memset_async(&there, Pattern::from_bytes(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap()).wait().unwrap();
        stream.synchronize().unwrap();
    });
    let rejected = find_one(&records, events::KERNEL_UNAVAILABLE, events::DRIVER, &["error"]);
    assert_eq!(rejected.field("device"), Some(&*name));
}

#[test]
fn first_use_of_kernels_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        let pool = AdvancedStreamPool::new(&fixture.device).unwrap();
        pool.prepare_in_place().unwrap();
        pool.prepare_in_place().unwrap();
        pool.synchronize().unwrap();
        fixture.memory.drain().unwrap();
    });
    let first = find(&records, events::FIRST_USE, events::DRIVER, &["device", "elapsed_ns"]);
    let what: Vec<_> = first.iter().filter_map(|record| record.field("what")).collect();
    assert_eq!(what, ["context", "kernels for copies, fills and casts"]);
}

#[test]
fn host_work_that_the_host_waits_for_is_reported() {
    for (call, code) in [("cuStreamWaitValue32_v2", NOT_SUPPORTED), ("cuMemHostAlloc", OUT_OF_MEMORY)] {
        let mut name = String::new();
        let records = record(|| {
            let fixture = Fixture::new();
            name = fixture.name();
            let stream = CudaStream::new(&fixture.device).unwrap();
            let [pinned, there] = [MemoryKind::Pinned, MemoryKind::Device]
                .map(|kind| fixture.memory.allocate(kind, BYTES).unwrap());
            let line = HostLine::writing(&pinned, vec![7; BYTES]);
            fixture.sim.fail_call(Some(call), 1, code);
            stream.copy_from_host_async(&pinned, &there).wait().unwrap();
            assert!(line.was_waited_for());
            fixture.memory.drain().unwrap();
        });
        let failed = find_one(&records, events::CALL_FAILED, events::DRIVER, &["error"]);
        let what = "the host waits for host work instead of the stream";
        assert_eq!((failed.field("what"), failed.field("device")), (Some(what), Some(&*name)));
    }
}

#[test]
fn stream_that_is_shared_for_want_of_another_is_reported() {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        let pool = AdvancedStreamPool::new_with_strategy(&fixture.device, 3, AllocationStrategy::RoundRobin)
            .unwrap();
        let lease = || pool.get_priority_stream(StreamPriority::High).unwrap();
        let first = lease();
        fixture.sim.fail_call(Some("cuStreamCreateWithPriority"), 1, UNKNOWN);
        let second = lease();
        assert_eq!(first.raw_handle(), second.raw_handle());
        pool.synchronize().unwrap();
    });
    let shared = find_one(&records, events::CALL_FAILED, events::DRIVER, &["error"]);
    assert_eq!((shared.field("what"), shared.field("device")), (Some("a stream is shared"), Some(&*name)));
}

#[test]
fn refused_stream_copy_is_reported_and_also_if_dropped_unseen() {
    let records = record(|| {
        let fixture = Fixture::new();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let [small, large] =
            [BYTES, 2 * BYTES].map(|bytes| fixture.memory.allocate(MemoryKind::Device, bytes).unwrap());
        stream.copy_device_to_device_async(&small, &large).wait().unwrap_err();
        let seen = stream.copy_device_to_device_async(&small, &large);
        assert!(seen.refusal().is_some());
        drop(seen);
        drop(stream.prefetch_to_host_async(&small));
        stream.synchronize().unwrap();
    });
    assert_eq!(find(&records, events::TRANSFER_REFUSED, events::TRANSFER, &["error"]).len(), 3);
    let unobserved = find_one(&records, events::FAILURE_UNOBSERVED, events::TRANSFER, &["error"]);
    let error = unobserved.field("error").unwrap();
    assert!(error.contains("prefetch"), "{error}");
}

/// Drops a stream's copy of bytes that host work writes, before or after its end, and returns the events.
fn drop_copy_of_host_work(fails: bool, early: bool) -> Vec<Record> {
    record(|| {
        let fixture = Fixture::new();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let [pinned, there] = [MemoryKind::Pinned, MemoryKind::Device]
            .map(|kind| fixture.memory.allocate(kind, BYTES).unwrap());
        let line = HostLine::writing(&pinned, vec![7; BYTES]);
        let mut copied = Some(stream.copy_from_host_async(&pinned, &there));
        if early {
            copied = None;
        }
        if fails {
            line.fail()
        } else {
            line.open()
        }
        stream.synchronize().unwrap();
        drop(copied);
        // The thread that watches streams may see the end later than this one.
        let is_reported = || so_far().iter().any(|record| record.name == events::FAILURE_UNOBSERVED);
        let begun = Instant::now();
        while early && !is_reported() && begun.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
            report::emit_deferred();
        }
        report::emit_deferred();
        fixture.memory.drain().unwrap();
    })
}

#[test]
fn dropped_stream_copy_of_failed_bytes_is_reported() {
    for early in [true, false] {
        let records = drop_copy_of_host_work(true, early);
        let unobserved = find_one(&records, events::FAILURE_UNOBSERVED, events::TRANSFER, &["error"]);
        let error = unobserved.field("error").unwrap();
        assert!(error.contains("were read"), "{error}");
    }
    let records = drop_copy_of_host_work(false, false);
    assert!(records.iter().all(|record| record.name != events::FAILURE_UNOBSERVED), "{records:#?}");
}

#[test]
fn dropped_stream_copy_is_reported_with_its_lost_device() {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let there = fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap();
        drop(stream.memset_async(&there, Pattern::U8(1)));
        fixture.sim.poison(700);
        drop(stream.memset_async(&there, Pattern::U8(2)));
        stream.synchronize().unwrap_err();
        // The memory stays until the process ends.
        std::mem::forget(fixture.sim);
    });
    let lost = find_one(&records, events::CONTEXT_LOST, events::DRIVER, &["error"]);
    assert_eq!(lost.field("device"), Some(&*name));
    find(&records, events::TRANSFER_REFUSED, events::TRANSFER, &["error"]);
    find(&records, events::FAILURE_UNOBSERVED, events::TRANSFER, &["error"]);
}

#[test]
fn repeated_wait_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let there = fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap();
        let fill = stream.memset_async(&there, Pattern::U8(1));
        fixture.sim.fail_call(Some("cuStreamSynchronize"), 1, UNKNOWN);
        stream.synchronize().unwrap_err();
        fill.wait().unwrap();
    });
    let repeated = find_one(&records, events::CALL_FAILED, events::DRIVER, &["device", "error"]);
    assert_eq!(repeated.field("what"), Some("waiting for the stream again"));
}

#[test]
fn panic_of_a_callback_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        let stream = CudaStream::new(&fixture.device).unwrap();
        stream.add_callback(|_| panic!("planted panic")).unwrap();
        stream.synchronize().unwrap();
    });
    let panic = find_one(&records, events::PANIC_CAUGHT, events::THREADS, &[]);
    assert_eq!(panic.field("text"), Some("planted panic"));
}

#[test]
fn use_that_ends_after_a_capture_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let there = fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap();
        let used = stream.use_buffer(&there, Access::Write).unwrap();
        let _exposed = stream.as_raw();
        // SAFETY: nothing else is enqueued on the stream meanwhile.
        let capture = unsafe { Capture::begin(&stream, CaptureMode::Relaxed) }.unwrap();
        drop(used);
        drop(capture.end().unwrap());
        CudaStream::drain_loan_ends(stream.device()).unwrap();
        stream.synchronize().unwrap();
    });
    let later = find_one(&records, events::CALL_FAILED, events::DRIVER, &["device", "error"]);
    assert_eq!(later.field("what"), Some("a loan ends later"));
}

#[test]
fn allocator_that_reclaims_memory_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        let resource = CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap();
        let allocator = StreamOrderedAllocator::builder(resource).limit(8 * MIB as u64).build().unwrap();
        let stream = CudaStream::new(&fixture.device).unwrap();
        let few = [(); 4].map(|()| allocator.allocate_for_stream(&stream, 2 * MIB).unwrap());
        few.into_iter().for_each(|block| allocator.free_on(block, &stream).unwrap());
        let whole = allocator.allocate_for_stream(&stream, 7 * MIB).unwrap();
        allocator.free_on(whole, &stream).unwrap();
    });
    let reclaimed = find_one(&records, events::ALLOCATION_RETRIED, events::MEMORY, &["place", "how"]);
    assert_eq!(reclaimed.field("bytes"), Some("7340032"));
}
