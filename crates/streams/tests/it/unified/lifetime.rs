//! Buffers are freed once, at any time, even with work in flight or at process exit.

use std::{sync::mpsc, thread, time::Duration};

use transload_core::Buffer;
use transload_cuda_sys::CaptureMode;
use transload_memory::Role;
use transload_streams::CudaStream;

use super::{fixtures, for_each_fixture};
use crate::{
    launch::{saxpy, saxpy_of},
    stream::capture::begin,
    support::gate::{Gate, limited},
};

#[test]
fn buffer_dropped_in_flight_is_freed_after_completion() {
    limited(|| {
        for_each_fixture(|fixture| {
            let kernel = saxpy_of(&fixture.setup);
            let stream = CudaStream::new(&fixture.setup.device).unwrap();
            let buffers: Vec<_> = (0..10).map(|_| [0, 1].map(|_| fixture.buffer::<f32>(20_000))).collect();
            let gate = Gate::before(&fixture.setup.device, &[&stream]);
            for [x, y] in buffers {
                x.write().unwrap().fill(1.0);
                drop(x.prefetch_to_device_on(&stream, .., None));
                let (there_x, there_y) = (
                    x.acquire_for_device(&stream, Role::Input).unwrap(),
                    y.acquire_for_device(&stream, Role::Output).unwrap(),
                );
                drop(saxpy(&kernel, &stream, 1.0, there_x.raw(), there_y.raw()).unwrap());
                drop((there_x, there_y));
                drop(y.prefetch_to_host_on(&stream, 1..));
            }
            assert!(fixture.setup.memory.resource_counts().pending_free > 0, "{fixture}: the stream is held");
            gate.open();
            fixture.setup.memory.drain().unwrap();
            assert!(
                fixture.setup.memory.resource_counts().is_empty(),
                "{fixture}: {}",
                fixture.setup.memory.resource_counts()
            );
            drop((stream, kernel));
        });
    });
}

#[test]
fn writes_refused_by_the_queue_are_uploaded_on_drop() {
    const BYTES: usize = 3000;
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = fixture.buffer::<u8>(BYTES);
            buffer.write().unwrap().fill(1);
            let (raw, back) = (buffer.raw().clone(), fixture.setup.pinned(&[0; BYTES]));
            let mut slice = buffer.write().unwrap();
            slice[BYTES / 2..].fill(7);
            // The buffer's queue returns `Busy` until the capture ends.
            let capture = begin(&fixture.stream, CaptureMode::Relaxed).unwrap();
            drop(slice);
            drop(buffer);
            fixture.setup.memory.drain().unwrap();
            let other = CudaStream::new(&fixture.setup.device).unwrap();
            other.copy_to_host_async(&raw, &back).wait().unwrap();
            drop(capture.end().unwrap());
            let seen = back.read().unwrap();
            assert!(seen[..BYTES / 2] == [1; BYTES / 2] && seen[BYTES / 2..] == [7; BYTES / 2], "{fixture}");
        });
    });
}

#[test]
fn panic_with_an_open_slice_leaves_the_buffer_usable() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u8>(100);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut slice = buffer.write().unwrap();
            slice[..50].fill(1);
            panic!("while it is open");
        }));
        assert!(caught.is_err());
        let mut back = [9; 100];
        buffer.copy_to_host(&mut back).unwrap();
        assert!(back[..50] == [1; 50] && back[50..] == [0; 50], "{fixture}: what was written counts");
        drop(buffer);
    });
}

#[test]
fn process_exits_cleanly_with_live_buffers_and_slices() {
    const CHILD: &str = "TRANSLOAD_TEST_UNIFIED_EXIT";
    if std::env::var_os(CHILD).is_some() {
        let fixtures = fixtures();
        let buffers: Vec<_> =
            fixtures.iter().map(|fixture| [0, 1].map(|_| fixture.buffer::<u8>(1 << 20))).collect();
        let slices: Vec<_> = buffers.iter().map(|[one, _]| one.write().unwrap()).collect();
        for (fixture, [_, other]) in fixtures.iter().zip(&buffers) {
            drop(other.prefetch_to_device(None));
            drop(other.prefetch_to_host_on(&fixture.stream, ..));
        }
        assert_eq!(slices.len(), buffers.len());
        std::process::exit(0);
    }
    let name = "unified::lifetime::process_exits_cleanly_with_live_buffers_and_slices";
    let mut child = crate::support::programs::this_program()
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .spawn()
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    let waiting = thread::spawn(move || sender.send(child.wait()));
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(status) => assert!(status.unwrap().success(), "the child ends by itself, without a crash"),
        Err(_) => panic!("the child hangs"),
    }
    waiting.join().unwrap().unwrap();
}
