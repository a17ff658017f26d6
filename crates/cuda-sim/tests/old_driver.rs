//! A driver of CUDA 10.2 is refused as too old.
#![cfg(any(target_os = "linux", windows))]

use transload_cuda_sim::{DriverOptions, install_with};
use transload_cuda_sys::{Device, Driver, DriverError, Version};

#[test]
fn an_old_driver_is_refused_with_both_versions() {
    install_with(DriverOptions::default().version(10_020)).expect("first");
    let refused = Driver::get().expect_err("too old");
    assert_eq!(refused, DriverError::TooOld { found: Version(10_020), needed: Driver::OLDEST });
    assert_eq!(refused.to_string(), "the CUDA driver supports CUDA 10.2; 11.0 or newer is needed");
    assert!(matches!(Device::new(0), Err(DriverError::TooOld { .. })));
}
