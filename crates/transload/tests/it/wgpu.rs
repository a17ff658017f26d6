//! Vulkan devices through the facade: on every adapter that wgpu finds, such as Mesa's lavapipe.

use std::future::IntoFuture;

use transload::{
    Array, DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, Runtime, StridedLayout, TransferMethod,
    TransferOptions, backend::CostBasis, wgpu::WgpuBackendConfig,
};

const MIB: usize = 1 << 20;
const VULKAN: transload::wgpu::wgpu::Backends = transload::wgpu::wgpu::Backends::VULKAN;

/// Returns a runtime, and its Vulkan devices; none, with a printed reason, where no adapter is.
fn runtime() -> Option<(Runtime, Vec<DeviceId>)> {
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(VULKAN);
    // Looking for CUDA would load the machine's driver, before other tests of the process install theirs.
    let builder = crate::uncalibrated::builder().without("cuda").exploration(false);
    let rt = builder.wgpu(config).discover().unwrap();
    if let Some((_, reason)) = rt.absent().iter().find(|(family, _)| *family == "wgpu") {
        assert!(matches!(reason.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice), "{reason:?}");
        assert!(reason.to_string().contains("install"), "{reason}");
        assert!(std::env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none(), "{reason}");
        println!("skipped: {reason}");
        return None;
    }
    let found = rt.devices().into_iter().map(|info| info.id).filter(|id| id.family() == "wgpu").collect();
    Some((rt, found))
}

/// Returns whether the device's memory is the host's, as that of software adapters.
fn is_mapped(rt: &Runtime, device: DeviceId) -> bool {
    rt.devices().iter().any(|info| info.id == device && info.kinds.contains(&MemoryKind::Mapped))
}

fn assert_drained(rt: &Runtime) {
    rt.drain().unwrap();
    for (backend, counts) in rt.manager().resource_counts() {
        assert!(counts.is_empty(), "{backend}: {counts}");
    }
}

/// Random content of host memory of a kind.
fn filled(rt: &Runtime, kind: MemoryKind, content: &[u8]) -> Array<u8> {
    let array = rt.alloc(DeviceId::Cpu, kind, content.len()).unwrap();
    array.write().unwrap().copy_from_slice(content);
    array
}

fn noise(bytes: usize) -> Vec<u8> {
    transload_cuda_sim::harness::noise(bytes, bytes as u64)
}

/// It is for what CUDA pins.
#[test]
fn limit_of_pinned_memory_leaves_vulkan_devices_alone() {
    if runtime().is_none() {
        return;
    }
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(VULKAN);
    let builder = crate::uncalibrated::builder().without("cuda").pinned_limit(1 << 20);
    let rt = builder.wgpu(config).discover().unwrap();
    let pins = |info: &&transload::DeviceInfo| info.kinds.contains(&MemoryKind::Pinned) && !info.id.is_cpu();
    assert!(rt.devices().iter().any(|info| pins(&info)), "none has pinned memory");
}

/// A buffer that is lent for a download has no driver that knows it.
#[test]
fn host_buffer_of_another_drivers_memory_is_pageable_for_downloads() {
    let Some((rt, devices)) = runtime() else { return };
    for device in devices {
        let kinds: Vec<_> = rt.devices().into_iter().filter(|info| info.id == device).collect();
        for kind in [MemoryKind::Pinned, MemoryKind::Mapped] {
            if !kinds[0].kinds.contains(&kind) {
                println!("skipped: {device} has no {kind} memory");
                continue;
            }
            let array = rt.alloc::<u8>(device, kind, 1000).unwrap();
            assert!(array.raw().maker().is_some());
            let buffer = transload::HostBuffer::from_array(array).unwrap();
            assert_eq!(transload::backend::Destination::kind(&buffer), MemoryKind::Pageable);
            let content = noise(1000);
            let there = rt.upload(device, &content).unwrap();
            let filled = rt.download_into(&there, buffer).wait().unwrap();
            assert_eq!(filled[..], content[..]);
        }
    }
    assert_drained(&rt);
}

