//! A copy to a device that follows a copy within the host: enqueued at once, in order, and content is right.

use std::{
    future::IntoFuture,
    sync::mpsc,
    task::{Context, Waker},
};

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, RawBuffer,
    backend::ListWay,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig, CudaDevice, CudaStream},
};
use transload_core::Queue as _;
use transload_cuda_sim::harness;
use transload_cuda_sys::{Stream, trace};
use transload_executor::Executor;

use crate::cuda::{Setup, noise};

/// More than runs in the submitting thread.
const LARGE: usize = 5 << 20;

fn content(setup: &Setup, of: &RawBuffer) -> Vec<u8> {
    let back = setup.allocate(MemoryKind::Pinned, of.len());
    setup.manager.copy(of, &back).wait().unwrap();
    back.read().unwrap().to_vec()
}

/// Returns whether the calling thread let a stream wait for a word in `work`.
fn waits_on_device(work: impl FnOnce()) -> bool {
    let trace = trace::start();
    work();
    trace.calls_of_this_thread().iter().any(|call| call.name == "cuStreamWaitValue32_v2")
}

fn after_host_copies(setup: &Setup, after_fence: bool) {
    if !Stream::can_wait_words() {
        println!("skipped: the driver has no waits for words");
        return;
    }
    let (pinned, device) =
        (setup.allocate(MemoryKind::Pinned, LARGE), setup.allocate(MemoryKind::Device, LARGE));
    // The thread waits instead while other tests free memory, and waits for nothing if the host is faster.
    let mut waited = false;
    for seed in 0..200 {
        let source = setup.filled(MemoryKind::Pageable, &noise(LARGE, seed));
        let host = setup.manager.copy(&source, &pinned).submit();
        // Dropped early: the copies keep what they need.
        drop(source);
        let mut copied = None;
        waited |= waits_on_device(|| {
            let copy = setup.manager.copy(&pinned, &device);
            let fence = after_fence.then(|| pollster::block_on(host.enqueued()).unwrap().unwrap());
            let copy = fence.iter().fold(copy, |copy, fence| copy.after(fence));
            copied = Some(copy.submit());
        });
        copied.unwrap().wait().unwrap();
        host.wait().unwrap();
        assert!(content(setup, &device) == noise(LARGE, seed), "{seed}");
        if waited {
            return;
        }
    }
    panic!("no copy waited for the host on the device");
}

#[test]
fn copy_waits_for_host_copy_on_the_device() {
    after_host_copies(&Setup::new(), false);
}

#[test]
fn copy_after_the_fence_of_a_host_copy_waits_on_the_device() {
    after_host_copies(&Setup::new(), true);
}

#[test]
fn list_through_device_memory_waits_for_host_copy_on_the_device() {
    const PIECE: usize = 4096;
    // A pool whose streams never waited for host work, in a context where one of another pool can, or not.
    let waits = |is_prepared: bool| {
        let setup = Setup::new();
        if !Stream::can_wait_words() {
            println!("skipped: the driver has no waits for words");
            return true;
        }
        let device = CudaDevice::new(setup.test.ordinal()).unwrap();
        let other = CudaStream::new(&device).unwrap();
        if is_prepared {
            other.prepare_waits();
        }
        let [pinned, there] =
            [MemoryKind::Pinned, MemoryKind::Device].map(|kind| setup.allocate(kind, LARGE));
        let part = |of: &RawBuffer, at: usize| of.slice(at * PIECE..(at + 1) * PIECE).unwrap();
        let count = LARGE / PIECE;
        let pairs: Vec<_> = (0..count).map(|at| (part(&pinned, at), part(&there, at * 7 % count))).collect();
        let list = || setup.manager.copy_many(&pairs).way(ListWay::ThroughDevice);
        // It keeps its queues.
        list().wait().unwrap();
        let source = setup.filled(MemoryKind::Pageable, &noise(LARGE, 1));
        let host = setup.manager.copy(&source, &pinned).submit();
        let mut copied = None;
        let waits = waits_on_device(|| copied = Some(list().submit()));
        host.wait().unwrap();
        // While other tests free memory, its queue cannot wait.
        let copied = copied.unwrap().wait();
        assert!(copied.is_ok() || !waits);
        if waits {
            let back = content(&setup, &there);
            let expected = noise(LARGE, 1);
            let is_back =
                |at: usize| back[at * 7 % count * PIECE..][..PIECE] == expected[at * PIECE..][..PIECE];
            assert!((0..count).all(is_back));
        }
        waits
    };
    for is_prepared in [true, false] {
        assert!((0..100).any(|_| waits(is_prepared)), "{is_prepared}");
    }
}

