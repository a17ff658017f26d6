//! Copies through staging buffers when no memory is left for a second one.

use std::sync::atomic::Ordering;

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};

use super::CAPACITY;
use crate::setup;

#[test]
fn one_staging_buffer_is_enough_for_any_copy() {
    let Some(backend) = setup::backend() else { return };
    let (host, state) = (CpuBackend::new().unwrap(), backend.states().remove(0));
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let bytes = 5 * CAPACITY + 7;
    let on_host = || host.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    let (src, back) = (on_host(), on_host());
    let there = backend.allocate(state.id(), MemoryKind::Device, bytes).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer| {
        submit(&*queue, &Operation::Copy { src, dst }, Timing::Off).unwrap().wait().unwrap();
    };
    // The one buffer.
    copy(&there.slice(..1).unwrap(), &src.slice(..1).unwrap());
    state.wgpu.staging.is_refused.store(true, Ordering::Relaxed);
    for value in [1, 2] {
        src.write().unwrap().fill(value);
        copy(&src, &there);
        copy(&there, &back);
        assert!(back.read().unwrap().iter().all(|byte| *byte == value));
    }
    assert_eq!(state.wgpu.staging.bytes(), CAPACITY as u64);
}
