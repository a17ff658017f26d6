//! The driver, its devices and contexts, and the names of its codes.

use std::{ptr, thread};

use transload_cuda_sim::harness;
use transload_cuda_sys::{Context, Device, Driver, DriverError, attribute, check, ffi};

use crate::raw::{Bench, INVALID_CONTEXT, INVALID_VALUE, code};
#[test]
fn the_driver_says_what_it_is() {
    let device = harness::device();
    let driver = Driver::get().expect("a driver");
    assert!(driver.version() >= Driver::OLDEST);
    assert_eq!(driver.is_simulated(), device.is_simulated());
    assert!(driver.device_count().expect("count") > device.ordinal());
    assert!(driver.has(c"cuMemAlloc_v2"));
    assert!(!driver.has(c"cuNoSuchFunction"));
}

#[test]
fn a_device_describes_itself() {
    let test = harness::device();
    let device = Device::new(test.ordinal()).expect("device");
    assert_eq!(device.ordinal(), test.ordinal());
    let name = device.name().expect("name");
    assert_eq!(name.contains("Simulated"), test.is_simulated(), "{name}");
    let (major, _) = device.compute_capability().expect("capability");
    assert!(major >= 3);
    assert!(device.total_memory().expect("memory") > 0);
    assert_ne!(device.uuid().expect("uuid"), [0; 16]);
    assert_eq!(device.uuid().expect("uuid"), device.uuid().expect("uuid again"));
    assert_eq!(device.attribute(attribute::UNIFIED_ADDRESSING).expect("attribute"), 1);
    assert!(device.attribute(attribute::ASYNC_ENGINE_COUNT).expect("attribute") > 0);
    assert_eq!(code(device.attribute(0x00FF_FFFF)), INVALID_VALUE);
}

#[test]
fn device_names_itself_and_not_the_whole_gpu() {
    const OF_MIG_DEVICE: [u8; 16] = *b"ONE MIG DEVICE\0\0";
    let Some(test) = harness::device_with(|builder| builder.uuid(Some(OF_MIG_DEVICE))) else { return };
    assert_eq!(Device::new(test.ordinal()).and_then(Device::uuid).expect("uuid"), OF_MIG_DEVICE);
}

#[test]
fn an_unknown_ordinal_is_refused() {
    let _device = harness::device();
    let asked = u32::MAX;
    assert!(
        matches!(Device::new(asked), Err(DriverError::UnknownDevice { ordinal, .. }) if ordinal == asked)
    );
}

#[test]
fn call_without_context_fails_until_one_is_entered() {
    let bench = Bench::new(harness::device());
    let context = bench.context.clone();
    let seen = thread::spawn(move || {
        let mut address = 0;
        // SAFETY: the out pointer is valid.
        let without = unsafe { ffi::cuMemAlloc_v2(&mut address, 4096) };
        let info = context.memory_info().expect("bound for the call");
        let mut current = ptr::null_mut();
        // SAFETY: the out pointer is valid.
        let asked = unsafe { ffi::cuCtxGetCurrent(&mut current) };
        (without, info, asked, current.is_null())
    })
    .join()
    .expect("thread");
    assert_eq!(seen.0, INVALID_CONTEXT);
    assert!(seen.1.0 <= seen.1.1 && seen.1.1 > 0);
    assert_eq!((seen.2, seen.3), (0, true), "the thread has what it had before");
}

#[test]
fn contexts_nest_and_the_guard_restores() {
    let bench = Bench::new(harness::device());
    let current = || {
        let mut current = ptr::null_mut();
        // SAFETY: the out pointer is valid.
        check("cuCtxGetCurrent", unsafe { ffi::cuCtxGetCurrent(&mut current) }).expect("current");
        current
    };
    assert!(current().is_null());
    let outer = bench.context.enter().expect("enter");
    let inner = bench.context.enter().expect("enter again");
    assert_eq!(current(), bench.context.as_raw());
    drop(inner);
    assert_eq!(current(), bench.context.as_raw());
    drop(outer);
    assert!(current().is_null());
}

#[test]
fn the_primary_context_is_one_for_all() {
    let bench = Bench::new(harness::device());
    let again = Context::primary(bench.context.device()).expect("context");
    assert_eq!(again.as_raw(), bench.context.as_raw());
    let (mut flags, mut active) = (0, 0);
    let device = bench.context.device().as_raw();
    // SAFETY: the out pointers are valid.
    check("state", unsafe { ffi::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) })
        .expect("state");
    assert_eq!(active, 1);
}

#[test]
fn codes_have_names() {
    let _device = harness::device();
    Driver::get().expect("a driver");
    for (number, name) in [
        (1, "CUDA_ERROR_INVALID_VALUE"),
        (2, "CUDA_ERROR_OUT_OF_MEMORY"),
        (100, "CUDA_ERROR_NO_DEVICE"),
        (201, "CUDA_ERROR_INVALID_CONTEXT"),
        (400, "CUDA_ERROR_INVALID_HANDLE"),
        (600, "CUDA_ERROR_NOT_READY"),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ] {
        let mut text = ptr::null();
        // SAFETY: the out pointer is valid; the driver's texts are static.
        let found = unsafe {
            check("name", ffi::cuGetErrorName(number, &mut text)).expect("known");
            std::ffi::CStr::from_ptr(text)
        };
        assert_eq!(found.to_str(), Ok(name));
    }
    let mut text = ptr::null();
    // SAFETY: as above.
    assert_eq!(unsafe { ffi::cuGetErrorName(123_456, &mut text) }, INVALID_VALUE);
}
