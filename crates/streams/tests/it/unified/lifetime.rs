//! Freed once, at any time, also where something is in flight or the process ends.

use std::{sync::mpsc, thread, time::Duration};

use transload_core::Buffer;
use transload_cuda_sys::CaptureMode;
use transload_memory::Role;
use transload_streams::CudaStream;

use super::{benches, everywhere};
use crate::{
    launch::{saxpy, saxpy_of},
    stream::capture::begin,
    support::gate::{Gate, limited},
};

#[test]
fn a_buffer_dropped_while_it_is_prefetched_copied_and_used_is_freed_when_that_is_over() {
    limited(|| {
        everywhere(|bench| {
            let kernel = saxpy_of(&bench.setup);
            let stream = CudaStream::new(&bench.setup.device).unwrap();
            let buffers: Vec<_> = (0..10).map(|_| [0, 1].map(|_| bench.buffer::<f32>(20_000))).collect();
            let gate = Gate::before(&bench.setup.device, &[&stream]);
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
            assert!(bench.setup.memory.resource_counts().parked > 0, "{bench}: the stream is held");
            gate.open();
            bench.setup.memory.drain().unwrap();
            assert!(
                bench.setup.memory.resource_counts().is_empty(),
                "{bench}: {}",
                bench.setup.memory.resource_counts()
            );
            drop((stream, kernel));
        });
    });
}

#[test]
fn writes_that_the_queue_refuses_arrive_when_the_buffer_is_dropped() {
    const BYTES: usize = 3000;
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(BYTES);
            buffer.write().unwrap().fill(1);
            let (raw, back) = (buffer.raw().clone(), bench.setup.pinned(&[0; BYTES]));
            let mut slice = buffer.write().unwrap();
            slice[BYTES / 2..].fill(7);
            // Until the capture ends the buffer's queue answers Busy.
            let capture = begin(&bench.stream, CaptureMode::Relaxed).unwrap();
            drop(slice);
            drop(buffer);
            bench.setup.memory.drain().unwrap();
            let other = CudaStream::new(&bench.setup.device).unwrap();
            other.copy_to_host_async(&raw, &back).wait().unwrap();
            drop(capture.end().unwrap());
            let seen = back.read().unwrap();
            assert!(seen[..BYTES / 2] == [1; BYTES / 2] && seen[BYTES / 2..] == [7; BYTES / 2], "{bench}");
        });
    });
}

#[test]
fn a_slice_that_a_panic_closes_leaves_the_buffer_usable() {
    everywhere(|bench| {
        let buffer = bench.buffer::<u8>(100);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut slice = buffer.write().unwrap();
            slice[..50].fill(1);
            panic!("while it is open");
        }));
        assert!(caught.is_err());
        let mut back = [9; 100];
        buffer.copy_to_host(&mut back).unwrap();
        assert!(back[..50] == [1; 50] && back[50..] == [0; 50], "{bench}: what was written counts");
        drop(buffer);
    });
}

#[test]
fn a_process_ends_well_with_live_buffers_open_slices_and_work_in_flight() {
    const CHILD: &str = "TRANSLOAD_TEST_UNIFIED_EXIT";
    if std::env::var_os(CHILD).is_some() {
        let benches = benches();
        let buffers: Vec<_> =
            benches.iter().map(|bench| [0, 1].map(|_| bench.buffer::<u8>(1 << 20))).collect();
        let slices: Vec<_> = buffers.iter().map(|[one, _]| one.write().unwrap()).collect();
        for (bench, [_, other]) in benches.iter().zip(&buffers) {
            drop(other.prefetch_to_device(None));
            drop(other.prefetch_to_host_on(&bench.stream, ..));
        }
        assert_eq!(slices.len(), buffers.len());
        std::process::exit(0);
    }
    let name = "unified::lifetime::a_process_ends_well_with_live_buffers_open_slices_and_work_in_flight";
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