#[test]
fn zeros_and_uploads_go_to_a_vulkan_device() {
    let Some((rt, devices)) = runtime() else { return };
    for device in devices {
        let content = noise(5 * MIB + 3);
        let there = rt.upload(device, &content).unwrap();
        assert_eq!((there.device(), there.kind()), (device, MemoryKind::Device));
        assert!(*rt.download(&there).wait().unwrap() == content[..]);
        let zeros = rt.zeros_on::<[u8; 3]>(device, 5001).unwrap();
        assert!(*rt.download(&zeros).wait().unwrap() == vec![[0; 3]; 5001]);
    }
    assert_drained(&rt);
}

#[test]
fn odd_sizes_and_offsets_arrive_and_touch_nothing_else() {
    let Some((rt, devices)) = runtime() else { return };
    for device in devices {
        for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
            for size in [1, 4097, 262_145, 5 * MIB + 3] {
                let content = noise(size + 64);
                // Pinned memory of another device is pageable for this one.
                let filled = |content: &[u8]| {
                    let by = if kind == MemoryKind::Pinned { device } else { DeviceId::Cpu };
                    let array = rt.manager().allocate_for(by, kind, content.len()).unwrap();
                    let array = rt.array::<u8>(array).unwrap();
                    array.write().unwrap().copy_from_slice(content);
                    array
                };
                let source = filled(&content);
                let there = rt.alloc::<u8>(device, MemoryKind::Device, size + 64).unwrap();
                let back = filled(&vec![0xEE; size + 64]);
                rt.copy(&back, &there).wait().unwrap();
                let up =
                    rt.copy(&source.slice(13..13 + size).unwrap(), &there.slice(7..7 + size).unwrap()).wait();
                let whole = rt.download(&there).wait().unwrap();
                assert!(whole[7..7 + size] == content[13..13 + size], "{size} bytes");
                assert!(
                    whole[..7].iter().chain(&whole[7 + size..]).all(|byte| *byte == 0xEE),
                    "{size} bytes"
                );
                let down =
                    rt.copy(&there.slice(7..7 + size).unwrap(), &back.slice(29..29 + size).unwrap()).wait();
                let seen = back.read().unwrap();
                assert!(seen[29..29 + size] == content[13..13 + size], "{size} bytes");
                assert!(
                    seen[..29].iter().chain(&seen[29 + size..]).all(|byte| *byte == 0xEE),
                    "{size} bytes"
                );
                // The built-in costs of the two cross at about 130 KB.
                let staged = kind == MemoryKind::Pageable && size > MIB / 4;
                let expected = match staged {
                    _ if is_mapped(&rt, device) => (TransferMethod::ZeroCopy, DeviceId::Cpu),
                    true => (TransferMethod::HostStaged, device),
                    false => (TransferMethod::DirectCopy, device),
                };
                for report in [up.unwrap(), down.unwrap()] {
                    assert_eq!((report.method, report.lane), expected, "{report:#}");
                }
            }
        }
    }
    assert_drained(&rt);
}

#[test]
fn plan_names_the_method_and_why_others_are_rejected() {
    let Some((rt, devices)) = runtime() else { return };
    let (host, there) =
        (Place::new(DeviceId::Cpu, MemoryKind::Pinned), Place::new(devices[0], MemoryKind::Device));
    let is_mapped = is_mapped(&rt, devices[0]);
    let best = if is_mapped { TransferMethod::ZeroCopy } else { TransferMethod::DirectCopy };
    let plan = rt.plan(host, there, 1 << 20).unwrap();
    assert_eq!((plan.method, plan.basis), (best, CostBasis::BuiltIn));
    let text = format!("{plan:#}");
    for other in ["HostStaged", "UnifiedMemory", "PeerToPeer", "ZeroCopy"] {
        assert!(text.contains(other), "{text}");
    }
    let zero_copy = TransferOptions::new().only(TransferMethod::ZeroCopy);
    match rt.manager().plan(host, there, 1 << 20, &zero_copy) {
        Ok(plan) => assert!(is_mapped && plan.lane.is_cpu(), "{plan:#}"),
        Err(refused) => {
            assert!(!is_mapped && refused.kind() == ErrorKind::Unsupported, "{refused}");
            assert!(refused.to_string().contains("not mapped"), "{refused}");
        }
    }
}

