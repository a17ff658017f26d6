//! A driver that refuses to initialise without a device.
#![cfg(any(target_os = "linux", windows))]

use transload_cuda_sim::{DriverOptions, install_with};
use transload_cuda_sys::{Device, Driver, DriverError};

#[test]
fn driver_without_device_differs_from_no_driver() {
    install_with(DriverOptions::default().init_fails_with(100)).expect("first");
    assert_eq!(Driver::get().err(), Some(DriverError::NoDevice));
    assert_eq!(Device::new(0).err(), Some(DriverError::NoDevice));
    assert_eq!(Device::all().err(), Some(DriverError::NoDevice));
}
