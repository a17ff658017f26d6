//! A graph keeps the built-in kernels that it launches loaded.

use transload_core::{MemoryKind, Operation, Pattern, StreamPriority};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaGraph, CudaStream};

use crate::builder;

#[test]
fn graph_keeps_its_fill_kernels_loaded() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let [there, back] =
        [MemoryKind::Device, MemoryKind::Pinned].map(|kind| memory.allocate(kind, 4096).unwrap());
    let pattern = Pattern::U64(0x0102_0304_0506_0708);
    let work = [Operation::Fill { dst: &there, pattern }, Operation::Copy { src: &there, dst: &back }];
    let graph = CudaGraph::record(&device, StreamPriority::Normal, &work).unwrap();
    assert_eq!(sim.live_objects().modules, 1, "its streams are dropped, the kernels are loaded");
    let stream = CudaStream::new(&device).unwrap();
    graph.launch(&stream).unwrap().wait().unwrap();
    assert!(back.read().unwrap().chunks(8).all(|chunk| *chunk == pattern.repeated()[..8]));
    drop((graph, stream, there, back));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}