#[test]
fn every_method_moves_pageable_memory_both_ways() {
    let Some((rt, devices)) = runtime() else { return };
    let content = noise(3 * MIB + 1);
    for device in devices {
        let there = rt.alloc::<u8>(device, MemoryKind::Device, content.len()).unwrap();
        let zero_copy = is_mapped(&rt, device).then_some(TransferMethod::ZeroCopy);
        for method in [TransferMethod::DirectCopy, TransferMethod::HostStaged].into_iter().chain(zero_copy) {
            let source = filled(&rt, MemoryKind::Pageable, &content);
            let back = filled(&rt, MemoryKind::Pageable, &vec![0; content.len()]);
            let only = || TransferOptions::new().only(method);
            let up = rt.copy(&source, &there).options(only()).wait().unwrap();
            // Awaited: by a task, whose thread is not kept.
            let down = pollster::block_on(rt.copy(&there, &back).options(only()).into_future()).unwrap();
            assert_eq!((up.method, down.method), (method, method));
            assert!(*back.read().unwrap() == content[..], "{method}");
        }
    }
    assert_drained(&rt);
}

#[test]
fn lists_and_views_go_in_place_where_memory_is_mapped() {
    let Some((rt, devices)) = runtime() else { return };
    const COUNT: usize = 300;
    for device in devices.into_iter().filter(|device| is_mapped(&rt, *device)) {
        let content = noise(COUNT * 4096);
        let source = filled(&rt, MemoryKind::Pageable, &content);
        let there = rt.alloc::<u8>(device, MemoryKind::Device, content.len()).unwrap();
        let back = filled(&rt, MemoryKind::Pageable, &vec![0; content.len()]);
        let page = |of: &Array<u8>, n: usize| of.raw().slice(n * 4096..(n + 1) * 4096).unwrap();
        let pairs = |from: &Array<u8>, to: &Array<u8>, by: usize| -> Vec<_> {
            (0..COUNT).map(|n| (page(from, n), page(to, n * by % COUNT))).collect()
        };
        // 7 * 43 is 1 more than the count.
        let up = rt.manager().copy_many(pairs(&source, &there, 7)).wait().unwrap();
        assert_eq!(up.bytes, content.len() as u64);
        rt.manager().copy_many(pairs(&there, &back, 43)).wait().unwrap();
        assert!(*back.read().unwrap() == content[..]);

        let rows = |stride| StridedLayout::new(100).repeat(1000, stride);
        let only = TransferOptions::new().only(TransferMethod::ZeroCopy);
        let copy = rt.manager().copy_strided((source.raw(), &rows(1000)), (there.raw(), &rows(200)));
        copy.unwrap().options(only).wait().unwrap();
        let found = rt.download(&there).wait().unwrap();
        for (row, bytes) in found.chunks(200).take(1000).enumerate() {
            assert!(bytes[..100] == content[row * 1000..row * 1000 + 100], "row {row}");
        }
        // Dropped while they run.
        drop(rt.copy(&source, &there).submit());
        drop(rt.copy(&there, &back).submit());
        drop((source, there, back));
    }
    assert_drained(&rt);
}

