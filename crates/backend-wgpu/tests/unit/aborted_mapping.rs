//! Staging buffers whose mapping wgpu gives up.

use std::{any::Any, sync::Arc};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType,
    submit,
};

use super::super::DeviceState;
use crate::{WgpuBackend, WgpuBackendConfig, setup};

#[test]
fn aborted_mapping_fails_the_copies_that_need_it_and_no_later_one() {
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
    let there = backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer| {
        submit(&*lease, &Operation::Copy { src, dst }, Timing::Off).and_then(|fence| fence.wait())
    };
    let write = |byte| {
        host.write().unwrap().fill(byte);
        copy(&host, &there)
    };
    let assert_holds = |byte| {
        host.write().unwrap().fill(0);
        copy(&there, &host).unwrap();
        assert_eq!(*host.read().unwrap(), [byte; BYTES]);
    };
    write(1).unwrap();
    // Ends a mapping that is under way, as wgpu does where memory is short.
    state.staging.uploads.lock().iter().for_each(|staging| staging.storage.buffer.unmap());
    let error = write(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("a buffer is not mapped"), "{error}");
    assert_holds(1);
    write(3).unwrap();
    assert_holds(3);

    let mut download = state.staging.download(&state.queue, &state.counters).unwrap();
    let mut point = 0;
    state.queue.submit(Vec::new(), |_| {}, |taken| point = taken).unwrap();
    download.map_after(point);
    download.buffer().unmap();
    let error = download.read(&state.queue, |_| unreachable!("nothing is mapped")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert_holds(3);
    drop((download, host, there, lease));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
