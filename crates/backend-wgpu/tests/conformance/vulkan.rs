//! What is submitted beneath wgpu, under Khronos' validation layer.

#[path = "../it/framework.rs"]
mod framework;

use std::{
    env,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use ash::vk;

use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{Access, Backend, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit};

use self::framework::Framework;
use crate::{LAYERS, check_all};

#[test]
fn adopted_devices_keep_every_promise_of_a_backend() {
    for framework in framework::frameworks() {
        check_all(&WgpuBackend::open(&framework.config).unwrap());
    }
}

/// wgpu submits by itself then. The layer reports two threads that use the queue at once.
#[test]
fn buffers_mapped_at_creation_are_mapped_while_another_thread_submits() {
    let Ok(backend) = WgpuBackend::open(
        &WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN),
    ) else {
        return;
    };
    let id = backend.devices().pop().unwrap().id;
    let device = backend.device(id).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                let buffer = device.create_buffer(&wgpu::BufferDescriptor {
                    label: None,
                    size: 64,
                    usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: true,
                });
                buffer.unmap();
                buffer.map_async(wgpu::MapMode::Read, .., |_| {});
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let queue = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        while !is_over.load(Ordering::Relaxed) {
            drop(queue.stamp());
            let encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            backend.submit(id, [encoder.finish()], &[]).unwrap().wait().unwrap();
        }
    });
}

/// The layer reports two threads that use the queue at once, also what uses memory that is freed.
#[test]
fn framework_submits_while_another_thread_copies() {
    for Framework { device, queue, config } in framework::frameworks() {
        let backend = WgpuBackend::open(&config).unwrap();
        let id = backend.devices()[0].id;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                    queue.submit([encoder.finish()]);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let lease = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Memory).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let allocate = |kind| backend.allocate(id, kind, 100).unwrap();
                let (src, dst) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device));
                let copied = submit(&*lease, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
                backend.fence(id, &[(&dst, Access::Write)]).unwrap().wait().unwrap();
                copied.wait().unwrap();
            }
        });
        backend.drain().unwrap();
        assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    }
}

/// Runs all tests in a child under Khronos' validation layer, which also checks barriers. Only counts if the layer reports the
/// planted fault.
#[test]
fn validation_layer_reports_only_the_planted_fault() {
    if env::var_os(LAYERS).is_some() {
        return plant_fault();
    }
    let synchronization = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT";
    let output = Command::new(env::current_exe().unwrap())
        .args(["--test-threads", "1", "--nocapture"])
        .envs([(LAYERS, "VK_LAYER_KHRONOS_validation"), ("VK_LAYER_ENABLES", synchronization)])
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("passed; 0 failed") && !text.contains("running 0 tests"),
        "{text}"
    );
    let mut reported: Vec<_> = text
        .lines()
        .filter(|line| line.contains("Validation Error") || line.contains("SYNC-HAZARD"))
        .collect();
    let all = reported.len();
    reported.retain(|line| !line.contains(PLANTED));
    if all == reported.len() {
        return framework::skip("the validation layer is missing; on Debian install vulkan-validationlayers");
    }
    assert!(reported.is_empty(), "{}", reported.join("\n"));
}

/// What the layer says of a buffer of 0 bytes.
const PLANTED: &str = "VUID-VkBufferCreateInfo-size-00912";

/// Creates such a buffer on the first device.
fn plant_fault() {
    let Ok(entry) = (
        // SAFETY: as for the backend, which loads it too.
        unsafe { ash::Entry::load() }
    ) else {
        return;
    };
    // SAFETY: the calls are valid except for the planted one, which no driver is known to mind; all that is made is destroyed.
    unsafe {
        let Ok(instance) = entry.create_instance(&vk::InstanceCreateInfo::default(), None) else { return };
        if let Some(physical) =
            instance.enumerate_physical_devices().ok().and_then(|all| all.first().copied())
        {
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
            let device = instance.create_device(physical, &info, None).unwrap();
            let info = vk::BufferCreateInfo::default().usage(vk::BufferUsageFlags::TRANSFER_SRC);
            if let Ok(buffer) = device.create_buffer(&info, None) {
                device.destroy_buffer(buffer, None);
            }
            device.destroy_device(None);
        }
        instance.destroy_instance(None);
    }
}