/// Its memory is wgpu's, and not mapped.
#[test]
fn adopted_buffer_goes_by_another_method_than_zero_copy() {
    use transload::wgpu::{WgpuBackend, create_shared_device, wgpu};

    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let Some(adapter) = adapters.last() else { return println!("skipped: no Vulkan adapter") };
    let (device, queue) = create_shared_device(adapter, &wgpu::DeviceDescriptor::default()).unwrap();
    let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer = wgpu::BufferDescriptor { label: None, size: 4 << 20, usage, mapped_at_creation: false };
    let theirs = device.create_buffer(&buffer);
    let backend = WgpuBackend::open(&WgpuBackendConfig::default().with_device(device, queue)).unwrap();
    // SAFETY: the buffer is the device's, and is not destroyed.
    let there = unsafe { backend.adopt_buffer(DeviceId::Wgpu(0), &theirs) }.unwrap();
    let rt = crate::uncalibrated::builder().without("cuda").backend(backend).discover().unwrap();
    let content = noise(there.len());
    let source = filled(&rt, MemoryKind::Pageable, &content);
    let page = |of: &RawBuffer, n: usize| of.slice(n * 4096..(n + 1) * 4096).unwrap();
    let pairs: Vec<_> = (0..8).map(|n| (page(source.raw(), n), page(&there, n))).collect();
    let is_mapped = is_mapped(&rt, DeviceId::Wgpu(0));
    let up = rt.manager().copy(source.raw(), &there).wait().unwrap();
    assert_ne!(up.method, TransferMethod::ZeroCopy);
    assert!(up.rejected.iter().any(|one| one.method == TransferMethod::ZeroCopy), "{up:#}");
    rt.manager().copy_many(pairs).wait().unwrap();
    let back = filled(&rt, MemoryKind::Pageable, &vec![0; content.len()]);
    let awaited = rt.manager().copy(&there, back.raw()).into_future();
    assert_ne!(pollster::block_on(awaited).unwrap().method, TransferMethod::ZeroCopy);
    assert!(*back.read().unwrap() == content[..]);
    let only = rt.manager().copy(source.raw(), &there).method(TransferMethod::ZeroCopy).wait().unwrap_err();
    assert_eq!(only.kind(), ErrorKind::Unsupported, "{only}");
    assert!(only.to_string().contains("not mapped") || !is_mapped, "{only}");
    drop((source, back, there));
    assert_drained(&rt);
}

#[test]
fn runtime_copies_on_the_device_of_a_framework() {
    use transload::wgpu::{create_shared_device, wgpu};

    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN;
    let instance = wgpu::Instance::new(descriptor);
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let Some(adapter) = adapters.first() else { return println!("skipped: no Vulkan adapter") };
    let (device, queue) = create_shared_device(adapter, &wgpu::DeviceDescriptor::default()).unwrap();
    let config = WgpuBackendConfig::default().with_device(device, queue.clone());
    let rt = crate::uncalibrated::builder().without("cuda").wgpu(config).discover().unwrap();
    let content = noise(9 * MIB + 1);
    let there = rt.alloc::<u8>(DeviceId::Wgpu(0), MemoryKind::Device, content.len()).unwrap();
    for method in [TransferMethod::DirectCopy, TransferMethod::HostStaged] {
        let options = TransferOptions::new().only(method);
        rt.copy(&filled(&rt, MemoryKind::Pageable, &content), &there).options(options).wait().unwrap();
        queue.submit([]);
        assert!(*rt.download(&there).wait().unwrap() == content[..], "{method}");
    }
    drop(there);
    assert_drained(&rt);
}

#[cfg(feature = "cuda")]
#[test]
fn cuda_and_wgpu_exchange_bytes() {
    use transload::cuda::{CudaBackend, CudaBackendConfig};

    let test = transload_cuda_sim::harness::device();
    let cuda = DeviceId::Cuda(test.ordinal());
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let rt = crate::uncalibrated::builder()
        .backend(CudaBackend::open(&config).unwrap())
        .wgpu(WgpuBackendConfig::default().with_software_adapters().with_apis(VULKAN))
        .discover()
        .unwrap();
    if let Some((_, reason)) = rt.absent().first() {
        return println!("skipped: {reason}");
    }
    let wgpu = DeviceId::Wgpu(0);
    let is_same = rt.device(cuda).unwrap().uuid == rt.device(wgpu).unwrap().uuid;
    for size in [3, 70_001, 9 * MIB + 5] {
        let content = noise(size);
        let source = rt.host(content.clone()).unwrap();
        let (one, two, three) = (
            rt.alloc::<u8>(cuda, MemoryKind::Device, size).unwrap(),
            rt.alloc::<u8>(wgpu, MemoryKind::Device, size).unwrap(),
            rt.alloc::<u8>(cuda, MemoryKind::Device, size).unwrap(),
        );
        // All are submitted before any is complete: the buffers order them across the two drivers.
        let reports =
            [rt.copy(&source, &one).submit(), rt.copy(&one, &two).submit(), rt.copy(&two, &three).submit()]
                .map(|transfer| transfer.wait().unwrap());
        // Other GPUs', by way of the host.
        if !is_same {
            assert_eq!(reports[1].method, TransferMethod::HostStaged, "{:#}", reports[1]);
            assert_eq!(reports[2].method, TransferMethod::HostStaged, "{:#}", reports[2]);
        }
        assert!(*rt.download(&three).wait().unwrap() == content[..], "{size} bytes");
        // Pinned memory that the other driver made is host memory like any other.
        let pinned = rt.manager().allocate_for(cuda, MemoryKind::Pinned, size).unwrap();
        let pinned = rt.array::<u8>(pinned).unwrap();
        rt.copy(&two, &pinned).wait().unwrap();
        rt.copy(&pinned, &three).wait().unwrap();
        let theirs =
            rt.array::<u8>(rt.manager().allocate_for(wgpu, MemoryKind::Pinned, size).unwrap()).unwrap();
        rt.copy(&three, &theirs).wait().unwrap();
        assert!(*theirs.read().unwrap() == content[..], "{size} bytes");
    }
    assert_drained(&rt);
    drop(rt);
    test.assert_no_live_objects();
    test.assert_no_races();
}

