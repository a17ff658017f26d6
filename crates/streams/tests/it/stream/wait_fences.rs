//! Foreign work on a stream is ordered after the fences that the stream was made to wait for.

use transload_core::{ErrorKind, Pattern};
use transload_cuda_sys::{AsStream, Capture, CaptureMode};
use transload_streams::CudaStream;

use crate::support::{
    gate::{Gate, limited},
    setup::Setup,
};

#[test]
fn raw_work_waits_for_the_fences_without_the_host() {
    limited(|| {
        let setup = Setup::new();
        let [ours, theirs] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let (there, seen) = (setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        let gate = Gate::before(&setup.device, &[&ours]);
        drop(ours.memset_async(&there, Pattern::U8(8)));
        let fence = ours.fence().unwrap();
        theirs.wait_fences(&[fence.clone(), fence.clone()]).unwrap();
        ours.wait_fences(&[fence]).unwrap();
        let to = seen.host_address().unwrap().as_ptr();
        // SAFETY: both live to the end of the test; the stream is ordered after the fill.
        unsafe { theirs.copy_to_host_raw_async(to, there.device_address().unwrap(), 100_000) }.unwrap();
        assert!(!theirs.is_ready().unwrap());
        gate.open();
        theirs.synchronize().unwrap();
        assert!(seen.read().unwrap().iter().all(|byte| *byte == 8));
        drop((there, seen, ours, theirs));
        setup.finish();
    });
}

#[test]
fn captured_stream_refuses_pending_fences() {
    limited(|| {
        let setup = Setup::new();
        let [ours, theirs] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let _given_out = theirs.as_raw();
        let over = ours.fence().unwrap();
        over.wait().unwrap();
        let gate = Gate::before(&setup.device, &[&ours]);
        let open = ours.fence().unwrap();
        // SAFETY: nothing else is enqueued on the stream meanwhile.
        let capture = unsafe { Capture::begin(&theirs, CaptureMode::Relaxed) }.unwrap();
        assert_eq!(theirs.wait_fences(&[open]).unwrap_err().kind(), ErrorKind::Busy);
        theirs.wait_fences(&[over]).unwrap();
        drop(capture.end().unwrap());
        gate.open();
        drop((ours, theirs));
        setup.finish();
    });
}
