//! A copy on a stream of the caller's: it is enqueued there, in that stream's order, or refused with the reason.

use std::{
    future::IntoFuture,
    sync::Arc,
    task::{Context, Waker},
};

use transload::{
    ErrorKind, MemoryKind, TransferMethod,
    backend::{Fence, Pattern},
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{AsStream, trace};

use crate::{
    cuda::Setup,
    gate::{Gate, limited},
    lanes::stream_of,
};

fn stream_on(ordinal: u32) -> CudaStream {
    CudaStream::new(&CudaDevice::new(ordinal).unwrap()).unwrap()
}

const SIZE: usize = 100_000;

#[test]
fn copy_is_enqueued_on_the_callers_stream_alone() {
    let setup = Setup::new();
    let stream = stream_on(setup.test.ordinal());
    let content = noise(SIZE, 1);
    let device = setup.allocate(MemoryKind::Device, SIZE);
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device] {
        for method in [TransferMethod::DirectCopy, TransferMethod::ZeroCopy] {
            let source = setup.allocate(kind, SIZE);
            setup.manager.copy(&setup.filled(MemoryKind::Pinned, &content), &source).wait().unwrap();
            let copy = setup.manager.copy(&source, &device).method(method).on(&stream);
            if copy.plan().is_err() {
                assert_eq!(copy.wait().unwrap_err().kind(), ErrorKind::Unsupported);
                continue;
            }
            let trace = trace::start();
            let transfer = copy.submit();
            assert_eq!(stream_of(&trace), stream.driver().as_raw() as u64, "{kind} by {method}");
            assert_eq!(transfer.wait().unwrap().method, method);
            let back = setup.allocate(MemoryKind::Pinned, SIZE);
            setup.manager.copy(&device, &back).wait().unwrap();
            assert!(back.read().unwrap()[..] == content[..], "{kind} by {method}");
        }
    }
}

#[test]
fn awaited_pageable_copy_keeps_no_thread_behind_a_busy_stream() {
    limited(|| {
        let setup = Setup::new();
        let stream = stream_on(setup.test.ordinal());
        let (device, pageable) =
            (setup.allocate(MemoryKind::Device, SIZE), setup.allocate(MemoryKind::Pageable, SIZE));
        // What is set up at first is done.
        setup.manager.copy(&device, &pageable).method(TransferMethod::DirectCopy).wait().unwrap();
        let gate = Gate::on(&stream, &CudaDevice::new(setup.test.ordinal()).unwrap());
        let copy = setup.manager.copy(&device, &pageable).method(TransferMethod::DirectCopy);
        let mut copy = copy.on(&stream).into_future();
        let mut context = Context::from_waker(Waker::noop());
        assert!(copy.as_mut().poll(&mut context).is_pending());
        // Its attempt on another thread ends though the stream goes on.
        setup.manager.executor().drain().unwrap();
        assert!(copy.as_mut().poll(&mut context).is_pending());
        gate.open();
        pollster::block_on(copy).unwrap();
    });
}

#[test]
fn copy_takes_its_place_between_untracked_work_of_the_stream() {
    let setup = Setup::new();
    let stream = stream_on(setup.test.ordinal());
    let (device, back) = (setup.allocate(MemoryKind::Device, SIZE), setup.allocate(MemoryKind::Pinned, SIZE));
    let address = device.device_address().unwrap();
    let fill = |byte| {
        // SAFETY: memory of this length that lives until the stream is synchronised, and that only this stream uses.
        unsafe { stream.memset_raw_async(address, Pattern::U8(byte), SIZE) }.unwrap();
    };
    for awaited in [false, true] {
        fill(7);
        let copy = setup.manager.copy(&device, &back).on(&stream);
        if awaited {
            let submitted = pollster::block_on(copy.submit_async());
            fill(9);
            submitted.wait().unwrap();
        } else {
            let submitted = copy.submit();
            fill(9);
            submitted.wait().unwrap();
        }
        assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
        stream.synchronize().unwrap();
    }
}

#[test]
fn awaited_copy_on_a_per_thread_default_stream_is_this_threads() {
    let setup = Setup::new();
    let stream = CudaStream::per_thread_default(&CudaDevice::new(setup.test.ordinal()).unwrap()).unwrap();
    let content = noise(SIZE, 3);
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let (source, device) = (setup.allocate(kind, SIZE), setup.allocate(MemoryKind::Device, SIZE));
        source.write().unwrap().copy_from_slice(&content);
        // The first use of a path would be another thread's.
        pollster::block_on(setup.manager.copy(&source, &device).on(&stream).into_future()).unwrap();
        let back = setup.allocate(MemoryKind::Pinned, SIZE);
        setup.manager.copy(&device, &back).wait().unwrap();
        assert!(back.read().unwrap()[..] == content[..], "{kind}");
        let theirs = setup.manager.copy(&source, &device).on(&stream).into_future();
        let refused = std::thread::spawn(move || pollster::block_on(theirs).unwrap_err()).join().unwrap();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{kind}");
    }
}

