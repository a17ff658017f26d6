//! Devices under the manager of transfers.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, wgpu};
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, OperationRecord, OperationSampling, OperationSink, RawBuffer,
    RejectReason, TransferMethod,
};
use transload_transfer::{CrossBackendTransferManager, StridedLayout};

use crate::{
    MIB,
    framework::{Framework, frameworks},
    setup,
};

/// Odd, and more than some chunks.
const BYTES: usize = 20 * MIB + 3;

fn manager_of(backend: &Arc<WgpuBackend>) -> CrossBackendTransferManager {
    let manager = CrossBackendTransferManager::builder().registration(false).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(backend) as _).unwrap();
    manager
}

fn filled(manager: &CrossBackendTransferManager, byte: u8) -> RawBuffer {
    let buffer = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
    buffer.write().unwrap().fill(byte);
    buffer
}

fn assert_drained(manager: &CrossBackendTransferManager) {
    manager.drain().unwrap();
    for (name, counts) in manager.resource_counts() {
        assert!(counts.is_empty(), "{name}: {counts}");
    }
}

#[test]
fn two_devices_of_one_adapter_copy_to_each_other() {
    let two: Vec<_> =
        [frameworks(), frameworks()].into_iter().filter_map(|all| all.into_iter().next()).collect();
    let [one, other] = &two[..] else { return };
    let config = one.config.clone().with_device(other.device.clone(), other.queue.clone());
    let backend = WgpuBackend::open(&config).unwrap();
    copy_to_each_other(&backend);
}

/// One of Vulkan, and one of OpenGL.
#[cfg(target_os = "linux")]
#[test]
fn devices_of_two_adapters_copy_to_each_other() {
    vulkan_and_opengl().iter().for_each(copy_to_each_other);
}

fn copy_to_each_other(backend: &Arc<WgpuBackend>) {
    let ids: Vec<_> = backend.devices().iter().map(|info| info.id).collect();
    assert_eq!(ids, [DeviceId::Wgpu(0), DeviceId::Wgpu(1)]);
    let manager = manager_of(backend);
    let [here, there] =
        [0, 1].map(|n| manager.allocate(DeviceId::Wgpu(n), MemoryKind::Device, BYTES).unwrap());
    // By pinned memory, or, on devices without it, by pageable memory.
    let report = manager.copy(&here, &there).wait().unwrap();
    assert_eq!(report.method, TransferMethod::HostStaged);
    let back = filled(&manager, 0);
    for byte in 1..4 {
        let src = filled(&manager, byte);
        // Nobody waits in between: the buffers order them across the devices.
        let last = [(&src, &here), (&here, &there), (&there, &here), (&here, &back)]
            .map(|(src, dst)| manager.copy(src, dst).submit());
        last.into_iter().for_each(|transfer| drop(transfer.wait().unwrap()));
        assert!(back.read().unwrap().iter().all(|found| *found == byte));
    }
    drop((here, there, back));
    assert_drained(&manager);
}

/// Of two devices, which have no pinned memory if wgpu alone is used.
#[test]
fn plans_are_of_methods_that_copy_the_buffers_of_a_framework() {
    let two: Vec<_> =
        [frameworks(), frameworks()].into_iter().filter_map(|all| all.into_iter().next()).collect();
    let [one, other] = &two[..] else { return };
    let config = one.config.clone().with_device(other.device.clone(), other.queue.clone());
    let backend = WgpuBackend::open(&config).unwrap();
    let manager = manager_of(&backend);
    copy_without_shaders(&manager, &backend, one);
    assert_drained(&manager);
}

