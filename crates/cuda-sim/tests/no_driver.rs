//! A machine without a driver, and installing the software driver too late.
#![cfg(any(target_os = "linux", windows))]

use transload_cuda_sys::{Device, Driver, DriverError, check, cust, ffi};

#[test]
fn without_driver_every_entry_point_lists_tried_paths() {
    let file = "/nonexistent/libcuda-of-nobody.so";
    // SAFETY: this process runs one test, and no other thread reads the environment.
    unsafe { std::env::set_var("TRANSLOAD_CUDA_DRIVER", file) };
    let Err(DriverError::NotFound { tried }) = Driver::get() else { panic!("there is no such file") };
    assert_eq!(tried.len(), 1, "{tried:?}");
    assert!(tried[0].contains(file), "{tried:?}");
    assert!(matches!(Device::new(0), Err(DriverError::NotFound { .. })));
    // SAFETY: there is no driver, so nothing is dereferenced.
    let answer = unsafe { ffi::cuCtxSynchronize() };
    assert!(matches!(check("cuCtxSynchronize", answer), Err(DriverError::NotFound { .. })));
    assert!(cust::init(cust::CudaFlags::empty()).is_err(), "cust hears an error, not a crash");
    let late = transload_cuda_sim::install().expect_err("a driver was asked for before");
    assert!(late.to_string().contains("chosen its CUDA driver already (no driver)"), "{late}");
}
