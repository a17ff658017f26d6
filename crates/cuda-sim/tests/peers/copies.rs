//! Copies between devices.

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, check, ffi};

use crate::raw::{Bench, INVALID_VALUE, contents, random, upload};

#[test]
fn a_peer_copy_works_with_and_without_access() {
    let Some(devices) = harness::devices(2) else { return };
    let (here, there) = (Bench::new(devices[0]), Bench::new(devices[1]));
    let bytes = (1 << 20) + 7;
    let (from, to) = (here.memory(bytes), there.memory(bytes));
    let mut source = here.pinned(bytes);
    let stream = here.stream();
    for round in 0..2 {
        let content = random(round + 20, bytes);
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

#[test]
fn devices_without_peers_say_so_and_still_copy() {
    let Some(alone) = harness::device_with(|builder| builder.no_peers()) else { return };
    let Some(other) = harness::device_with(|builder| builder) else { return };
    let (here, there) = (Bench::new(alone), Bench::new(other));
    let mut can = 9;
    let (a, b) = (here.context.device().as_raw(), there.context.device().as_raw());
    // SAFETY: the out pointer is valid.
    check("can", unsafe { ffi::cuDeviceCanAccessPeer(&mut can, a, b) }).expect("asked");
    assert_eq!(can, 0);
    let _bound = here.context.enter().expect("enter");
    // SAFETY: the handle is a context's.
    assert_eq!(unsafe { ffi::cuCtxEnablePeerAccess(there.context.as_raw(), 0) }, 217);
    let (from, to) = (here.memory(64), there.memory(64));
    let stream = here.stream();
    // SAFETY: both ranges are owned.
    unsafe {
        check("fill", ffi::cuMemsetD8Async(from.address, 6, 64, stream.as_raw())).expect("fill");
        let direct = ffi::cuMemcpyDtoDAsync_v2(to.address, from.address, 64, stream.as_raw());
        assert_eq!(direct, INVALID_VALUE, "direct copies need access");
        let unified = ffi::cuMemcpyAsync(to.address, from.address, 64, stream.as_raw());
        check("cuMemcpyAsync", unified).expect("copy by way of the host");
    }
    stream.synchronize().expect("healthy");
    assert_eq!(contents(&there, to.address, 64), [6; 64]);
}
