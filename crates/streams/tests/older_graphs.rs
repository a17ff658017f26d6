//! Drivers before CUDA 12 update a graph by an older call; those before 11.4 cannot instantiate one. A program of its own,
//! since a process has one driver.
#![cfg(any(target_os = "linux", windows))]

use transload_core::{MemoryKind, Operation, Pattern, StreamPriority};
use transload_cuda_sim::{DriverOptions, SimDevice, install_with};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaGraph, CudaGraphUpdate, CudaStream};

#[test]
fn graph_is_updated_by_the_call_that_the_driver_has() {
    let driver = DriverOptions::default().version(11_080).missing("cuGraphExecUpdate_v2");
    install_with(driver).unwrap();
    let sim = SimDevice::builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (there, back) = (
        memory.allocate(MemoryKind::Device, 100).unwrap(),
        memory.allocate(MemoryKind::Pinned, 100).unwrap(),
    );
    let fill = |value| Operation::Fill { dst: &there, pattern: Pattern::U8(value) };
    let mut graph = CudaGraph::record(&device, StreamPriority::Normal, &[fill(1)]).unwrap();
    assert_eq!(graph.update(&[fill(2)]).unwrap(), CudaGraphUpdate::InPlace);
    graph.launch(&stream).unwrap();
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 2));
    let down = Operation::Copy { src: &there, dst: &back };
    let rebuilt = graph.update(&[fill(3), down]).unwrap();
    let because = "the graphs' nodes or edges differ".to_owned();
    assert_eq!(rebuilt, CudaGraphUpdate::Rebuilt { because });
    graph.launch(&stream).unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
}