#[cfg(feature = "profiler")]
#[test]
fn profile_times_work_of_a_vulkan_device() {
    use transload::{backend::OperationSampling, profiler::ProfilerOptions};

    let Some((rt, devices)) = runtime() else { return };
    let profiler = rt.profile(ProfilerOptions::new().sampling(OperationSampling::ALL)).unwrap();
    if let Some(left_out) = profiler.get_comprehensive_report().unavailable.first() {
        return println!("skipped: {left_out}");
    }
    let there = rt.alloc::<u8>(devices[0], MemoryKind::Device, 5 * MIB).unwrap();
    let pinned = filled(&rt, MemoryKind::Pinned, &noise(5 * MIB));
    for _ in 0..3 {
        rt.copy(&pinned, &there).wait().unwrap();
    }
    let report = profiler.get_comprehensive_report();
    let timed: u64 = report.directions.iter().map(|direction| direction.timed_bytes).sum();
    assert_eq!(timed, 15 * MIB as u64, "{report}");
}

/// wgpu's own interface has no timestamps here.
#[cfg(feature = "profiler")]
#[test]
fn device_that_cannot_be_profiled_does_not_stop_the_others() {
    use transload::{backend::OperationSampling, profiler::ProfilerOptions};

    let config = WgpuBackendConfig::default().with_software_adapters().with_portable_vulkan();
    let rt = crate::uncalibrated::builder().without("cuda").wgpu(config).discover().unwrap();
    let Ok(info) = rt.device(DeviceId::Wgpu(0)) else {
        return println!("skipped: {}", rt.explain(DeviceId::Wgpu(0)));
    };
    let profiler = rt.profile(ProfilerOptions::new().sampling(OperationSampling::ALL)).unwrap();
    let (src, there) =
        (rt.zeros::<u8>(5 * MIB).unwrap(), rt.alloc::<u8>(info.id, MemoryKind::Device, 5 * MIB));
    rt.copy(&src, &rt.zeros::<u8>(5 * MIB).unwrap()).wait().unwrap();
    rt.copy(&src, &there.unwrap()).wait().unwrap();
    let report = profiler.get_comprehensive_report();
    let timed = |device| {
        let of = report.directions.iter().filter(|direction| direction.device == device);
        of.map(|direction| direction.timed_bytes).sum::<u64>()
    };
    assert_eq!((timed(DeviceId::Cpu), timed(info.id)), (5 * MIB as u64, 0), "{report}");
    assert_eq!(report.unavailable.first().map(|one| one.device), Some(info.id));
    assert!(report.to_string().contains("wgpu:0: unavailable: "), "{report}");
    // Transfers need no timestamps.
    assert!(report.paths.iter().any(|path| path.path.dst.device == info.id), "{report}");
}

#[cfg(feature = "calibration")]
#[test]
fn calibration_measures_paths_of_a_vulkan_device() {
    use transload::calibration::CalibrationOptions;

    let Some((rt, devices)) = runtime() else { return };
    let _alone = crate::calibration::alone();
    let options = CalibrationOptions::new().largest(64 << 10).budget(std::time::Duration::from_secs(60));
    let found = rt.calibrate(&options).unwrap();
    assert!(found.calibration.unfinished.is_empty(), "{:?}", found.calibration.unfinished);
    let there = Place::new(devices[0], MemoryKind::Device);
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
        let host = Place::new(DeviceId::Cpu, kind);
        for (src, dst) in [(host, there), (there, host)] {
            assert_eq!(rt.plan(src, dst, 4096).unwrap().basis, CostBasis::Measured, "{src} to {dst}");
        }
    }
}

