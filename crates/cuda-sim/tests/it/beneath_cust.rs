//! cust's declarations resolve to the installed driver.

use transload_cuda_sim::harness;
use transload_cuda_sys::{
    Device, Driver,
    cust::{
        self,
        memory::{CopyDestination, DeviceBuffer},
    },
};

#[test]
fn cust_finds_devices_contexts_and_memory() {
    let test = harness::device();
    let driver = Driver::get().expect("a driver");
    let count = cust::device::Device::num_devices().expect("count");
    assert!(count > test.ordinal());
    assert!(count <= driver.device_count().expect("count"), "devices are only added");
    let device = Device::new(test.ordinal()).expect("device").to_cust().expect("device");
    assert_eq!(device.name().expect("name").contains("Simulated"), test.is_simulated());
    let context = cust::context::Context::new(device).expect("context");
    let numbers: Vec<u32> = (0..10_000).map(|index| index * 7).collect();
    let buffer = DeviceBuffer::from_slice(&numbers).expect("buffer");
    let mut back = vec![0_u32; numbers.len()];
    buffer.copy_to(&mut back).expect("copy");
    assert_eq!(back, numbers);
    drop(buffer);
    drop(context);
    test.assert_no_live_objects();
}
