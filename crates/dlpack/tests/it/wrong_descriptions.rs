//! Tensors that describe their CUDA memory incorrectly are refused: the driver contradicts them.

use std::{ffi::c_void, ptr};

use transload_core::{ErrorKind, MemoryKind};
use transload_cuda_sim::harness;
use transload_dlpack::{DLDevice, DLDeviceType, Importer, ManagedTensor};

use crate::{producer::Said, setup::Setup};

fn at(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(usize::try_from(address).unwrap())
}

/// Imports bytes that are declared to be on a device.
fn import(
    importer: &Importer,
    device: DLDevice,
    data: *mut c_void,
    bytes: i64,
) -> Result<MemoryKind, ErrorKind> {
    let said = Said { device, dtype: transload_dlpack::DLDataType::U8, ..Said::floats(data.cast(), bytes) };
    let (raw, deleted) = said.versioned();
    // SAFETY: the test's own memory, which nothing is done with.
    let outcome = importer.import(unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap());
    let outcome = match outcome {
        Ok(there) => Ok(there.buffer().place().kind),
        Err(refused) => {
            assert_eq!(deleted.times(), 0);
            assert!(refused.to_string().contains("kDL"), "{refused}");
            let kind = refused.error().kind();
            drop(refused);
            Err(kind)
        }
    };
    importer.drain().unwrap();
    assert_eq!(deleted.times(), 1);
    outcome
}

#[test]
fn pointer_that_contradicts_its_tensor_is_refused() {
    let setup = Setup::new();
    let (there, pinned) = (setup.device(4096), setup.pinned(&[0; 4096]));
    let mut pageable = vec![0_u8; 4096];
    let own = DLDevice::cuda(i32::try_from(setup.device.ordinal()).unwrap());
    let of = |device_type, device_id| DLDevice { device_type, device_id };
    let (host, managed) = (of(DLDeviceType::CUDAHOST, 0), of(DLDeviceType::CUDAMANAGED, 0));
    let device_address = at(there.device_address().unwrap());
    let pinned_address = pinned.host_address().unwrap().as_ptr().cast();
    let pageable_address = pageable.as_mut_ptr().cast();
    let tell = |device, data, bytes| import(&setup.importer, device, data, bytes);

    assert_eq!(tell(own, device_address, 4096), Ok(MemoryKind::Device));
    assert_eq!(tell(host, pinned_address, 4096), Ok(MemoryKind::Pinned));
    assert_eq!(tell(DLDevice::CPU, pinned_address, 4096), Ok(MemoryKind::Pinned));
    assert_eq!(tell(DLDevice::CPU, pageable_address, 4096), Ok(MemoryKind::Pageable));

    let lie = Err(ErrorKind::InvalidArgument);
    assert_eq!(tell(own, pinned_address, 4096), lie);
    assert_eq!(tell(own, pageable_address, 4096), lie);
    assert_eq!(tell(host, device_address, 4096), lie);
    assert_eq!(tell(host, pageable_address, 4096), lie);
    assert_eq!(tell(managed, device_address, 4096), lie);
    assert_eq!(tell(managed, pinned_address, 4096), lie);
    assert_eq!(tell(own, at(256), 16), lie);
    // Larger than any device: the end is unknown to the driver.
    assert_eq!(tell(own, device_address, 1 << 46), lie);

    let unknown = Err(ErrorKind::UnknownDevice);
    assert_eq!(tell(DLDevice::cuda(7777), device_address, 4096), unknown);
    assert_eq!(tell(of(DLDeviceType::CUDAHOST, 3), pinned_address, 4096), unknown);
    let not_here = Importer::new();
    assert_eq!(import(&not_here, own, device_address, 4096), unknown);
    assert_eq!(import(&not_here, managed, device_address, 4096), unknown);
    drop((there, pinned));
    setup.finish();
}

#[test]
fn a_tensor_without_elements_needs_no_memory_but_a_device() {
    let setup = Setup::new();
    let own = DLDevice::cuda(i32::try_from(setup.device.ordinal()).unwrap());
    assert_eq!(import(&setup.importer, own, ptr::null_mut(), 0), Ok(MemoryKind::Device));
    assert_eq!(
        import(&setup.importer, DLDevice::cuda(7777), ptr::null_mut(), 0),
        Err(ErrorKind::UnknownDevice)
    );
    setup.finish();
}

#[test]
fn another_devices_memory_is_refused_under_the_wrong_ordinal() {
    let Some(tests) = harness::devices(2) else { return };
    let [first, second] = [0, 1].map(|n| Setup::on(tests[n]));
    let there = first.device(4096);
    let data = at(there.device_address().unwrap());
    let both = Importer::new().with_device(&first.device).with_device(&second.device);
    let [right, wrong] = [&first, &second].map(|setup| DLDevice::cuda(setup.device.ordinal() as i32));
    assert_eq!(import(&both, right, data, 4096), Ok(MemoryKind::Device));
    assert_eq!(import(&both, wrong, data, 4096), Err(ErrorKind::InvalidArgument));
    drop((there, both));
    first.finish();
    second.finish();
}
