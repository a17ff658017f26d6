//! What the thread that polls an awaited copy does: it enqueues, and makes no driver call that may block or take long.

use std::{
    future::IntoFuture,
    sync::mpsc,
    task::{Context, Poll, Waker},
};

use transload::{
    MemoryKind, RawBuffer,
    backend::CopyFuture,
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sim::harness::noise;
use transload_cuda_sys::trace;
use transload_executor::Executor;

use crate::{
    cuda::Setup,
    gate::{Gate, limited},
    host_work::setup_with,
};

/// Calls that create or destroy something, allocate, free, load, or wait.
fn is_slow(name: &str) -> bool {
    const SLOW: [&str; 9] =
        ["Alloc", "Free", "Create", "Destroy", "Synchronize", "Load", "Register", "Retain", "Release"];
    name != "cuEventCreate" && SLOW.iter().any(|part| name.contains(part))
}

/// Polls the copies once on this thread, and checks that it makes no slow call. Returns those that are pending.
fn polled(copies: impl IntoIterator<Item = CopyFuture>) -> Vec<CopyFuture> {
    let mut context = Context::from_waker(Waker::noop());
    let mut copies: Vec<_> = copies.into_iter().collect();
    let trace = trace::start();
    // A thread of the executor may be done already.
    copies.retain_mut(|copy| match copy.as_mut().poll(&mut context) {
        Poll::Pending => true,
        Poll::Ready(report) => {
            report.unwrap();
            false
        }
    });
    let calls = trace.calls_of_this_thread();
    let slow: Vec<_> = calls.iter().map(|call| call.name).filter(|name| is_slow(name)).collect();
    assert!(slow.is_empty(), "{slow:?}");
    copies
}

fn device_of(setup: &Setup) -> CudaDevice {
    CudaDevice::new(setup.test.ordinal()).unwrap()
}

/// Each part of the first to that of the second.
fn parts(from: &RawBuffer, to: &RawBuffer, count: usize) -> Vec<(RawBuffer, RawBuffer)> {
    let bytes = from.len() / count;
    (0..count)
        .map(|part| part * bytes..(part + 1) * bytes)
        .map(|range| (from.slice(range.clone()).unwrap(), to.slice(range).unwrap()))
        .collect()
}

fn check(setup: &Setup, there: &RawBuffer, content: &[u8]) {
    let back = setup.allocate(MemoryKind::Pinned, there.len());
    setup.manager.copy(there, &back).wait().unwrap();
    assert!(back.read().unwrap()[..] == *content);
}

/// More operations than a launch queue holds.
const MANY: usize = 3000;

#[test]
fn copies_awaited_beyond_a_launch_queue_block_no_thread() {
    limited(|| {
        let setup = Setup::new();
        let device = device_of(&setup);
        let stream = CudaStream::new(&device).unwrap();
        let content = noise(MANY * 64, 1);
        let source = setup.filled(MemoryKind::Pinned, &content);
        let there = setup.allocate(MemoryKind::Device, content.len());
        // What is set up at first is done.
        setup.manager.copy(&source, &there).on(&stream).wait().unwrap();
        let pairs = parts(&source, &there, MANY);
        let gate = Gate::before(&device, &[&stream]);
        let copies =
            polled(pairs.iter().map(|(from, to)| setup.manager.copy(from, to).on(&stream).into_future()));
        // A thread of the executor is not blocked either.
        setup.manager.executor().drain().unwrap();
        gate.open();
        for copy in copies {
            pollster::block_on(copy).unwrap();
        }
        check(&setup, &there, &content);
        drop(pairs);
    });
}

#[test]
fn thread_that_polls_creates_and_destroys_no_stream() {
    limited(|| {
        let setup = Setup::new();
        let content = noise(64 << 10, 2);
        let source = setup.filled(MemoryKind::Pinned, &content);
        let there = setup.allocate(MemoryKind::Device, content.len());
        let (from, to) = (source.place(), there.place());
        setup.manager.prepare(from, to, &Default::default()).unwrap();
        let device = device_of(&setup);
        let held = CudaStream::new(&device).unwrap();
        let gate = Gate::before(&device, &[&held]);
        let fence = held.fence().unwrap();
        let copies: Vec<_> = parts(&source, &there, 64)
            .iter()
            .map(|(from, to)| setup.manager.copy(from, to).after(&fence).into_future())
            .collect();
        let copies = polled(copies);
        gate.open();
        for copy in copies {
            pollster::block_on(copy).unwrap();
        }
        check(&setup, &there, &content);
    });
}

/// The path is known then, but its pool has no stream yet.
#[test]
fn copy_after_one_on_a_stream_creates_no_stream_while_polled() {
    limited(|| {
        let setup = Setup::new();
        let device = device_of(&setup);
        let stream = CudaStream::new(&device).unwrap();
        let content = noise(4096, 3);
        let (source, there) =
            (setup.filled(MemoryKind::Pinned, &content), setup.allocate(MemoryKind::Device, content.len()));
        setup.manager.copy(&source, &there).on(&stream).wait().unwrap();
        for copy in polled([setup.manager.copy(&source, &there).into_future()]) {
            pollster::block_on(copy).unwrap();
        }
        check(&setup, &there, &content);
    });
}

#[test]
fn first_wait_for_host_work_allocates_nothing_while_polled() {
    // More than runs in the submitting thread.
    const LARGE: usize = 5 << 20;
    for is_prepared in [false, true] {
        limited(move || {
            let executor = Executor::with_threads(1).unwrap();
            let setup = setup_with(&executor, true);
            let (pinned, there) =
                (setup.allocate(MemoryKind::Pinned, LARGE), setup.allocate(MemoryKind::Device, LARGE));
            let content = noise(LARGE, 4);
            let source = setup.filled(MemoryKind::Pageable, &content);
            setup.manager.copy(&pinned, &there).wait().unwrap();
            if is_prepared {
                setup.manager.prepare(pinned.place(), there.place(), &Default::default()).unwrap();
            }
            let (begun, has_begun) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let blocked = executor.spawn(async move {
                begun.send(()).unwrap();
                let _until_dropped = released.recv();
            });
            has_begun.recv().unwrap();
            let host = setup.manager.copy(&source, &pinned).submit();
            let copies = polled([setup.manager.copy(&pinned, &there).into_future()]);
            drop(release);
            blocked.wait().unwrap();
            for copy in copies {
                pollster::block_on(copy).unwrap();
            }
            host.wait().unwrap();
            check(&setup, &there, &content);
        });
    }
}
