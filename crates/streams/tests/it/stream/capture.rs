//! A graph capture in global mode and the library's own submitting, polling, waiting, allocating and freeing do not disturb
//! each other.

use std::sync::mpsc;

use transload_core::{ErrorKind, MemoryKind, Operation, Pattern, StreamPriority};
use transload_cuda_sys::{AsStream, Capture, CaptureMode, DriverError};
use transload_streams::{CudaEvent, CudaGraph, CudaStream};

use crate::support::setup::{Setup, noise};

/// Captures a stream that has no other user meanwhile.
pub(crate) fn begin<S: AsStream>(
    stream: &S,
    mode: CaptureMode,
) -> transload_cuda_sys::Result<Capture<'_, S>> {
    // SAFETY: the tests enqueue only work to be captured, and queries meanwhile are refused.
    unsafe { Capture::begin(stream, mode) }
}

/// Captures an empty graph on a thread of its own, in global mode, while `ours` runs on this one.
pub(crate) fn beside_a_global_capture(
    captured: &CudaStream,
    ours: impl FnOnce() -> transload_core::Result<()>,
) {
    let ((begun, has_begun), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    std::thread::scope(|scope| {
        let capture = scope.spawn(move || -> Result<(), DriverError> {
            let capture = begin(captured, CaptureMode::Global);
            begun.send(()).unwrap();
            // Ends even if the other thread panics.
            let _dropped = is_done.recv();
            capture?.end().map(drop)
        });
        has_begun.recv().unwrap();
        let done = done;
        let outcome = ours();
        drop(done);
        capture.join().unwrap().expect("the capture is valid to its end");
        outcome.unwrap();
    });
}

#[test]
fn capture_by_another_thread_and_transfers_stay_valid() {
    let setup = Setup::new();
    let captured = CudaStream::new(&setup.device).unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(32 << 20, 3);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(32 << 20), setup.pinned(&vec![0; 32 << 20]));
    beside_a_global_capture(&captured, || {
        let up = stream.copy_from_host_async(&host, &there);
        let _asked_while_it_runs = up.is_complete();
        let down = stream.copy_to_host_async(&there, &back);
        drop(setup.memory.allocate(MemoryKind::Device, 1 << 20)?);
        drop(setup.memory.allocate(MemoryKind::Pinned, 1 << 20)?);
        pollster::block_on(down)?;
        up.wait()?;
        // Its end is a word, whose memory the first one allocates.
        let (from, to) = (there.slice(..64)?, back.slice(..64)?);
        (0..2).try_for_each(|_| stream.copy_to_host_async(&from, &to).wait().map(drop))?;
        drop(stream.memset_async(&there, Pattern::U8(1)));
        stream.synchronize()
    });
    assert!(*back.read().unwrap() == content[..]);
    drop((host, there, back, stream, captured));
    setup.finish();
}

#[test]
fn graph_calls_leave_other_captures_valid() {
    let setup = Setup::new();
    let (captured, stream) =
        (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (one, two, back) = (setup.device(1 << 20), setup.device(1 << 20), setup.pinned(&vec![0; 1 << 20]));
    let through = |value, there| {
        [
            Operation::Fill { dst: there, pattern: Pattern::U8(value) },
            Operation::Copy { src: there, dst: &back },
        ]
    };
    beside_a_global_capture(&captured, || {
        let mut graph = CudaGraph::record(&setup.device, StreamPriority::Normal, &through(3, &one))?;
        graph.launch(&stream)?.wait()?;
        assert!(back.read()?.iter().all(|byte| *byte == 3));
        graph.update(&through(4, &two))?;
        graph.launch(&stream)?;
        Ok(())
    });
    assert!(back.read().unwrap().iter().all(|byte| *byte == 4));
    drop((one, two, back, stream, captured));
    setup.finish();
}

#[test]
fn stream_joined_to_a_capture_refuses_operations() {
    let setup = Setup::new();
    let captured = CudaStream::new(&setup.device).unwrap();
    let pulled = CudaStream::new(&setup.device).unwrap();
    let (fork, join) = (CudaEvent::new(&setup.device).unwrap(), CudaEvent::new(&setup.device).unwrap());
    let (host, there) = (setup.pinned(&noise(100_000, 5)), setup.device(100_000));
    let capture = begin(&captured, CaptureMode::Relaxed).unwrap();
    fork.record(&captured).unwrap();
    pulled.wait_event(&fork).unwrap();
    for bytes in [1, 4096, 100_000] {
        let (src, dst) = (host.slice(..bytes).unwrap(), there.slice(..bytes).unwrap());
        // A fence could not report its completion, and the graph could use the buffers after their end.
        let refused = pulled.copy_from_host_async(&src, &dst).refusal().map(transload_core::Error::kind);
        assert_eq!(refused, Some(ErrorKind::Busy), "{bytes} bytes");
    }
    join.record(&pulled).unwrap();
    captured.wait_event(&join).unwrap();
    assert!(capture.end().is_ok(), "the capture is valid to its end");
    let back = setup.pinned(&vec![0; 100_000]);
    pulled.copy_from_host_async(&host, &there).wait().unwrap();
    pulled.copy_to_host_async(&there.slice(..64).unwrap(), &back.slice(..64).unwrap()).wait().unwrap();
    assert_eq!(back.read().unwrap()[..64], host.read().unwrap()[..64]);
    drop((host, there, back, fork, join, pulled, captured));
    setup.finish();
}
