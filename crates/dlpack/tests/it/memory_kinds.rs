//! Every kind of CUDA memory keeps its kind, address and content in a round trip.

use transload_core::{MemoryKind, RawBuffer};
use transload_dlpack::{DLDevice, DLDeviceType, Export, Form, ManagedTensor};
use transload_streams::CudaStream;

use crate::setup::Setup;

fn proper(kind: MemoryKind, ordinal: u32) -> DLDevice {
    let of = |device_type| DLDevice { device_type, device_id: 0 };
    match kind {
        MemoryKind::Pageable => DLDevice::CPU,
        MemoryKind::Pinned | MemoryKind::Mapped => of(DLDeviceType::CUDAHOST),
        MemoryKind::Device => DLDevice::cuda(i32::try_from(ordinal).unwrap()),
        MemoryKind::Unified => of(DLDeviceType::CUDAMANAGED),
    }
}

fn address(buffer: &RawBuffer) -> u64 {
    let host = buffer.host_address().map(|address| address.as_ptr().addr() as u64);
    host.or(buffer.device_address()).unwrap()
}

fn fill(setup: &Setup, buffer: &RawBuffer, byte: u8) {
    let from = setup.pinned(&vec![byte; buffer.len()]);
    CudaStream::new(&setup.device).unwrap().copy_from_host_async(&from, buffer).wait().unwrap();
}

fn all(setup: &Setup, buffer: &RawBuffer, byte: u8) -> bool {
    match buffer.place().kind {
        MemoryKind::Device | MemoryKind::Unified => setup.read(buffer).iter().all(|found| *found == byte),
        _ => buffer.read().unwrap().iter().all(|found| *found == byte),
    }
}

fn set(setup: &Setup, buffer: &RawBuffer, byte: u8) {
    match buffer.place().kind {
        MemoryKind::Device | MemoryKind::Unified => fill(setup, buffer, byte),
        _ => buffer.write().unwrap().fill(byte),
    }
}

fn round<M: Form>(setup: &Setup, buffer: &RawBuffer, tensor: ManagedTensor<M>, comes_back_as: MemoryKind) {
    let there = setup.importer.import_as::<f32, _>(tensor).unwrap().into_buffer();
    assert_eq!(there.place().kind, comes_back_as);
    assert_eq!(
        there.place().device,
        if comes_back_as == MemoryKind::Pageable {
            transload_core::DeviceId::Cpu
        } else {
            buffer.place().device
        }
    );
    assert_eq!((address(&there), there.len()), (address(buffer), buffer.len()));
    assert!(all(setup, &there, 1));
    set(setup, &there, 2);
    drop(there);
    setup.importer.drain().unwrap();
    assert!(all(setup, buffer, 2));
    set(setup, buffer, 1);
}

#[test]
fn every_kind_makes_the_round_trip_in_both_forms() {
    let setup = Setup::new();
    for kind in setup.memory.kinds() {
        let buffer = setup.memory.allocate(kind, 4096).unwrap();
        set(&setup, &buffer, 1);
        // Mapped memory is imported as pinned.
        let back = if kind == MemoryKind::Mapped { MemoryKind::Pinned } else { kind };
        let versioned = Export::of::<f32>(&buffer).shape(&[32, 32]).versioned().unwrap();
        let raw = versioned.into_raw();
        // SAFETY: a valid tensor, which the test owns.
        unsafe {
            assert_eq!((*raw).dl_tensor.device, proper(kind, setup.device.ordinal()), "{kind}");
            assert_eq!((*raw).dl_tensor.data.addr() as u64, address(&buffer), "{kind}");
        }
        // SAFETY: our own tensor, whose buffer is lent and at rest.
        round(&setup, &buffer, unsafe { ManagedTensor::from_raw(raw, &[]) }.unwrap(), back);
        round(&setup, &buffer, Export::of::<f32>(&buffer).unversioned().unwrap(), back);
    }
    setup.finish();
}

#[test]
fn export_as_other_device_needs_access_without_copy() {
    let setup = Setup::new();
    let cuda = DLDevice::cuda(i32::try_from(setup.device.ordinal()).unwrap());
    for kind in setup.memory.kinds() {
        let buffer = setup.memory.allocate(kind, 4096).unwrap();
        set(&setup, &buffer, 1);
        for device in [DLDevice::CPU, cuda, DLDevice::cuda(77), DLDevice::metal(0)] {
            let export = || Export::of::<f32>(&buffer).on_device(device).versioned();
            let back = match (kind, device) {
                // The driver knows pinned memory under any device.
                (MemoryKind::Pinned | MemoryKind::Mapped, DLDevice::CPU) => Some(MemoryKind::Pinned),
                (MemoryKind::Unified, DLDevice::CPU) if buffer.host_address().is_some() => {
                    Some(MemoryKind::Pageable)
                }
                (MemoryKind::Unified | MemoryKind::Device, device) if device == cuda => {
                    Some(MemoryKind::Device)
                }
                _ => None,
            };
            match back {
                Some(back) => round(&setup, &buffer, export().unwrap(), back),
                None => {
                    let error = export().unwrap_err();
                    assert_eq!(error.kind(), transload_core::ErrorKind::Unsupported, "{kind}: {error}");
                    assert!(error.to_string().contains("valid: kDL"), "{error}");
                }
            }
        }
    }
    setup.finish();
}
