//! Staging buffers whose mapping wgpu gives up.

use std::{any::Any, sync::Arc};

use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType,
    submit,
};

use super::super::DeviceState;
use crate::{WgpuBackend, WgpuBackendConfig, setup};

/// Returns a device that is used by wgpu's own interface.
fn portable() -> Option<(Arc<WgpuBackend>, Arc<DeviceState>)> {
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN);
    let backend = match WgpuBackend::open(&config.with_portable_vulkan()) {
        Ok(backend) => backend,
        Err(reason) => {
            setup::skip(reason);
            return None;
        }
    };
    let device: Arc<dyn Any + Send + Sync> = Arc::clone(&backend.devices[0]) as _;
    Some((backend, device.downcast().unwrap()))
}

#[test]
fn aborted_mapping_fails_the_copies_that_need_it_and_no_later_one() {
    const BYTES: usize = 64;
    let Some((backend, state)) = portable() else { return };
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

/// A framework's handler of errors, which may panic, hears nothing of the copies that the loss ends.
#[test]
fn destroyed_device_ends_copies_without_the_handler_of_its_errors() {
    for is_upload in [true, false] {
        let Some((backend, state)) = portable() else { return };
        let (queue, staging) = (&state.queue, &state.staging);
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let to = Arc::clone(&heard);
        queue.device.on_uncaptured_error(Arc::new(move |error| to.lock().push(error.to_string())));
        let destroy = || {
            queue.device.destroy();
            // Destroys its buffers, too.
            queue.device.poll(wgpu::PollType::Poll).unwrap();
        };
        let outcome = if is_upload {
            let upload = staging.upload(queue, &state.counters).unwrap();
            destroy();
            upload.unmap(queue).map(drop)
        } else {
            let mut download = staging.download(queue, &state.counters).unwrap();
            let mut point = 0;
            queue.submit(Vec::new(), |_| {}, |taken| point = taken).unwrap();
            download.map_after(point);
            download.read(queue, |_| destroy())
        };
        assert_eq!(heard.lock()[..], [""; 0], "{is_upload}");
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::DeviceLost, "{is_upload}");
        drop(backend);
    }
}
