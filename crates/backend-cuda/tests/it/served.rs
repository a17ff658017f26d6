//! What `allocate` gives of memory that buffers left: warm, never in flight where there is other memory, and all of it back.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Access, Backend, Claims, DeviceId, ErrorKind, Fence, MemoryKind, Operation, Pattern, RawBuffer, Result,
    StreamPriority, Timeline, TimelineId, Timing, WorkloadType, submit,
};
use transload_cuda_sim::harness::{self, TestDevice};
use transload_streams::CudaStream;

const MIB: usize = 1 << 20;

fn open(test: &TestDevice) -> (Arc<CudaBackend>, DeviceId) {
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(test.ordinal()))
}

fn finish(test: TestDevice, backend: Arc<CudaBackend>) {
    backend.drain().unwrap();
    assert!(backend.ledger().is_empty(), "{}", backend.ledger());
    drop(backend);
    test.assert_ledger_empty();
    test.assert_no_races();
}

fn address(buffer: &RawBuffer) -> u64 {
    buffer.device_address().unwrap_or_else(|| buffer.host_address().unwrap().addr().get() as u64)
}

/// Fails instead of hanging.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if is_done.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("no end after a minute");
    }
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Work of nobody's that is over when the test says so.
struct Elsewhere {
    id: TimelineId,
    over: AtomicBool,
}

impl Elsewhere {
    fn new() -> Arc<Self> {
        Arc::new(Self { id: transload_core::next_timeline_id(), over: AtomicBool::new(false) })
    }

    fn uses(self: &Arc<Self>, buffer: &RawBuffer) {
        let claims = Claims::of(&mut [(buffer, Access::Write)]).unwrap();
        // SAFETY: nothing runs.
        unsafe { claims.commit(&Fence::new(Arc::clone(self) as Arc<dyn Timeline>, 1)) };
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for Elsewhere {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        u64::from(self.over.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        Ok(self.reached() > 0)
    }

    fn wait(&self, _point: u64) -> Result<()> {
        while self.reached() == 0 {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
        true
    }

    fn take_duration(&self, _point: u64) -> Result<Option<Duration>> {
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn memory_of_a_buffer_that_is_gone_is_given_again_without_a_driver_call() {
    let test = harness::device();
    let (backend, device) = open(&test);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        for bytes in [1, 4096, MIB + 1, 9 * MIB] {
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
fn memory_in_flight_is_not_the_next_buffers() {
    watched(memory_in_flight);
}

fn memory_in_flight() {
    let test = harness::device();
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
        let ledger = backend.ledger();
        assert!(ledger.parked == 1 && ledger.allocations >= 1, "{ledger}");
        let next = backend.allocate(device, kind, 100_000).unwrap();
        assert_ne!(address(&next), was);
        if kind == MemoryKind::Pinned {
            next.try_write().unwrap().fill(1);
        }
        elsewhere.end();
        // Now both serve.
        let other = backend.allocate(device, kind, 100_000).unwrap();
        assert_eq!((address(&other), backend.ledger().parked), (was, 0));
    }
    finish(test, backend);
}

#[test]
fn drain_waits_for_what_dropped_buffers_wait_for() {
    watched(drain_waits);
}

fn drain_waits() {
    let test = harness::device();
    let (backend, device) = open(&test);
    let elsewhere = Elsewhere::new();
    // More than are asked about at a time.
    let many: Vec<RawBuffer> =
        (0..200).map(|_| backend.allocate(device, MemoryKind::Device, 70_000).unwrap()).collect();
    many.iter().for_each(|buffer| elsewhere.uses(buffer));
    drop(many);
    assert_eq!(backend.ledger().parked, 200);
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| backend.drain());
        elsewhere.end();
        drained.join().unwrap().unwrap();
    });
    finish(test, backend);
}

#[test]
fn buffers_outlive_the_backend() {
    let test = harness::device();
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
    // The thread that frees pinned memory may be at it.
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    while test.sim().is_some_and(|sim| !sim.ledger().is_empty()) && std::time::Instant::now() < limit {
        std::thread::yield_now();
    }
    test.assert_ledger_empty();
    test.assert_no_races();
}

#[test]
fn where_there_is_no_other_memory_a_buffer_comes_behind_work_in_flight() {
    watched(no_other_memory);
}

fn no_other_memory() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(8 * MIB).record_accesses(true))
    else {
        return;
    };
    let (backend, device) = open(&test);
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let back = backend.allocate(device, MemoryKind::Pinned, 5 * MIB).unwrap();
    for round in 1..20_u8 {
        // The only memory that there is.
        let there = backend.allocate(device, MemoryKind::Device, 5 * MIB).unwrap();
        let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(round) };
        submit(&*queue, &fill, Timing::Off).unwrap();
        submit(&*queue, &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
        drop(there);
        if round % 5 == 0 {
            assert!(back.read().unwrap().iter().all(|byte| *byte == round));
        }
    }
    drop((back, queue));
    finish(test, backend);
}

#[test]
fn what_is_kept_goes_back_where_other_memory_of_the_device_is_asked_for() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(32 * MIB)) else { return };
    let (backend, device) = open(&test);
    let keep = || {
        let few = [7, 7, 7].map(|mib| backend.allocate(device, MemoryKind::Device, mib * MIB).unwrap());
        drop(few);
        assert!(backend.ledger().bytes >= 21 * MIB as u64, "kept: {}", backend.ledger());
    };
    keep();
    drop(backend.allocate(device, MemoryKind::Unified, 20 * MIB).unwrap());
    keep();
    drop(backend.allocate(device, MemoryKind::Device, 20 * MIB).unwrap());
    keep();
    drop(backend.allocate(device, MemoryKind::Device, 15 * MIB).unwrap());
    backend.drain().unwrap();
    keep();
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    let allocator = backend.allocator(test.ordinal()).unwrap();
    drop(allocator.allocate_buffer(&stream, 20 * MIB).unwrap());
    drop(stream);
    finish(test, backend);
}

