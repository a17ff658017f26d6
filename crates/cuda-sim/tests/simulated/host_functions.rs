//! Host functions run outside the lock and may not call the driver.

use std::{ptr, thread};

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, check, ffi};

use crate::raw::Bench;

#[test]
fn driver_calls_inside_a_host_function_are_refused() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static SEEN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn call_back(_data: *mut std::ffi::c_void) {
        // SAFETY: needs nothing.
        SEEN.store(unsafe { ffi::cuCtxSynchronize() }, Ordering::SeqCst);
    }
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    // SAFETY: the function takes no data.
    let launched = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(call_back), ptr::null_mut()) };
    check("launch", launched).expect("launch");
    stream.synchronize().expect("healthy");
    assert_eq!(SEEN.load(Ordering::SeqCst), 800);
}

#[test]
fn others_wait_while_a_host_function_runs_and_the_lock_is_free() {
    unsafe extern "C" fn meet(data: *mut std::ffi::c_void) {
        // SAFETY: the data is a barrier that outlives the stream's work.
        let barrier = unsafe { &*data.cast::<std::sync::Barrier>() };
        barrier.wait();
    }
    let Some(test) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(test);
    let stream = bench.stream();
    let barrier = std::sync::Barrier::new(2);
    // SAFETY: the barrier lives until the stream is synchronised below.
    let launched =
        unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(meet), (&raw const barrier).cast_mut().cast()) };
    check("launch", launched).expect("launch");
    thread::scope(|scope| {
        scope.spawn(|| stream.synchronize().expect("healthy"));
        scope.spawn(|| stream.synchronize().expect("healthy"));
        // Driver calls succeed while the function runs or is pending; only then release it.
        assert_eq!(bench.context.memory_info().map(|info| info.1), Ok(256 << 20));
        let other = bench.stream();
        assert_eq!(other.synchronize(), Ok(()));
        barrier.wait();
    });
    assert_eq!(stream.is_idle(), Ok(true));
}
