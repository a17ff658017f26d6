//! What wgpu keeps of a submission: its queue has the buffers of the last one until it is polled.

use std::sync::Arc;

use transload_core::{Access, Backend as _, MemoryKind};

use crate::{WgpuBackend, setup, vulkan::DeviceState};

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
