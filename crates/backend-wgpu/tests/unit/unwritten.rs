//! Commands whose jobs cannot be written before them.

use std::{any::Any, sync::Arc};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType,
    submit,
};

use super::super::DeviceState;
use crate::{WgpuBackend, WgpuBackendConfig, api::ApiDevice, setup};

#[test]
fn commands_do_not_run_if_what_they_read_is_not_written() {
    const BYTES: usize = 64;
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN);
    let backend = match WgpuBackend::open(&config.with_portable_vulkan()) {
        Ok(backend) => backend,
        Err(reason) => return setup::skip(reason),
    };
    let device: Arc<dyn Any + Send + Sync> = Arc::clone(&backend.devices[0]) as _;
    let state: Arc<DeviceState> = device.downcast().unwrap();
    let lease = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let host = CpuBackend::new().unwrap().allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer| {
        submit(&*lease, &Operation::Copy { src, dst }, Timing::Off).unwrap().wait().unwrap();
    };
    let [src, dst] = [1, 2].map(|byte| {
        let buffer = backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
        host.write().unwrap().fill(byte);
        copy(&host, &buffer);
        buffer
    });
    let [from, to] = [&src, &dst].map(|buffer| state.wgpu_buffer(buffer).unwrap().unwrap());
    // With writes of the jobs in the buffer, and beyond its end, which wgpu refuses.
    for (at, expected) in [(BYTES as u64, 2), (0, 3)] {
        let mut encoder =
            state.queue.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&from, 0, &to, 0, BYTES as u64);
        let (commands, mut point) = (vec![encoder.finish()], 0);
        let write = |queue: &wgpu::Queue| queue.write_buffer(&from, at, &[3; BYTES]);
        let submitted = state.queue.submit(commands, write, |taken| point = taken);
        if at > 0 {
            assert_eq!(submitted.unwrap_err().kind(), ErrorKind::InvalidArgument);
            // It was published before.
            assert!(point > 0 && state.queue.reached() >= point && state.queue.outcome(point).is_ok());
        } else {
            submitted.unwrap();
        }
        copy(&dst, &host);
        assert_eq!(*host.read().unwrap(), [expected; BYTES]);
    }
    drop((src, dst, host, from, to, lease));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
