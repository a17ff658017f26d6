//! Peer access of a device, which depends on every device of the process.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

use transload_cuda_sim::{SimDeviceBuilder, harness};
use transload_memory::{CudaDevice, CudaFeature};

#[test]
fn a_device_has_peers_if_it_reaches_another_one() {
    let has = |ordinal| CudaDevice::new(ordinal).unwrap().supports_feature(CudaFeature::P2P).unwrap();
    let alone = (!harness::is_real()).then(|| harness::device_with(SimDeviceBuilder::no_peers));
    if let Some(alone) = alone.flatten() {
        assert!(!has(alone.ordinal()), "it is the only one");
        let (_one, _two) = (harness::device(), harness::device());
        assert!(!has(alone.ordinal()), "it reaches none of the others");
    }
    let Some(devices) = harness::devices(2) else { return };
    let driver = |index: usize| CudaDevice::new(devices[index].ordinal()).unwrap().driver();
    let reaches = driver(0).can_access_peer(driver(1)).unwrap();
    assert!(reaches || !devices[0].is_simulated());
    assert!(has(devices[0].ordinal()) || !reaches);
}
