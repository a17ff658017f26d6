//! Advice by its effect: what the driver says of the range afterwards.

use transload_core::{DeviceId, ErrorKind, MemoryAdvice, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::TestDevice;
use transload_memory::{CudaDevice, CudaFeature, CudaMemoryManager, MemoryLocation, Residency, advise};

use crate::manager;

/// Large enough to have pages of its own on any driver.
const BYTES: usize = 4 << 20;

/// A unified buffer, where the device takes hints about it.
fn unified() -> Option<(TestDevice, CudaMemoryManager, RawBuffer)> {
    let (device, memory) = manager();
    if !memory.device().supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap() {
        println!("skipped: host and device cannot use unified memory at the same time");
        return None;
    }
    let buffer = memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    Some((device, memory, buffer))
}

fn finish(device: TestDevice, memory: CudaMemoryManager, buffer: RawBuffer) {
    drop(buffer);
    memory.drain().unwrap();
    assert!(memory.ledger().is_empty(), "{}", memory.ledger());
    drop(memory);
    device.assert_ledger_empty();
}

#[test]
fn each_advice_is_kept_and_taken_back_by_the_driver() {
    let Some((device, memory, buffer)) = unified() else { return };
    let ordinal = device.ordinal();
    let (here, there) = (DeviceId::Cuda(ordinal), MemoryLocation::Device(ordinal));
    assert_eq!(Residency::of(&buffer).unwrap(), Residency::default(), "fresh memory has no advice");

    advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
    assert!(Residency::of(&buffer).unwrap().read_mostly);
    advise(&buffer, MemoryAdvice::UnsetReadMostly).unwrap();

    for (at, location) in [(here, there), (DeviceId::Cpu, MemoryLocation::Host)] {
        advise(&buffer, MemoryAdvice::SetPreferredLocation(at)).unwrap();
        assert_eq!(Residency::of(&buffer).unwrap().preferred, Some(location), "preferred at {at}");
        advise(&buffer, MemoryAdvice::UnsetPreferredLocation).unwrap();

        advise(&buffer, MemoryAdvice::SetAccessedBy(at)).unwrap();
        assert_eq!(Residency::of(&buffer).unwrap().accessed_by, [location], "accessed by {at}");
        advise(&buffer, MemoryAdvice::UnsetAccessedBy(at)).unwrap();
    }
    assert_eq!(Residency::of(&buffer).unwrap(), Residency::default(), "all was taken back");
    finish(device, memory, buffer);
}

#[test]
fn advice_on_a_slice_reaches_that_slice_only() {
    let Some((device, memory, buffer)) = unified() else { return };
    let (first, second) = (buffer.slice(..BYTES / 2).unwrap(), buffer.slice(BYTES / 2..).unwrap());
    advise(&first, MemoryAdvice::SetPreferredLocation(DeviceId::Cpu)).unwrap();
    assert_eq!(Residency::of(&first).unwrap().preferred, Some(MemoryLocation::Host));
    assert_eq!(Residency::of(&second).unwrap().preferred, None);
    assert_eq!(Residency::of(&buffer).unwrap().preferred, None, "the halves differ");
    drop((first, second));
    finish(device, memory, buffer);
}

#[test]
fn advice_that_cannot_be_followed_is_refused_with_what_would_be_valid() {
    let Some((device, memory, buffer)) = unified() else { return };
    let advices = |at| {
        [
            MemoryAdvice::SetPreferredLocation(at),
            MemoryAdvice::SetAccessedBy(at),
            MemoryAdvice::UnsetAccessedBy(at),
        ]
    };
    // The last three are what the older call takes for the host, for no device, and for a negative number.
    for ordinal in [10_000, u32::MAX, u32::MAX - 1, i32::MAX as u32 + 1] {
        for advice in advices(DeviceId::Cuda(ordinal)) {
            let error = advise(&buffer, advice).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownDevice, "{advice:?}: {error}");
        }
    }
    for advice in advices(DeviceId::Wgpu(0)) {
        let error = advise(&buffer, advice).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("valid are cpu and cuda:N"), "{error}");
    }
    let empty = buffer.slice(5..5).unwrap();
    assert_eq!(advise(&empty, MemoryAdvice::SetReadMostly).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(Residency::of(&empty).unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(empty);
    for kind in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped] {
        let other = memory.allocate(kind, 4096).unwrap();
        for error in
            [advise(&other, MemoryAdvice::SetReadMostly).unwrap_err(), Residency::of(&other).unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{kind}: {error}");
            assert!(error.to_string().contains("allocate MemoryKind::Unified"), "{error}");
        }
    }
    assert_eq!(Residency::of(&buffer).unwrap(), Residency::default(), "nothing was advised");
    finish(device, memory, buffer);
}

#[test]
fn advice_may_name_any_device_of_the_process() {
    let Some(devices) = transload_cuda_sim::harness::devices(2) else { return };
    let (near, far) = (devices[0].ordinal(), devices[1].ordinal());
    let memory = CudaMemoryManager::new(&CudaDevice::new(near).unwrap()).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cuda(near))).unwrap();
    advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cuda(far))).unwrap();
    advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cpu)).unwrap();
    advise(&buffer, MemoryAdvice::SetPreferredLocation(DeviceId::Cuda(far))).unwrap();
    let mut believed = Residency::of(&buffer).unwrap();
    believed.accessed_by.sort_unstable();
    let mut expected =
        [MemoryLocation::Device(near), MemoryLocation::Device(far), MemoryLocation::Host].to_vec();
    expected.sort_unstable();
    assert_eq!(believed.accessed_by, expected);
    assert_eq!(believed.preferred, Some(MemoryLocation::Device(far)));
    drop(buffer);
    memory.drain().unwrap();
    drop(memory);
    devices.iter().for_each(TestDevice::assert_ledger_empty);
}
