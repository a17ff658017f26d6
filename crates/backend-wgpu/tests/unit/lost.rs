//! The loss of a device: typed errors, and nothing leaks.

use std::sync::{Arc, atomic::Ordering};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, StreamPriority, Timeline as _, Timing,
    TransferMethod, WorkloadType, submit,
};

use transload_transfer::CrossBackendTransferManager;

use super::super::faults;
use crate::{WgpuBackend, WgpuBackendConfig, setup};

#[test]
fn lost_device_fails_what_uses_it_and_leaks_nothing() {
    if let Some(backend) = setup::backend() {
        lose(&backend);
    }
}

#[test]
fn lost_foreign_device_fails_what_uses_it_and_leaks_nothing() {
    let Some(adapter) = setup::adapter() else { return };
    let opened = adapter.request_device(&wgpu::DeviceDescriptor::default());
    let (device, queue) = pollster::block_on(opened).unwrap();
    // SAFETY: no surface is configured for it, and wgpu's queue is used as such only.
    let config = unsafe { WgpuBackendConfig::default().with_foreign_device(device, queue) };
    lose(&WgpuBackend::open(&config).unwrap());
}

/// wgpu has counted a submission that the driver then refuses: a later one would wait for it for ever.
#[test]
fn submission_of_a_foreign_device_that_the_driver_refuses_is_its_loss() {
    let Some(adapter) = setup::adapter() else { return };
    let create = || crate::create_shared_device(&adapter, &wgpu::DeviceDescriptor::default());
    let (device, queue) = faults::foreign(create).unwrap();
    // SAFETY: no surface is configured for it, and wgpu's queue is used as such only.
    let config = unsafe { WgpuBackendConfig::default().with_foreign_device(device, queue) };
    let backend = WgpuBackend::open(&config).unwrap();
    let state = backend.states().remove(0);
    assert!(!state.queue.vulkan.is_locked);
    let lease = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let allocate = |kind| backend.allocate(state.id(), kind, 1 << 20).unwrap();
    let (src, dst) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device));
    let copy = || submit(&*lease, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?.wait();
    copy().unwrap();
    faults::fail_after(state.queue.queue.raw, 0, ash::vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
    for attempt in 0..2 {
        assert_eq!(copy().unwrap_err().kind(), ErrorKind::DeviceLost, "{attempt}");
    }
    drop((src, dst, lease));
    assert_eq!(backend.drain().unwrap_err().kind(), ErrorKind::DeviceLost);
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

fn lose(backend: &WgpuBackend) {
    let state = backend.states().remove(0);
    let device = state.id();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let allocate = |kind| backend.allocate(device, kind, 8 << 20);
    let (src, dst) = (allocate(MemoryKind::Pinned).unwrap(), allocate(MemoryKind::Device).unwrap());
    let copy = || submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off);
    let good = copy().unwrap();
    good.wait().unwrap();
    let bad = copy().unwrap();
    let awaited = bad.done();

    state.queue.lose_for_test();
    good.wait().unwrap();
    let lost = |error: transload_core::Error| error.kind() == ErrorKind::DeviceLost;
    assert!(lost(bad.wait().unwrap_err()) && bad.is_known_complete());
    assert!(lost(pollster::block_on(awaited).unwrap_err()));
    assert!(lost(copy().unwrap_err()) && lost(allocate(MemoryKind::Device).unwrap_err()));
    let leased = backend.lease_queue(device, StreamPriority::High, WorkloadType::Memory);
    assert!(lost(leased.err().unwrap()));
    // Twice, as each call that fails marks it.
    state.queue.lose_for_test();

    drop((src, dst, queue));
    assert!(lost(backend.drain().unwrap_err()), "the loss is returned");
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

#[test]
fn points_of_other_queues_are_errors_after_a_loss() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let [first, second] = &state.copiers[..] else { panic!("two queues copy beside wgpu's") };
    // SAFETY: there are no commands.
    let submit = || unsafe { second.queue.submit(&[], &[]) }.unwrap();
    let good = submit();
    second.queue.block_until(good);
    let bad = submit();
    first.queue.lose_for_test();
    let is_lost = |outcome: transload_core::Result<()>| {
        outcome.is_err_and(|error| error.kind() == ErrorKind::DeviceLost)
    };
    assert!(is_lost(second.queue.wait(bad)) && second.queue.wait(good).is_ok());
    assert!(is_lost(state.queue.check_usable()));
}

#[test]
fn lost_device_that_may_run_on_keeps_its_memory() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let vulkan = Arc::downgrade(&state.queue.vulkan);
    let pinned = backend.allocate(state.id(), MemoryKind::Pinned, 8 << 20).unwrap();
    pinned.write().unwrap().fill(7);
    let address = pinned.host_address().unwrap();
    state.queue.hides_idle.store(true, Ordering::Relaxed);
    state.queue.lose_for_test();
    drop((pinned, state));
    assert_eq!(backend.drain().unwrap_err().kind(), ErrorKind::DeviceLost);
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    drop(backend);
    assert!(vulkan.strong_count() > 0, "the device is destroyed");
    // SAFETY: the memory stays for the rest of the process.
    assert_eq!(unsafe { address.read_volatile() }, 7);
}

/// A backend that is opened again is lost again.
#[test]
fn device_lost_in_the_middle_of_a_staged_transfer_fails_it_each_time() {
    const BYTES: usize = 64 << 20;
    for is_upload in [true, false] {
        let Some(backend) = setup::backend() else { return };
        let state = backend.states().remove(0);
        let manager = CrossBackendTransferManager::builder().registration(false).build();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        manager.register_backend(Arc::clone(&backend) as _).unwrap();
        let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
        let there = manager.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
        let staged = || {
            let (src, dst) = if is_upload { (&host, &there) } else { (&there, &host) };
            manager.copy(src, dst).method(TransferMethod::HostStaged).wait().map(drop)
        };
        staged().unwrap();
        let queue = state.copiers.first().map_or(&state.wgpu, |line| line).queue.queue.raw;
        // The first part runs, and is waited for.
        faults::lose_after(queue, 1);
        for _ in 0..2 {
            assert_eq!(staged().unwrap_err().kind(), ErrorKind::DeviceLost);
        }
        drop((host, there, state));
        assert_eq!(manager.drain().unwrap_err().kind(), ErrorKind::DeviceLost);
        manager.drain().unwrap();
        for (name, counts) in manager.resource_counts() {
            assert!(counts.is_empty(), "{name}: {counts}");
        }
    }
}
