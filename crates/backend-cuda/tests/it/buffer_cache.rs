//! `allocate` reuses memory of dropped buffers: without driver calls, not while in flight unless memory is short, and
//! all is released.

use std::sync::atomic::{AtomicBool, Ordering};

use transload_backend_cuda::{CudaBackend, CudaDevice};
use transload_core::{
    Access, Backend, DeviceId, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing,
    WorkloadType, submit,
};
use transload_cuda_sim::harness;
use transload_cuda_sys::{Capture, CaptureMode};
use transload_streams::CudaStream;

use crate::serving::{Elsewhere, MIB, address, finish, open, watched};

#[test]
fn dropped_buffers_memory_is_reused_without_driver_call() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        for bytes in [1, 4096, MIB + 1, 9 * MIB, 64 * MIB] {
            let was = address(&backend.allocate(device, kind, bytes).unwrap());
            let trace = transload_cuda_sys::trace::start();
            for _ in 0..10 {
                let again = backend.allocate(device, kind, bytes).unwrap();
                assert_eq!((address(&again), again.len()), (was, bytes));
            }
            let calls = trace.calls_of_this_thread();
            assert!(calls.is_empty(), "{bytes} bytes of {kind}: {calls:?}");
        }
    }
    finish(test, backend);
}

#[test]
fn memory_in_flight_is_not_reused() {
    watched(memory_in_flight);
}

fn memory_in_flight() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let (first, second) = (
            backend.allocate(device, kind, 100_000).unwrap(),
            backend.allocate(device, kind, 100_000).unwrap(),
        );
        let was = address(&first);
        let elsewhere = Elsewhere::new();
        elsewhere.uses(&first);
        drop((second, first));
        let ledger = backend.resource_counts();
        assert!(ledger.pending_free == 1 && ledger.allocations >= 1, "{ledger}");
        let next = backend.allocate(device, kind, 100_000).unwrap();
        assert_ne!(address(&next), was);
        if kind == MemoryKind::Pinned {
            next.try_write().unwrap().fill(1);
        }
        elsewhere.open();
        // Now both are cached.
        let other = backend.allocate(device, kind, 100_000).unwrap();
        assert_eq!((address(&other), backend.resource_counts().pending_free), (was, 0));
        let used = backend.resource_counts();
        assert!(used.bytes - used.cached_bytes >= 200_000, "{used}");
        drop((other, next));
        let idle = backend.resource_counts();
        assert_eq!(idle.cached_bytes, idle.bytes, "{idle}");
    }
    finish(test, backend);
}

#[test]
fn drain_is_busy_while_a_captured_stream_holds_a_use() {
    watched(drain_in_a_capture);
}

fn drain_in_a_capture() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let stream = CudaStream::new(&CudaDevice::new(test.ordinal()).unwrap()).unwrap();
    let buffer = backend.allocate(device, MemoryKind::Device, 1000).unwrap();
    let using = stream.use_buffer(&buffer, Access::Write).unwrap();
    // SAFETY: nothing else is enqueued on the stream meanwhile.
    let capture = unsafe { Capture::begin(&stream, CaptureMode::Relaxed) }.unwrap();
    drop(using);
    assert_eq!(backend.drain().unwrap_err().kind(), ErrorKind::Busy);
    drop(capture.end().unwrap());
    backend.drain().unwrap();
    drop(buffer.lend(Access::Write).unwrap());
    drop((buffer, stream));
    finish(test, backend);
}

#[test]
fn drain_waits_for_work_on_dropped_buffers() {
    watched(drain_waits);
}

fn drain_waits() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let elsewhere = Elsewhere::new();
    // More than are asked about at a time.
    let many: Vec<RawBuffer> =
        (0..200).map(|_| backend.allocate(device, MemoryKind::Device, 70_000).unwrap()).collect();
    many.iter().for_each(|buffer| elsewhere.uses(buffer));
    drop(many);
    assert_eq!(backend.resource_counts().pending_free, 200);
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| backend.drain());
        elsewhere.open();
        drained.join().unwrap().unwrap();
    });
    finish(test, backend);
}

#[test]
fn buffers_outlive_the_backend() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let buffers: Vec<RawBuffer> = [MemoryKind::Device, MemoryKind::Pinned]
        .map(|kind| backend.allocate(device, kind, 5000).unwrap())
        .into();
    drop(backend);
    buffers[1].write().unwrap().fill(3);
    {
        let stream =
            CudaStream::new(&transload_backend_cuda::CudaDevice::new(test.ordinal()).unwrap()).unwrap();
        drop(stream.copy_from_host_async(&buffers[1], &buffers[0]));
        buffers[1].write().unwrap().fill(0);
        drop(stream.copy_to_host_async(&buffers[0], &buffers[1]));
        assert!(buffers[1].read().unwrap().iter().all(|byte| *byte == 3));
    }
    drop(buffers);
}

#[test]
fn counts_include_used_and_cached_memory() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let large = backend.allocate(device, MemoryKind::Device, 2 * MIB).unwrap();
    let small = [100, 200].map(|bytes| backend.allocate(device, MemoryKind::Device, bytes).unwrap());
    assert_eq!(backend.resource_counts().allocations, 3);
    drop(large);
    // Two of one segment, and a cached segment.
    assert_eq!(backend.resource_counts().allocations, 3);
    drop(small);
    assert_eq!(backend.resource_counts().allocations, 2);
    finish(test, backend);
}

