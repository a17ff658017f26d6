//! What is submitted beneath wgpu, also under Khronos' validation layer.

#[path = "../it/framework.rs"]
pub(crate) mod framework;
#[path = "../it/layer.rs"]
pub(crate) mod layer;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{Access, Backend, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit};

use self::framework::{Framework, skip};
use crate::check_all;

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