fn copy_without_shaders(manager: &CrossBackendTransferManager, backend: &WgpuBackend, one: &Framework) {
    let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let size = BYTES.next_multiple_of(4) as u64;
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let plain = one.device.create_buffer(&descriptor);
    // SAFETY: it is a buffer of the device, and not destroyed.
    let there = unsafe { backend.adopt_buffer(DeviceId::Wgpu(0), &plain) }.unwrap();
    let host = filled(manager, 7);
    let own = manager.allocate(DeviceId::Wgpu(1), MemoryKind::Device, BYTES).unwrap();
    // By wgpu alone only a shader writes parts of words, for which the buffer lacks a usage.
    let writes_bytes = backend.devices()[0].kinds.contains(&MemoryKind::Pinned);
    let range = |buffer: &RawBuffer, from: usize, bytes| buffer.slice(from..from + bytes).unwrap();
    let (odd, whole) = (range(&there, 4, 4099), range(&there, 4096, 4096));
    let (pairs, mut refusals) = ((range(&host, 0, 4096), range(&host, 0, 4099)), 0);
    let copies = [
        (&pairs.0, &whole),
        (&whole, &range(&host, 1, 4096)),
        (&odd, &range(&host, 1, 4099)),
        (&pairs.1, &odd),
        (&range(&own, 0, 4096), &whole),
        (&range(&own, 0, 4099), &odd),
        (&whole, &range(&there, 8192, 4096)),
    ];
    for (src, dst) in copies {
        let (plan, report) = (manager.copy(src, dst).plan(), manager.copy(src, dst).wait());
        match plan {
            Ok(plan) => assert!(plan.agrees_with(report.as_ref().unwrap()), "{plan}\n{report:?}"),
            Err(refused) => {
                let (told, reason) = (refused.to_string(), RejectReason::BufferRefused.to_string());
                assert!(told.contains(&reason) && told.contains("STORAGE"), "{told}");
                let refused = [refused.kind(), report.unwrap_err().kind()];
                assert_eq!(refused, [ErrorKind::Unsupported; 2], "{told}");
                refusals += 1;
            }
        }
    }
    assert_eq!(refusals, if writes_bytes { 0 } else { 3 });
    let (rows, dense) = (StridedLayout::new(8).repeat(9, 17), StridedLayout::new(8).repeat(9, 8));
    let planned = manager.copy_strided((&host, &dense), (&there, &rows)).unwrap().plan();
    assert_eq!(planned.is_ok(), writes_bytes, "rows that begin within words: {planned:?}");
    let planned = manager.copy_strided((&there, &rows), (&host, &dense)).unwrap().plan().unwrap();
    assert_eq!(planned.rejected.iter().find(|it| it.method == TransferMethod::DirectCopy), None);
    let list = [(pairs.0.clone(), whole.clone()), (pairs.1.clone(), range(&there, 16384, 4099))];
    let listed = manager.copy_many(&list).wait();
    assert_eq!(listed.is_ok(), writes_bytes, "{listed:?}");
}

#[test]
fn staged_copies_whose_futures_are_dropped_leave_nothing() {
    let Some(setup) = setup() else { return };
    let manager = manager_of(&setup.backend);
    let has_pinned = setup.backend.devices().iter().all(|info| info.kinds.contains(&MemoryKind::Pinned));
    let method = if has_pinned { TransferMethod::HostStaged } else { TransferMethod::DirectCopy };
    let there = manager.allocate(setup.device, MemoryKind::Device, BYTES).unwrap();
    let back = filled(&manager, 0);
    for byte in 1..5 {
        let src = filled(&manager, byte);
        for (src, dst) in [(&src, &there), (&there, &back)] {
            let mut future = pin!(manager.copy(src, dst).method(method).into_future());
            // Begun, and then given up in flight.
            if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                outcome.unwrap();
            }
        }
        // Their memory is theirs until they have ended, and later work comes after them.
        let last = filled(&manager, 100 + byte);
        pollster::block_on(manager.copy(&last, &there).method(method).into_future()).unwrap();
        pollster::block_on(manager.copy(&there, &back).method(method).into_future()).unwrap();
        assert!(back.read().unwrap().iter().all(|found| *found == 100 + byte));
    }
    drop((there, back));
    assert_drained(&manager);
}

/// Returns a device of each API; none, with a printed reason, where an adapter of one is missing.
#[cfg(target_os = "linux")]
fn vulkan_and_opengl() -> Option<Arc<WgpuBackend>> {
    let mut frameworks = frameworks();
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::GL;
    let adapters = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::GL));
    let opened = adapters.first().map(|adapter| {
        let limits = adapter.limits();
        let descriptor =
            wgpu::DeviceDescriptor { required_limits: limits, ..wgpu::DeviceDescriptor::default() };
        pollster::block_on(adapter.request_device(&descriptor))
    });
    let (false, Some(Ok((device, queue)))) = (frameworks.is_empty(), opened) else {
        println!("skipped: no adapters of both Vulkan and OpenGL");
        return None;
    };
    let config = frameworks.remove(0).config.with_device(device, queue);
    Some(WgpuBackend::open(&config).unwrap())
}

/// Those of OpenGL are not timed.
#[cfg(target_os = "linux")]
#[test]
fn devices_without_timestamps_do_not_keep_others_from_being_profiled() {
    struct Ignored;
    impl OperationSink for Ignored {
        fn operation(&self, _: OperationRecord) {}
    }

    let Some(backend) = vulkan_and_opengl() else { return };
    let sink: Arc<dyn OperationSink> = Arc::new(Ignored);
    let attached = backend.attach_sink(&sink, OperationSampling::ALL);
    let left_out: Vec<_> = backend.unprofiled_devices().into_iter().map(|(device, _)| device).collect();
    match left_out[..] {
        // Vulkan's has no timestamps of 64 bits here, or is used by wgpu's own interface.
        [DeviceId::Wgpu(0), DeviceId::Wgpu(1)] => {
            assert_eq!(attached.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        _ => {
            attached.unwrap();
            assert_eq!(left_out, [DeviceId::Wgpu(1)]);
            let again = backend.attach_sink(&sink, OperationSampling::ALL).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::Busy);
        }
    }
    backend.detach_sink(&sink);
}
