//! A drain waits for deferred frees. A process of its own: deferrals apply to all of it.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use transload_backend_cpu::CpuBackend;
use transload_core::Backend;

#[test]
fn drain_ends_registrations_after_the_last_deferral() {
    let test = transload_cuda_sim::harness::device().end_check();
    let config = transload_backend_cuda::CudaBackendConfig::default().with_devices([test.ordinal()]);
    let cuda = transload_backend_cuda::CudaBackend::open(&config).unwrap();
    let cpu = CpuBackend::new().unwrap();
    drop(cuda.register(&cpu.wrap_vec(vec![0_u8; 1 << 20])).unwrap());
    let deferral = transload_memory::FreeDeferral::begin();
    let (done, drained) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(cuda.drain().map(|()| cuda.resource_counts())).unwrap());
        assert!(drained.recv_timeout(std::time::Duration::from_millis(100)).is_err(), "a deferral is left");
        drop(deferral);
        assert!(drained.recv().unwrap().unwrap().is_empty());
    });
    assert!(cpu.resource_counts().is_empty());
}
