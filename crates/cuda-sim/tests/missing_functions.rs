//! A missing driver function is named in errors, by cuda-sys and by cust.
#![cfg(any(target_os = "linux", windows))]

use transload_cuda_sim::{DriverOptions, SimDevice, install_with};
use transload_cuda_sys::{Context, Device, Driver, DriverError, Stream, StreamOptions, check, cust, ffi};

#[test]
fn a_missing_function_is_a_typed_error_and_the_rest_works() {
    let options =
        DriverOptions::default().version(11_040).missing("cuMemAllocAsync").missing("cuMemGetInfo_v2");
    install_with(options).expect("first");
    let driver = Driver::get().expect("a driver");
    assert_eq!((driver.version().major(), driver.version().minor()), (11, 4));
    assert!(!driver.has(c"cuMemAllocAsync"));
    assert!(driver.has(c"cuMemAlloc_v2"));
    let sim = SimDevice::builder().build();
    let context = Context::primary(Device::new(sim.ordinal()).expect("device")).expect("context");
    assert_eq!(context.memory_info(), Err(DriverError::MissingFunction { name: "cuMemGetInfo_v2" }));
    let stream = Stream::new(&context, StreamOptions::default()).expect("streams work");
    let mut address = 0;
    let _bound = context.enter().expect("enter");
    // SAFETY: the out pointer is valid.
    let answer =
        unsafe { ffi::cuMemAllocAsync(&mut address, 64, transload_cuda_sys::AsStream::as_raw(&stream)) };
    assert_eq!(
        check("cuMemAllocAsync", answer),
        Err(DriverError::MissingFunction { name: "cuMemAllocAsync" })
    );
    // cust's enum has no code for a missing function; it gets "not supported".
    assert_eq!(cust::memory::mem_get_info().expect_err("missing"), cust::error::CudaError::NotSupported);
}