#[test]
fn what_another_allocator_only_keeps_goes_back_before_a_buffer_begins_behind_work() {
    watched(kept_beside);
}

fn kept_beside() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(32 * MIB)) else { return };
    let (backend, device) = open(&test);
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    let first = backend.allocate(device, MemoryKind::Device, 7 * MIB).unwrap();
    drop(backend.allocator(test.ordinal()).unwrap().allocate_buffer(&stream, 20 * MIB).unwrap());
    let elsewhere = Elsewhere::new();
    elsewhere.uses(&first);
    drop(first);
    let next = backend.allocate(device, MemoryKind::Device, 7 * MIB).unwrap();
    assert!(next.in_flight().unwrap_or_default().iter().all(Fence::is_known_done), "behind other work");
    elsewhere.end();
    drop((next, stream));
    finish(test, backend);
}

#[test]
fn where_memory_is_short_nothing_is_waited_for_that_this_thread_may_be_the_one_to_end() {
    watched(not_waited_for);
}

fn not_waited_for() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(32 * MIB)) else { return };
    let (backend, device) = open(&test);
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    drop(backend.allocator(test.ordinal()).unwrap().allocate_buffer(&stream, MIB).unwrap());
    for kept in [18 * MIB, 9 * MIB] {
        let elsewhere = Elsewhere::new();
        let used: Vec<RawBuffer> = (0..18 * MIB / kept)
            .map(|_| backend.allocate(device, MemoryKind::Device, kept).unwrap())
            .collect();
        used.iter().for_each(|buffer| elsewhere.uses(buffer));
        drop(used);
        for kind in [MemoryKind::Device, MemoryKind::Unified] {
            let refused = backend.allocate(device, kind, 20 * MIB).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        }
        elsewhere.end();
        drop(backend.allocate(device, MemoryKind::Device, 20 * MIB).unwrap());
        backend.drain().unwrap();
    }
    drop(stream);
    finish(test, backend);
}

#[test]
fn pinned_memory_stays_warm_where_the_devices_memory_is_short() {
    let Some(test) = harness::device_with(|builder| builder.total_memory(32 * MIB)) else { return };
    let (backend, device) = open(&test);
    let was = address(&backend.allocate(device, MemoryKind::Pinned, 3 * MIB).unwrap());
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        drop([9, 9].map(|mib| backend.allocate(device, MemoryKind::Device, mib * MIB).unwrap()));
        drop(backend.allocate(device, kind, 20 * MIB).unwrap());
        assert_eq!(backend.allocate(device, kind, 40 * MIB).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
    let trace = transload_cuda_sys::trace::start();
    let again = backend.allocate(device, MemoryKind::Pinned, 3 * MIB).unwrap();
    let calls = trace.calls_of_this_thread();
    assert!(address(&again) == was && calls.is_empty(), "{calls:?}");
    drop((trace, again));
    finish(test, backend);
}

#[test]
fn the_ledger_counts_what_is_used_and_what_is_only_kept() {
    let test = harness::device();
    let (backend, device) = open(&test);
    let large = backend.allocate(device, MemoryKind::Device, 2 * MIB).unwrap();
    let small = [100, 200].map(|bytes| backend.allocate(device, MemoryKind::Device, bytes).unwrap());
    assert_eq!(backend.ledger().allocations, 3);
    drop(large);
    // Two of one segment, and another that is only kept.
    assert_eq!(backend.ledger().allocations, 3);
    drop(small);
    assert_eq!(backend.ledger().allocations, 2);
    finish(test, backend);
}

/// Takes memory, brings noise there and back, and drops most of it while that runs.
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
fn buffers_of_many_threads_never_mix_up_their_contents() {
    watched(|| {
        let test = harness::device();
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
fn draining_while_others_allocate_takes_nothing_from_them() {
    watched(|| {
        let test = harness::device();
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
