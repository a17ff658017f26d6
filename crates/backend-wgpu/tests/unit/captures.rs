//! Imports while another thread captures a stream. On the software driver and llvmpipe.

use std::{sync::mpsc, thread};

use transload_cuda_sim::harness;
use transload_cuda_sys::{Capture, CaptureMode, Stream, StreamOptions, trace};

use super::*;
use crate::{
    setup::{self, exported},
    vulkan::{Handled, Memory},
};

#[test]
fn import_and_its_end_keep_the_capture_of_another_thread() {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    if let Err(error) = state.queue.vulkan.check_export() {
        return println!("skipped: {error}");
    }
    // SAFETY: mappings stay.
    let test = harness::device_like(|builder| unsafe {
        builder.total_memory(128 << 20).external_memory(exported::open)
    });
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let context = cuda.context().unwrap();
    let memory = Memory::allocate_to_export(&state.queue.vulkan, 4096).unwrap();
    let shared = Arc::new(Shared { memory: Arc::new(Handled::new(memory)), order: None });
    let ((begun, has_begun), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
    thread::scope(|scope| {
        let capturing = scope.spawn(move || {
            let stream = Stream::new(context, StreamOptions::default()).unwrap();
            // SAFETY: nothing is enqueued.
            let capture = unsafe { Capture::begin(&stream, CaptureMode::Global) }.unwrap();
            begun.send(()).unwrap();
            // Ends it also if the other thread panics.
            let _dropped = ends.recv();
            capture.end().map(drop)
        });
        has_begun.recv().unwrap();
        let end = end;
        let trace = trace::start();
        drop(ImportedMemory::new(&cuda, &shared).unwrap());
        let calls = trace.calls_of_this_thread();
        for name in [
            "cuImportExternalMemory",
            "cuExternalMemoryGetMappedBuffer",
            "cuMemFree_v2",
            "cuDestroyExternalMemory",
        ] {
            let before = calls.iter().take_while(|call| call.name != name);
            let exchanges = before.filter(|call| call.name == "cuThreadExchangeStreamCaptureMode").count();
            assert_eq!(exchanges % 2, 1, "{name} is made in the caller's mode: {calls:?}");
        }
        drop(end);
        capturing.join().unwrap().unwrap();
    });
    let live = test.sim().unwrap().live_objects();
    assert_eq!((live.external, live.device_allocations), (0, 0), "{live}");
}
