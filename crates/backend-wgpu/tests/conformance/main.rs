//! Core's conformance suite passes on every Vulkan adapter of the machine, such as Mesa's lavapipe.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]
#![cfg(any(target_os = "linux", windows))]

#[path = "../it/framework.rs"]
mod framework;

use std::{
    env,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use ash::vk;

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{
    Access, Backend, ErrorKind, MemoryKind, Operation, StreamPriority, Timing, WorkloadType,
    conformance::{self, Subject, Verdict},
    submit,
};

use self::framework::Framework;

/// Checks of what this backend does not offer.
const NOT_OFFERED: [&str; 6] = ["prefetch", "casts", "peers", "sharing", "recordings", "held-fences"];
/// Checks of what some drivers do not offer: how much memory is free, timestamps of 64 bits, memory that is the host's.
const BY_DRIVER: [&str; 7] =
    ["memory-info", "durations", "stamps", "records", "sampling", "sinks", "in-place"];

#[test]
fn every_adapter_keeps_every_promise_of_a_backend() {
    let backend = match WgpuBackend::open(&WgpuBackendConfig::default().with_software_adapters()) {
        Ok(backend) => backend,
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    check_all(&backend);
}

#[test]
fn adopted_devices_keep_every_promise_of_a_backend() {
    for framework in framework::frameworks() {
        check_all(&WgpuBackend::open(&framework.config).unwrap());
    }
}

fn check_all(backend: &Arc<WgpuBackend>) {
    for device in backend.devices() {
        println!("{} is {} with {}", device.id, device.name, device.driver);
        let subject = Subject::new(Arc::clone(backend) as _, device.id, CpuBackend::new().unwrap());
        let mut begun = Instant::now();
        let outcome = conformance::run_all(&subject, |check, result| {
            let verdict = match result {
                Ok(Verdict::Passed) => "passed".to_owned(),
                Ok(Verdict::NotApplicable(reason)) => format!("not applicable: {reason}"),
                Err(failure) => format!("FAILED: {failure}"),
            };
            println!("  {:<20} {verdict} ({:.0?})", check.name, begun.elapsed());
            begun = Instant::now();
        });
        println!("{outcome}");
        assert!(outcome.is_ok(), "{outcome}");
        let names = outcome.not_applicable().map(|(name, _)| name);
        let skipped: Vec<_> = names.filter(|name| !BY_DRIVER.contains(name)).collect();
        assert_eq!(skipped, NOT_OFFERED);
    }
}

/// wgpu submits by itself then. The layer reports two threads that use the queue at once.
#[test]
fn buffers_mapped_at_creation_are_mapped_while_another_thread_submits() {
    let Ok(backend) = WgpuBackend::open(&WgpuBackendConfig::default().with_software_adapters()) else {
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

/// Names the layer for the loader, and makes the child plant a fault.
const LAYERS: &str = "VK_INSTANCE_LAYERS";

/// Runs the tests above in a child under Khronos' validation layer, which also checks barriers. Only counts if the layer reports the
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
    assert!(output.status.success() && text.contains("5 passed"), "{text}");
    let mut reported: Vec<_> = text
        .lines()
        .filter(|line| line.contains("Validation Error") || line.contains("SYNC-HAZARD"))
        .collect();
    let all = reported.len();
    reported.retain(|line| !line.contains(PLANTED));
    if all == reported.len() {
        return println!(
            "skipped: the validation layer is missing; on Debian install vulkan-validationlayers"
        );
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
