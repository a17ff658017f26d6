//! What a start of the counters of migrations answers where it cannot have them: on the software driver only, in a process of
//! its own, since CUPTI has one user.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use transload_core::ErrorKind;
use transload_cuda_sim::harness;
use transload_cuda_sys::Driver;
use transload_memory::{CudaDevice, MigrationTracker};

/// Tests of this file take turns: the counters are the process's.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn where_the_counters_are_refused_the_start_says_so_and_leaves_nothing_behind() {
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    harness::refuse_migration_counters(Some(28));
    let error = MigrationTracker::start(&device).unwrap_err();
    harness::refuse_migration_counters(None);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("unavailable") && text.contains("28") && text.contains("NOT_SUPPORTED"), "{text}");
    drop(MigrationTracker::start(&device).unwrap());
    drop(device);
    test.assert_ledger_empty();
    let old = harness::device_with(|builder| builder.pre_pascal()).unwrap();
    let error = MigrationTracker::start(&CudaDevice::new(old.ordinal()).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    old.assert_ledger_empty();
}

#[test]
fn another_tool_that_has_the_counters_keeps_them() {
    type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);
    extern "C" fn ignored(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    let _turn = turn();
    let test = harness::device_with(|builder| builder).unwrap();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    let tool = |name: &CStr| Driver::get().unwrap().installed().unwrap().tool_symbol(name).unwrap();
    // SAFETY: CUPTI's headers give the name this signature.
    let subscribe: extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> u32 =
        unsafe { std::mem::transmute(tool(c"cuptiSubscribe")) };
    // SAFETY: as above.
    let unsubscribe: extern "C" fn(*mut c_void) -> u32 =
        unsafe { std::mem::transmute(tool(c"cuptiUnsubscribe")) };
    let mut other = ptr::null_mut();
    assert_eq!(subscribe(&mut other, ignored, ptr::null_mut()), 0);
    let error = MigrationTracker::start(&device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("another user of CUPTI"), "{error}");
    assert_eq!(unsubscribe(other), 0, "the refused start took nothing from it");
    drop(MigrationTracker::start(&device).unwrap());
    drop(device);
    test.assert_ledger_empty();
}

#[test]
fn each_failing_driver_call_of_a_start_is_a_typed_error_and_nothing_leaks() {
    let turn = turn();
    for nth in 1..100 {
        let test = harness::device_with(|builder| builder).unwrap();
        let sim = test.sim().unwrap();
        sim.fail_call(None, nth, 2);
        let outcome =
            CudaDevice::new(test.ordinal()).and_then(|device| MigrationTracker::start(&device).map(drop));
        if let Err(error) = &outcome {
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::Device),
                "call {nth}: {error:?}"
            );
        }
        // What was made to fail to go stays, and says so.
        let failed_drops = transload_cuda_sys::take_drop_errors();
        assert!(sim.ledger().is_empty() || !failed_drops.is_empty(), "call {nth}: {}", sim.ledger());
        if sim.calls() < nth {
            outcome.unwrap();
            drop(turn);
            return;
        }
    }
    panic!("the start never ended");
}