#[test]
fn copy_after_a_fence_follows_untracked_work() {
    let setup = Setup::new();
    let stream = stream_on(setup.test.ordinal());
    let (device, back) = (setup.allocate(MemoryKind::Device, SIZE), setup.allocate(MemoryKind::Pinned, SIZE));
    for (byte, method) in [(7, TransferMethod::DirectCopy), (9, TransferMethod::ZeroCopy)] {
        let address = device.device_address().unwrap();
        // SAFETY: memory of this length that lives until the copy is complete, which follows the fill.
        unsafe { stream.memset_raw_async(address, Pattern::U8(byte), SIZE) }.unwrap();
        let fence = stream.fence().unwrap();
        let report = setup.manager.copy(&device, &back).method(method).after(&fence).wait().unwrap();
        assert_eq!(report.method, method);
        assert!(back.read().unwrap().iter().all(|seen| *seen == byte), "{method}");
    }
    // A staged copy waits likewise, on the executor's threads.
    let large = setup.allocate(MemoryKind::Device, 3 << 20);
    let host = setup.allocate(MemoryKind::Pageable, 3 << 20);
    // SAFETY: as above.
    unsafe { stream.memset_raw_async(large.device_address().unwrap(), Pattern::U8(5), large.len()) }.unwrap();
    let fence = stream.fence().unwrap();
    setup.manager.copy(&large, &host).method(TransferMethod::HostStaged).after(&fence).wait().unwrap();
    assert!(host.read().unwrap().iter().all(|seen| *seen == 5));
}

#[test]
fn copy_after_a_point_not_enqueued_yet_follows_what_is() {
    let setup = Setup::new();
    let stream = stream_on(setup.test.ordinal());
    let (source, back) =
        (setup.allocate(MemoryKind::Pinned, 4096), setup.allocate(MemoryKind::Pageable, 4096));
    let address = source.device_address().unwrap();
    // SAFETY: memory of this length that lives until the copy is complete, which follows the fill.
    unsafe { stream.memset_raw_async(address, Pattern::U8(7), source.len()) }.unwrap();
    let last = stream.fence().unwrap();
    let later = Fence::new(Arc::clone(last.timeline()), last.point() + 1);
    // By the calling thread, if it need not wait.
    setup.manager.copy(&source, &back).after(&later).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|seen| *seen == 7));
}

#[test]
fn staged_copy_on_a_stream_is_refused_with_the_reason() {
    let setup = Setup::new();
    let stream = stream_on(setup.test.ordinal());
    let (source, there) =
        (setup.filled(MemoryKind::Pageable, &noise(9 << 20, 2)), setup.allocate(MemoryKind::Device, 9 << 20));
    // Alone it would be staged.
    assert_eq!(setup.manager.copy(&source, &there).plan().unwrap().method, TransferMethod::HostStaged);
    assert_eq!(
        setup.manager.copy(&source, &there).on(&stream).wait().unwrap().method,
        TransferMethod::DirectCopy
    );
    let staged = setup.manager.copy(&source, &there).method(TransferMethod::HostStaged).on(&stream);
    let error = pollster::block_on(staged.into_future()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().ends_with(": HostStaged: the caller's stream cannot take it: it needs several streams, or one of another device"), "{error}");
}

#[test]
fn stream_of_another_device_is_refused() {
    let Some(devices) = harness::devices(2) else { return };
    let setup = Setup::new();
    let other = devices.iter().find(|other| other.ordinal() != setup.test.ordinal()).unwrap();
    let stream = stream_on(other.ordinal());
    let (source, there) =
        (setup.filled(MemoryKind::Pinned, &[1; 64]), setup.allocate(MemoryKind::Device, 64));
    let error = setup.manager.copy(&source, &there).on(&stream).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let (theirs, ours) = (stream.device(), there.place().device);
    let text = format!(
        "a stream of {theirs} cannot take a copy cpu/pinned → {ours}/device; use a stream of {ours}, or"
    );
    assert!(error.to_string().starts_with(&text), "{error}");
    assert_eq!(
        setup.manager.copy(&source, &there).on(&stream).plan().unwrap_err().to_string(),
        error.to_string()
    );
    // Nor does a stream copy within the host.
    let (a, b) = (setup.filled(MemoryKind::Pageable, &[1; 64]), setup.allocate(MemoryKind::Pageable, 64));
    let error = setup.manager.copy(&a, &b).on(&stream).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.to_string().starts_with("no stream can take a copy cpu/pageable → cpu/pageable"),
        "{error}"
    );
}
