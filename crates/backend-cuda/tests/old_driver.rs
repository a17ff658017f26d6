//! Core's conformance suite on the oldest supported driver: CUDA 11.0.
#![cfg(any(target_os = "linux", windows))]

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    DeviceId,
    conformance::{self, Subject},
};
use transload_cuda_sim::{DriverOptions, SimDevice, implemented, install_with};

#[test]
fn the_oldest_driver_keeps_every_promise() {
    let mut options = DriverOptions::default().version(11_000);
    // Memory pools came with 11.2, what recordings need with 11.4, places by type and number with 12.2.
    let newer = |name: &&&str| {
        [
            "MemPool",
            "AllocAsync",
            "FreeAsync",
            "cuGraphInstantiateWithFlags",
            "cuGraphExecUpdate_v2",
            "cuMemAdvise_v2",
            "cuMemPrefetchAsync_v2",
        ]
        .iter()
        .any(|part| name.contains(part))
    };
    for name in implemented().iter().filter(newer) {
        options = options.missing(name);
    }
    install_with(options).expect("first");
    let sim = SimDevice::builder().memory_pools(false).record_accesses(true).build();
    let config = CudaBackendConfig::default().with_devices([sim.ordinal()]);
    let backend = CudaBackend::open(&config).expect("11.0 is new enough");
    let host = CpuBackend::new().expect("threads");
    let subject = Subject::new(Arc::clone(&backend) as _, DeviceId::Cuda(sim.ordinal()), host);
    let outcome = conformance::backend(&subject);
    println!("CUDA 11.0, simulated: {outcome}");
    assert!(outcome.is_ok(), "{outcome}");
    drop((subject, backend));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
}