/// The caller's stream was never used by a call that may block.
#[test]
fn awaited_copies_wait_for_host_work_on_the_device() {
    let executor = Executor::with_threads(1).unwrap();
    let setup = setup_with(&executor, true);
    if !Stream::can_wait_words() {
        println!("skipped: the driver has no waits for words");
        return;
    }
    let (pinned, device) =
        (setup.allocate(MemoryKind::Pinned, LARGE), setup.allocate(MemoryKind::Device, LARGE));
    let source = setup.filled(MemoryKind::Pageable, &noise(LARGE, 1));
    setup.manager.prepare(pinned.place(), device.place(), &Default::default()).unwrap();
    let stream = CudaStream::new(&CudaDevice::new(setup.test.ordinal()).unwrap()).unwrap();
    let waits = |of_caller: bool| {
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let blocked = executor.spawn(async move {
            begun.send(()).unwrap();
            let _until_dropped = released.recv();
        });
        has_begun.recv().unwrap();
        let host = setup.manager.copy(&source, &pinned).submit();
        let copy = setup.manager.copy(&pinned, &device);
        let mut copy = if of_caller { copy.on(&stream) } else { copy }.into_future();
        let waited = waits_on_device(|| {
            assert!(copy.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
        drop(release);
        blocked.wait().unwrap();
        host.wait().unwrap();
        pollster::block_on(copy).unwrap();
        waited
    };
    for of_caller in [false, true] {
        // While other tests free memory, the task waits instead.
        assert!((0..200).any(|_| waits(of_caller)), "{of_caller}");
    }
    assert!(content(&setup, &device) == noise(LARGE, 1));
}

#[test]
fn alternating_host_and_device_copies_keep_their_order() {
    const BYTES: usize = 4096;
    let setup = Setup::new();
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let (shared, device) =
            (setup.allocate(kind, BYTES), setup.allocate(MemoryKind::Device, 1000 * BYTES));
        let sources = [1, 2, 3].map(|seed| setup.filled(MemoryKind::Pageable, &noise(BYTES, seed)));
        for part in 0..1000 {
            let there = device.slice(part * BYTES..(part + 1) * BYTES).unwrap();
            drop(setup.manager.copy(&sources[part % 3], &shared).submit());
            drop(setup.manager.copy(&shared, &there).submit());
        }
        let seen = content(&setup, &device);
        for (part, bytes) in seen.chunks(BYTES).enumerate() {
            assert!(*bytes == noise(BYTES, part as u64 % 3 + 1), "{kind}: {part}");
        }
    }
}

/// A setup whose host copies run on `executor`.
pub(crate) fn setup_with(executor: &Executor, device_waits: bool) -> Setup {
    let test = harness::device();
    let manager = CrossBackendTransferManager::builder().executor(executor).build();
    manager.register_backend(CpuBackend::builder().executor(executor).build().unwrap()).unwrap();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]).with_device_waits(device_waits);
    manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
    Setup { test, manager, device: DeviceId::Cuda(test.ordinal()), _end: test.end_check() }
}

#[test]
fn backend_without_device_waits_waits_on_the_host() {
    let setup = setup_with(&Executor::with_threads(2).unwrap(), false);
    let (pinned, device) =
        (setup.allocate(MemoryKind::Pinned, LARGE), setup.allocate(MemoryKind::Device, LARGE));
    for seed in 0..20 {
        let source = setup.filled(MemoryKind::Pageable, &noise(LARGE, seed));
        let host = setup.manager.copy(&source, &pinned).submit();
        let mut copied = None;
        assert!(!waits_on_device(|| copied = Some(setup.manager.copy(&pinned, &device).submit())));
        copied.unwrap().wait().unwrap();
        host.wait().unwrap();
        assert!(content(&setup, &device) == noise(LARGE, seed), "{seed}");
    }
}

#[test]
fn device_copy_ends_though_all_workers_are_blocked() {
    let executor = Executor::with_threads(1).unwrap();
    let setup = setup_with(&executor, true);
    let (pinned, device) =
        (setup.allocate(MemoryKind::Pinned, LARGE), setup.allocate(MemoryKind::Device, LARGE));
    let source = setup.filled(MemoryKind::Pageable, &noise(LARGE, 1));
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    // As in a call of a driver that waits for the stream below.
    let blocked = executor.spawn(async move {
        begun.send(()).unwrap();
        let _until_dropped = released.recv();
    });
    has_begun.recv().unwrap();
    let host = setup.manager.copy(&source, &pinned).submit();
    let fence = pollster::block_on(host.enqueued()).unwrap().unwrap();
    // Unless this thread has paused for so long that the spare one has run it.
    assert!(fence.timeline().ends_by_host_alone(fence.point()) || fence.is_known_complete());
    // Where another test frees memory, the thread waits here; that ends too.
    let copied = setup.manager.copy(&pinned, &device).submit();
    copied.wait().unwrap();
    host.wait().unwrap();
    drop(release);
    blocked.wait().unwrap();
    assert!(content(&setup, &device) == noise(LARGE, 1));
}
