//! Devices without peer access.

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, check, ffi};

use crate::raw::{Bench, contents};

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
        check("cuMemcpyDtoDAsync_v2", direct).expect("only memory of pools needs access");
        let unified = ffi::cuMemcpyAsync(to.address, from.address, 64, stream.as_raw());
        check("cuMemcpyAsync", unified).expect("copy by way of the host");
    }
    stream.synchronize().expect("healthy");
    assert_eq!(contents(&there, to.address, 64), [6; 64]);
}
