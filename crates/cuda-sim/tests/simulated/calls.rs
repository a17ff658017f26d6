//! Driver calls are counted by name.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use transload_cuda_sim::{count_calls, harness, is_in_call};
use transload_cuda_sys::{AsStream, ffi};

use crate::raw::Bench;

#[test]
fn calls_are_counted_by_name_and_thread() {
    let Some(device) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(device);
    let stream = bench.stream();
    let ((), counts) = count_calls(|| {
        assert_eq!([stream.is_idle(), stream.is_idle()], [Ok(true), Ok(true)]);
        thread::scope(|scope| scope.spawn(|| stream.synchronize()).join().expect("no panic"))
            .expect("healthy");
    });
    // Other tests' threads are counted among the others.
    assert_eq!(counts.own.get("cuStreamQuery"), Some(&2), "{counts:?}");
    assert!(!counts.own.contains_key("cuStreamSynchronize"), "{counts:?}");
    assert!(counts.others.get("cuStreamSynchronize").is_some_and(|count| *count > 0), "{counts:?}");
}

#[test]
fn host_function_runs_outside_of_the_driver() {
    extern "C" fn tell(inside: *mut c_void) {
        // SAFETY: the test waits for this call before the flag's end.
        unsafe { (*inside.cast::<AtomicBool>()).store(is_in_call(), Ordering::Relaxed) };
    }
    let Some(device) = harness::device_with(|builder| builder) else { return };
    let bench = Bench::new(device);
    let (stream, inside) = (bench.stream(), AtomicBool::new(true));
    let _bound = bench.context.enter().expect("enter");
    // SAFETY: the function makes no driver call; the flag outlives the wait.
    let launched =
        unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(tell), (&raw const inside).cast_mut().cast()) };
    assert_eq!(launched, 0);
    stream.synchronize().expect("healthy");
    assert!(!inside.load(Ordering::Relaxed) && !is_in_call());
}
