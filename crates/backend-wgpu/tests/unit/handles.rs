//! What wgpu keeps of a submission: its queue has the buffers of the last one until it is polled.

use std::sync::Arc;

use transload_core::{Access, Backend as _, ErrorKind, MemoryKind};

use crate::{
    WgpuBackend, setup,
    vulkan::{DeviceState, faults},
};

/// Fills a buffer by wgpu, which takes longer than to submit it, waits, and drops it.
fn use_and_drop(backend: &WgpuBackend, state: &DeviceState) {
    let device = backend.device(state.id()).unwrap();
    let buffer = backend.allocate(state.id(), MemoryKind::Device, 32 << 20).unwrap();
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let handle = backend.buffer(&buffer).unwrap();
    (0..20).for_each(|_| encoder.clear_buffer(&handle, 0, None));
    let uses = [(&buffer, Access::Write)];
    backend.submit(state.id(), [encoder.finish()], &uses).unwrap().wait().unwrap();
}

#[test]
fn device_goes_with_its_backend_after_a_submission() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    use_and_drop(&backend, &state);
    let vulkan = Arc::downgrade(&state.queue.vulkan);
    drop((state, backend));
    assert!(vulkan.upgrade().is_none());
}

#[test]
fn memory_of_the_last_submission_is_freed_if_memory_is_short() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    use_and_drop(&backend, &state);
    let _retries = state.reclaim();
    let counts = backend.resource_counts();
    assert_eq!(counts.bytes - counts.cached_bytes, 0, "{counts}");
}

/// The default handler of a framework's device panics.
#[test]
fn adopting_a_buffer_without_memory_is_an_error() {
    let Some(adapter) = setup::adapter() else { return };
    let (device, queue) = crate::create_shared_device(&adapter, &wgpu::DeviceDescriptor::default()).unwrap();
    let config = crate::WgpuBackendConfig::default().with_device(device.clone(), queue);
    let backend = WgpuBackend::open(&config).unwrap();
    let state = backend.states().remove(0);
    let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let descriptor = wgpu::BufferDescriptor { label: None, size: 64, usage, mapped_at_creation: false };
    let buffer = device.create_buffer(&descriptor);
    faults::refuse_buffers(state.queue.vulkan.raw.handle());
    // SAFETY: it is a buffer of the device, and not destroyed.
    let refused = unsafe { backend.adopt_buffer(state.id(), &buffer) }.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
}
