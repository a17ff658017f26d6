//! Backends, their devices and their memory.

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, ErrorKind, MemoryKind, Place};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{MOCK, Mock, with};

#[test]
fn device_registered_twice_is_refused_without_changes() {
    let (manager, backend) = with(Mock::default());
    let devices = vec![(DeviceId::Cuda(0), vec![MemoryKind::Device]), (MOCK, vec![MemoryKind::Device])];
    let error = manager.register_backend(Mock { devices, ..Mock::default() }.build()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.to_string().contains("mock:0") && error.to_string().contains("already registered"),
        "{error}"
    );
    let devices: Vec<_> = manager.devices().iter().map(|device| device.id).collect();
    assert_eq!(devices, [DeviceId::Cpu, MOCK]);
    let found = manager.backend(MOCK).unwrap();
    assert!(std::ptr::addr_eq(Arc::as_ptr(&found), Arc::as_ptr(&backend)));
}

#[test]
fn any_family_and_ordinal_can_be_registered() {
    let manager = CrossBackendTransferManager::new();
    let all = [DeviceId::Cpu, DeviceId::Cuda(7), DeviceId::Wgpu(0), DeviceId::Metal(u32::MAX), MOCK];
    for id in all {
        let devices = vec![(id, vec![MemoryKind::Device])];
        manager.register_backend(Mock { devices, ..Mock::default() }.build()).unwrap();
    }
    assert_eq!(manager.devices().iter().map(|device| device.id).collect::<Vec<_>>(), all);
    assert!(all.iter().all(|id| manager.backend(*id).is_ok()));
}

#[test]
fn allocation_shares_no_reference_count() {
    let (manager, backend) = with(Mock::default());
    manager
        .register_backend(Mock { devices: vec![(DeviceId::Cuda(0), vec![])], ..Mock::default() }.build())
        .unwrap();
    let before = Arc::strong_count(&backend) as u64;
    for (device, kind) in [(MOCK, MemoryKind::Device), (DeviceId::Cpu, MemoryKind::Pinned)] {
        drop(manager.allocate(device, kind, 64).unwrap());
        assert_eq!(backend.handles_when_asked(), before, "references during an allocation of {kind} memory");
        drop(manager.allocate_for(device, kind, 64).unwrap());
        assert_eq!(backend.handles_when_asked(), before, "references during an allocation for {device}");
    }
}

#[test]
fn unknown_device_error_names_known_devices() {
    let (manager, _) = with(Mock::default());
    let error = manager.backend(DeviceId::Cuda(4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    assert_eq!(error.to_string(), "cuda:4 is not registered; registered: cpu, mock:0");
    let error = manager.allocate(DeviceId::Cuda(4), MemoryKind::Device, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
}

#[test]
fn pinned_memory_is_allocated_by_offering_device() {
    let (manager, _) = with(Mock::default());
    for kind in [MemoryKind::Pinned, MemoryKind::Mapped] {
        let buffer = manager.allocate(DeviceId::Cpu, kind, 64).unwrap();
        assert_eq!(buffer.place(), Place::new(DeviceId::Cpu, kind));
        assert_eq!(manager.allocate_for(MOCK, kind, 64).unwrap().place(), buffer.place());
    }
    let devices = vec![(DeviceId::Cpu, vec![MemoryKind::Pageable])];
    let (host_only, _) = with(Mock { devices, ..Mock::default() });
    let error = host_only.allocate(DeviceId::Cpu, MemoryKind::Pinned, 64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("pinned"), "{error}");
}

#[test]
fn later_backend_enables_path() {
    let devices = vec![(DeviceId::Cpu, vec![]), (DeviceId::Cuda(0), vec![])];
    let (manager, _) = with(Mock { devices, copies: |_, _| false, ..Mock::default() });
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let to = Place::new(MOCK, MemoryKind::Device);
    let plan = |dst| manager.plan(host, dst, 64, &TransferOptions::new());
    assert_eq!(plan(host).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(plan(to).unwrap_err().kind(), ErrorKind::UnknownDevice);
    manager.register_backend(Mock { devices: vec![(MOCK, vec![])], ..Mock::default() }.build()).unwrap();
    assert_eq!(plan(to).unwrap().lane, MOCK);
}

#[test]
fn memory_not_offered_error_names_offered_kinds() {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let pageable = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let pinned = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
    let plan = |src, dst| manager.plan(src, dst, 64, &TransferOptions::new());
    plan(pageable, pageable).unwrap();
    for error in [
        manager.allocate(DeviceId::Cpu, MemoryKind::Pinned, 64).unwrap_err(),
        plan(pinned, pageable).unwrap_err(),
        plan(pageable, pinned).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("offers pinned memory") && text.contains("cpu (pageable)"), "{text}");
    }
}

#[test]
fn plan_of_pinned_memory_of_a_device_names_the_hosts() {
    let (manager, _) = with(Mock::default());
    let (device, pinned) =
        (Place::new(MOCK, MemoryKind::Device), Place::new(DeviceId::Cpu, MemoryKind::Pinned));
    let plan = |src, dst| manager.plan(src, dst, 64, &TransferOptions::new());
    plan(pinned, device).unwrap();
    let impossible = Place::new(MOCK, MemoryKind::Pinned);
    for error in [plan(impossible, device).unwrap_err(), plan(device, impossible).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("plan for {pinned}")), "{error}");
    }
}

#[test]
fn plan_beyond_the_largest_allocation_names_the_limit() {
    let (manager, _) = with(Mock { largest_allocation: Some(4096), ..Mock::default() });
    let (host, device) =
        (Place::new(DeviceId::Cpu, MemoryKind::Pageable), Place::new(MOCK, MemoryKind::Device));
    manager.plan(host, device, 4096, &TransferOptions::new()).unwrap();
    for (src, dst) in [(host, device), (device, host)] {
        let error = manager.plan(src, dst, 4097, &TransferOptions::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
        assert!(error.to_string().contains("4096"), "{error}");
    }
}