/// They are used by wgpu's own interface, and have no pinned memory.
#[cfg(target_os = "linux")]
#[test]
fn devices_of_opengl_copy_any_memory_of_the_host_directly() {
    let config =
        WgpuBackendConfig::default().with_software_adapters().with_apis(transload::wgpu::wgpu::Backends::GL);
    let rt = crate::uncalibrated::builder().without("cuda").wgpu(config).discover().unwrap();
    let Ok(info) = rt.device(DeviceId::Wgpu(0)) else {
        return println!("skipped: {}", rt.explain(DeviceId::Wgpu(0)));
    };
    assert_eq!(info.kinds, [MemoryKind::Device]);
    let content = noise(5 * MIB + 3);
    let source = filled(&rt, MemoryKind::Pageable, &content);
    let there = rt.alloc::<u8>(info.id, MemoryKind::Device, content.len() + 64).unwrap();
    let back = filled(&rt, MemoryKind::Pageable, &vec![0; content.len()]);
    let range = there.slice(7..7 + content.len()).unwrap();
    let up = rt.copy(&source, &range).wait().unwrap();
    let down = rt.copy(&range, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    for report in [up, down] {
        assert_eq!((report.method, report.lane), (TransferMethod::DirectCopy, info.id), "{report:#}");
    }
    drop((source, there, back, range));
    assert_drained(&rt);
}

/// A device of a framework with default limits has 256 MiB in one buffer.
#[cfg(feature = "safetensors")]
#[test]
fn model_beyond_the_largest_allocation_is_loaded_in_segments() {
    use transload::{
        CrossBackendTransferManager,
        cpu::CpuBackend,
        load::LoadOptions,
        wgpu::{WgpuBackend, wgpu},
    };

    use crate::load::{Model, OnDisk};

    let instance = wgpu::Instance::default();
    let adapters = transload_executor::block_on(instance.enumerate_adapters(VULKAN)).unwrap();
    let Some(adapter) = adapters.into_iter().next() else {
        assert!(std::env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none());
        println!("skipped: no Vulkan adapter");
        return;
    };
    let mut required_limits = wgpu::Limits::downlevel_defaults();
    (required_limits.max_buffer_size, required_limits.max_storage_buffer_binding_size) = (8 << 20, 8 << 20);
    let descriptor = wgpu::DeviceDescriptor { required_limits, ..wgpu::DeviceDescriptor::default() };
    let opened = transload_executor::block_on(adapter.request_device(&descriptor)).unwrap();
    let (device, queue) = opened.unwrap();
    let manager = CrossBackendTransferManager::builder().build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    // SAFETY: no surface is configured for it, and wgpu's queue is not used.
    let config = unsafe { WgpuBackendConfig::default().with_foreign_device(device, queue) };
    let backend = WgpuBackend::open(&config).unwrap();
    let device = transload::backend::Backend::devices(&*backend)[0].id;
    manager.register_backend(backend).unwrap();
    let place = Place::new(device, MemoryKind::Device);
    let model = Model::of_sizes(&[5_000_000, 5_000_000, 2_500_000]);
    let disk = OnDisk::new(&model.file());
    for (alignment, segments) in [(256, 2), (2 << 20, 3)] {
        let loaded =
            transload::load::load(&manager, disk.path(), &LoadOptions::new(place).alignment(alignment));
        let loaded = loaded.unwrap();
        assert_eq!(loaded.segments().len(), segments);
        model.assert_is(&loaded, 1, |buffer| {
            let here = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, buffer.len()).unwrap();
            manager.copy(buffer, &here).wait().unwrap();
            here.read().unwrap().to_vec()
        });
    }
    // One that does not fit is refused with the limit.
    let disk = OnDisk::new(&Model::of_sizes(&[9 << 20]).file());
    let error = transload::load::load(&manager, disk.path(), &LoadOptions::new(place)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    manager.drain().unwrap();
}
