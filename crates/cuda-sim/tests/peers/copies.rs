//! Copies between devices.

use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{AsStream, check, ffi};

use crate::raw::{Bench, contents, upload};

#[test]
fn a_peer_copy_works_with_and_without_access() {
    let Some(devices) = harness::devices(2) else { return };
    let (here, there) = (Bench::new(devices[0]), Bench::new(devices[1]));
    let bytes = (1 << 20) + 7;
    let (from, to) = (here.memory(bytes), there.memory(bytes));
    let mut source = here.pinned(bytes);
    let stream = here.stream();
    for round in 0..2 {
        let content = noise(bytes, round + 20);
        source.set(&content);
        upload(&stream, from.address, &source, 0, bytes).expect("up");
        let _bound = here.context.enter().expect("enter");
        // SAFETY: both ranges are owned; the handles are contexts.
        let answer = unsafe {
            ffi::cuMemcpyPeerAsync(
                to.address,
                there.context.as_raw(),
                from.address,
                here.context.as_raw(),
                bytes,
                stream.as_raw(),
            )
        };
        check("cuMemcpyPeerAsync", answer).expect("peer copy");
        stream.synchronize().expect("healthy");
        assert_eq!(contents(&there, to.address, bytes), content, "round {round}");
        let mut can = 0;
        // SAFETY: the out pointer is valid.
        let asked = unsafe {
            ffi::cuDeviceCanAccessPeer(
                &mut can,
                here.context.device().as_raw(),
                there.context.device().as_raw(),
            )
        };
        check("cuDeviceCanAccessPeer", asked).expect("asked");
        if can == 1 && round == 0 {
            // SAFETY: the handle is a context's.
            unsafe {
                check("enable", ffi::cuCtxEnablePeerAccess(there.context.as_raw(), 0)).expect("enable");
                assert_eq!(
                    ffi::cuCtxEnablePeerAccess(there.context.as_raw(), 0),
                    704,
                    "it is enabled already"
                );
            }
        }
    }
}