/// Allocates, copies random bytes there and back, and drops most buffers meanwhile.
fn work(backend: &CudaBackend, device: DeviceId, seed: u64) {
    let mut state = seed * 2 + 1;
    let mut draw = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..60 {
        let workload = [WorkloadType::Memory, WorkloadType::Compute][draw(2)];
        let queue = backend.lease_queue(device, StreamPriority::Normal, workload).unwrap();
        let bytes = 1 + draw(100_000);
        let take = |kind| backend.allocate(device, kind, bytes).unwrap();
        let (up, there) = (take(MemoryKind::Pinned), take(MemoryKind::Device));
        let value = (seed * 60 + round) as u8;
        up.try_write().unwrap().fill(value);
        submit(&*queue, &Operation::Copy { src: &up, dst: &there }, Timing::Off).unwrap();
        drop(up);
        if draw(3) > 0 {
            continue;
        }
        let back = take(MemoryKind::Pinned);
        submit(&*queue, &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
        drop(there);
        assert!(back.read().unwrap().iter().all(|byte| *byte == value), "another buffer's bytes");
    }
}

#[test]
fn buffers_of_many_threads_keep_their_contents() {
    watched(|| {
        let test = harness::device().end_check();
        let (backend, device) = open(&test);
        std::thread::scope(|scope| {
            for seed in 0..6 {
                let backend = &backend;
                scope.spawn(move || work(backend, device, seed));
            }
        });
        finish(test, backend);
    });
}

#[test]
fn drain_during_allocations_keeps_live_buffers() {
    watched(|| {
        let test = harness::device().end_check();
        let (backend, device) = open(&test);
        let working = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let drains = scope.spawn(|| {
                while working.load(Ordering::Acquire) {
                    backend.drain().unwrap();
                }
            });
            let workers: Vec<_> = (0..4)
                .map(|seed| {
                    let backend = &backend;
                    scope.spawn(move || work(backend, device, seed))
                })
                .collect();
            let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            working.store(false, Ordering::Release);
            drains.join().unwrap();
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        finish(test, backend);
    });
}

#[test]
fn small_buffer_does_not_split_large_cached_one() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let large = address(&backend.allocate(device, MemoryKind::Device, 64 * MIB).unwrap());
    let small = backend.allocate(device, MemoryKind::Device, 9 * MIB).unwrap();
    let again = backend.allocate(device, MemoryKind::Device, 64 * MIB).unwrap();
    assert_eq!(address(&again), large, "still in one piece");
    drop((small, again));
    finish(test, backend);
}

#[test]
fn buffers_dropped_on_another_thread_are_freed_by_drain() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let buffers: Vec<RawBuffer> =
            (0..300).map(|_| backend.allocate(device, kind, 5000).unwrap()).collect();
        std::thread::scope(|scope| scope.spawn(|| drop(buffers)).join().unwrap());
        let live = backend.resource_counts();
        backend.drain().unwrap();
        assert!(backend.resource_counts().is_empty(), "{live}, then {}", backend.resource_counts());
        // The next thread has the ended one's number, and nothing that was drained.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(backend.allocate(device, kind, 5000).unwrap())).join().unwrap();
        });
    }
    finish(test, backend);
}

#[test]
fn cached_buffer_has_new_identity_and_no_uses() {
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let first = backend.allocate(device, kind, 4096).unwrap();
        let (id, at) = (first.id(), address(&first));
        let elsewhere = Elsewhere::new();
        elsewhere.uses(&first);
        elsewhere.open();
        let weak = first.downgrade();
        drop(first);
        assert!(weak.upgrade().is_none(), "an allocation with a weak handle ends");
        let again = backend.allocate(device, kind, 4096).unwrap();
        let part = again.slice(100..200).unwrap();
        drop(again);
        let other = backend.allocate(device, kind, 4096).unwrap();
        assert_ne!(address(&other), at, "a slice keeps the allocation");
        drop(part);
        let third = backend.allocate(device, kind, 4096).unwrap();
        assert_eq!((address(&third), third.len(), third.offset()), (at, 4096, 0));
        assert_ne!(third.id(), id);
        assert_eq!(
            (third.uses(), third.writes(), third.in_flight().map(|fences| fences.len())),
            (0, 0, Some(0))
        );
    }
    finish(test, backend);
}

#[test]
fn kept_buffers_of_many_threads_never_share_bytes() {
    watched(never_share_bytes);
}

/// Threads allocate, write, check, pass on and drop buffers, while one drains the cache.
fn never_share_bytes() {
    const THREADS: u8 = 6;
    let test = harness::device().end_check();
    let (backend, device) = open(&test);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pass, passed) = std::sync::mpsc::channel::<(u8, RawBuffer)>();
        let writers: Vec<_> = (1..=THREADS)
            .map(|own| {
                let (pass, backend) = (pass.clone(), &backend);
                scope.spawn(move || {
                    for round in 0..300_usize {
                        let sizes = [4096, 5000, 4096, 70_000];
                        let held =
                            sizes.map(|bytes| backend.allocate(device, MemoryKind::Pinned, bytes).unwrap());
                        held.iter().for_each(|buffer| buffer.write().unwrap().fill(own));
                        for buffer in &held {
                            assert!(buffer.read().unwrap().iter().all(|byte| *byte == own), "round {round}");
                        }
                        let [first, ..] = held;
                        pass.send((own, first)).unwrap();
                    }
                })
            })
            .collect();
        drop(pass);
        let drops = scope.spawn(move || {
            for (own, buffer) in passed {
                assert!(buffer.read().unwrap().iter().all(|byte| *byte == own));
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _told = backend.drain();
                let _counted = backend.resource_counts();
            }
        });
        let outcome: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let dropped = drops.join();
        over.store(true, Ordering::Relaxed);
        assert!(outcome.iter().all(Result::is_ok) && dropped.is_ok());
    });
    finish(test, backend);
}
