//! A backend with cached memory, and foreign work that completes when the test says so.

#[path = "../../../core/tests/shared/gate.rs"]
mod gate;

use std::{sync::Arc, time::Duration};

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend, DeviceId, RawBuffer};
use transload_cuda_sim::harness::{EndCheck, TestDevice};

pub(crate) use gate::Gate as Elsewhere;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn open(test: &TestDevice) -> (Arc<CudaBackend>, DeviceId) {
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    (CudaBackend::open(&config).unwrap(), DeviceId::Cuda(test.ordinal()))
}

pub(crate) fn finish(end: EndCheck, backend: Arc<CudaBackend>) {
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    drop(backend);
    // At once: the end's own check would find what was left to other reclaimers.
    end.assert_no_live_objects();
}

pub(crate) fn address(buffer: &RawBuffer) -> u64 {
    buffer.device_address().unwrap_or_else(|| buffer.host_address().unwrap().addr().get() as u64)
}

/// Fails instead of hanging.
pub(crate) fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if is_done.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("no end after a minute");
    }
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}
