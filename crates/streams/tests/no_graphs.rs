//! Recording on a driver without graphs is a typed error, and everything else works.
#![cfg(any(target_os = "linux", windows))]

use transload_core::{ErrorKind, MemoryKind, Operation, Pattern, StreamPriority};
use transload_cuda_sim::{DriverOptions, SimDevice, install_with};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaGraph, CudaStream};

#[test]
fn recording_without_graph_instantiation_is_unsupported() {
    install_with(DriverOptions::default().version(11_020).missing("cuGraphInstantiateWithFlags")).unwrap();
    let sim = SimDevice::builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 100).unwrap();
    let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(1) };
    let error = CudaGraph::record(&device, StreamPriority::Normal, &[fill]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingFunction);
    assert!(error.to_string().contains("cuGraphInstantiateWithFlags"), "{error}");
    stream.memset_async(&there, Pattern::U8(1)).wait().unwrap();
    drop((there, stream));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}
