//! Drivers of CUDA 12.8 and 12.9 have the older form of the call for many copies. A program of its own, since a process has one driver.
#![cfg(any(target_os = "linux", windows))]

use transload_core::{MemoryKind, Operation, Timing, submit};
use transload_cuda_sim::{DriverOptions, SimDevice, install_with};
use transload_cuda_sys::trace;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

#[test]
fn batch_is_made_by_the_call_that_the_driver_has() {
    install_with(DriverOptions::default().version(12_080).missing("cuMemcpyBatchAsync_v2")).unwrap();
    let sim = SimDevice::builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let [host, there, back] = [MemoryKind::Pinned, MemoryKind::Device, MemoryKind::Pinned]
        .map(|kind| memory.allocate(kind, 100).unwrap());
    host.write().unwrap().iter_mut().zip(0..).for_each(|(byte, index)| *byte = index);
    let bounds = |index: usize| index * 10..index * 10 + 10;
    let pairs: Vec<_> = (0..10)
        .map(|index| (host.slice(bounds(index)).unwrap(), there.slice(bounds(9 - index)).unwrap()))
        .collect();
    let trace = trace::start();
    submit(&stream, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    let calls = trace.calls_of_this_thread();
    assert_eq!(calls.iter().filter(|call| call.name == "cuMemcpyBatchAsync").count(), 1, "{calls:?}");
    assert!(calls.iter().all(|call| call.name != "cuMemcpyHtoDAsync_v2"), "{calls:?}");
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    let view = back.read().unwrap();
    for index in 0..10 {
        assert!(view[bounds(9 - index)].iter().copied().eq(bounds(index).map(|byte| byte as u8)));
    }
}
