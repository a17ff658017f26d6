//! While someone captures a graph in global mode, our submitting, asking, waiting, allocating and freeing disturb neither the
//! capture nor our own work.

use std::sync::Barrier;

use transload_core::{MemoryKind, Pattern};
use transload_cuda_sys::{AsStream, DriverError, check, ffi};
use transload_streams::CudaStream;

use crate::setup::{Setup, noise};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: u32 = 0;

#[test]
fn a_capture_by_another_thread_stays_valid_and_so_do_our_transfers() {
    let setup = Setup::new();
    let captured = CudaStream::new(&setup.device).unwrap();
    if !transload_cuda_sys::Driver::get().unwrap().has(c"cuStreamBeginCapture_v2") {
        println!("skipped: the software driver has no graph capture");
        return;
    }
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(32 << 20, 3);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(32 << 20), setup.pinned(&vec![0; 32 << 20]));
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let capture = scope.spawn(|| -> Result<(), DriverError> {
            let _bound = captured.context().enter()?;
            // SAFETY: the stream is live and idle.
            let began = unsafe { ffi::cuStreamBeginCapture_v2(captured.as_raw(), GLOBAL) };
            begun.wait();
            done.wait();
            let mut graph = std::ptr::null_mut();
            // SAFETY: this thread began the capture; the out pointer is valid.
            let ended = unsafe { ffi::cuStreamEndCapture(captured.as_raw(), &mut graph) };
            if !graph.is_null() {
                // SAFETY: the graph was just made and nothing uses it.
                unsafe { ffi::cuGraphDestroy(graph) };
            }
            check("cuStreamBeginCapture_v2", began).and(check("cuStreamEndCapture", ended))
        });
        begun.wait();
        let ours = || -> transload_core::Result<()> {
            let up = stream.copy_from_host_async(&host, &there);
            let _asked_while_it_runs = up.is_over();
            let down = stream.copy_to_host_async(&there, &back);
            drop(setup.memory.allocate(MemoryKind::Device, 1 << 20)?);
            drop(setup.memory.allocate(MemoryKind::Pinned, 1 << 20)?);
            pollster::block_on(down)?;
            up.wait()?;
            drop(stream.memset_async(&there, Pattern::U8(1)));
            stream.synchronize()
        };
        let outcome = ours();
        done.wait();
        capture.join().unwrap().expect("the capture is valid to its end");
        outcome.unwrap();
    });
    assert!(*back.read().unwrap() == content[..]);
    drop((host, there, back, stream, captured));
    setup.finish();
}
