//! Stream handles: priorities as confirmed by the driver, foreign handles, early destruction, leases.

use transload_core::{Operation, Pattern, Queue, StreamPriority, Timing};
use transload_cuda_sys::{AsStream, ffi};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

#[test]
fn driver_confirms_priority_and_non_blocking_flag() {
    let setup = Setup::new();
    let (least, greatest) = setup.device.context().unwrap().stream_priority_range().unwrap();
    let priority = |wanted| {
        let stream = CudaStream::new_with_priority(&setup.device, wanted).unwrap();
        assert!(!stream.driver().is_blocking().unwrap(), "{wanted:?} must not wait for the default stream");
        assert_eq!(stream.priority(), wanted);
        stream.driver_priority().unwrap()
    };
    assert_eq!(priority(StreamPriority::High), greatest);
    assert_eq!(priority(StreamPriority::Low), least);
    let normal = priority(StreamPriority::Normal);
    assert!(greatest <= normal && normal <= least);
    if least - greatest >= 2 {
        assert!(greatest < normal && normal < least, "three priorities are three numbers");
    }
}

#[test]
fn a_stream_dropped_with_work_on_it_finishes_the_work() {
    let setup = Setup::new();
    let content = noise(2 << 20, 6);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(2 << 20), setup.pinned(&vec![0; 2 << 20]));
    let stream = CudaStream::new(&setup.device).unwrap();
    let raw = stream.as_raw().addr() as u64;
    let trace = transload_cuda_sys::trace::start();
    let destroyed = || {
        trace
            .calls()
            .iter()
            .any(|call| call.name == "cuStreamDestroy_v2" && call.arguments.first() == Some(&raw))
    };
    let up = stream.copy_from_host_async(&host, &there);
    drop(stream);
    assert!(!destroyed(), "its work is not known to be over");
    let other = CudaStream::new(&setup.device).unwrap();
    other.copy_to_host_async(&there, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    assert!(!destroyed(), "the transfer still stands for its work");
    up.wait().unwrap();
    drop((other, host, there, back));
    setup.finish();
    assert!(destroyed(), "destroyed once its work is complete and no handle is left");
}

#[test]
fn a_foreign_stream_is_used_and_not_destroyed() {
    let setup = Setup::new();
    let owner = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(1000);
    // SAFETY: the stream belongs to this context and outlives the second handle's work.
    let foreign =
        unsafe { CudaStream::from_raw(&setup.device, owner.as_raw(), StreamPriority::Normal) }.unwrap();
    foreign.memset_async(&there, Pattern::U8(3)).wait().unwrap();
    drop(foreign);
    owner.memset_async(&there, Pattern::U8(4)).wait().unwrap();
    let back = setup.pinned(&[0; 1000]);
    owner.copy_to_host_async(&there, &back).wait().unwrap();
    assert_eq!(*back.read().unwrap(), [4; 1000]);
}

#[test]
fn a_fence_of_foreign_work_orders_later_work() {
    let setup = Setup::new();
    let (stream, other) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let bytes = 1 << 20;
    let (there, back) = (setup.device(bytes), setup.pinned(&vec![0; bytes]));
    for round in 1..=20_u8 {
        {
            let _bound = setup.device.context().unwrap().enter().unwrap();
            let to = there.device_address().unwrap();
            // SAFETY: the memory is as long, and outlives the work: the copy after it is waited for below.
            let code = unsafe { ffi::cuMemsetD8Async(to, round, bytes, stream.as_raw()) };
            assert_eq!(code, 0);
        }
        // The buffer does not know that work; only the fence orders the copy after it.
        let fence = stream.fence().unwrap();
        let copy = Operation::Copy { src: &there, dst: &back };
        // SAFETY: both buffers are live, of one length, and have no other user until the copy completes.
        let copied = unsafe { other.enqueue(&copy, std::slice::from_ref(&fence), Timing::Off) }.unwrap();
        copied.wait().unwrap();
        assert!(fence.is_complete(), "round {round}: what comes after it is done");
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
    drop((there, back, stream, other));
    setup.finish();
}
