//! Context errors of small copies: those of another context are ignored, those of the own one returned once.

use transload_core::{ErrorKind, MemoryKind};
use transload_cuda_sys::{Context, Device, trace};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use crate::{ILLEGAL_ADDRESS, UNKNOWN, builder};

const COPY: &str = "cuMemcpyHtoDAsync_v2";

#[test]
fn small_copy_ignores_another_devices_lost_context() {
    let (sim, lost) = (builder().build(), builder().build());
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (src, dst) = (memory.allocate(MemoryKind::Pinned, 64), memory.allocate(MemoryKind::Device, 64));
    let (src, dst) = (src.unwrap(), dst.unwrap());
    let context = Device::new(lost.ordinal()).and_then(Context::primary).unwrap();
    let bound = context.enter().unwrap();
    lost.poison(ILLEGAL_ADDRESS);
    for _ in 0..3 {
        stream.copy_from_host_async(&src, &dst).wait().unwrap();
    }
    drop(bound);
}

#[test]
fn small_copy_refused_by_its_own_context_is_not_retried() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (src, dst) = (memory.allocate(MemoryKind::Pinned, 64), memory.allocate(MemoryKind::Device, 64));
    let (src, dst) = (src.unwrap(), dst.unwrap());
    let context = Device::new(sim.ordinal()).and_then(Context::primary).unwrap();
    let _bound = context.enter().unwrap();
    stream.copy_from_host_async(&src, &dst).wait().unwrap();
    sim.fail_call(Some(COPY), 1, UNKNOWN);
    let trace = trace::start();
    let refused = stream.copy_from_host_async(&src, &dst);
    let calls = trace.calls_of_this_thread();
    assert_eq!(refused.wait().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(calls.iter().filter(|call| call.name == COPY).count(), 1, "{calls:?}");
    stream.copy_from_host_async(&src, &dst).wait().unwrap();
}
