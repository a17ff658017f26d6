//! Allocations, and copies through staging buffers, when memory is short.

use std::sync::atomic::Ordering;

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType,
    submit,
};

use super::CAPACITY;
use crate::{setup, vulkan::faults};

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

#[test]
fn without_a_staging_buffer_a_copy_is_refused_and_changes_nothing() {
    let Some(backend) = setup::backend() else { return };
    let (host, state) = (CpuBackend::new().unwrap(), backend.states().remove(0));
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let bytes = 2 * CAPACITY + 7;
    let on_host = |value| {
        let buffer = host.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
        buffer.write().unwrap().fill(value);
        buffer
    };
    let there = backend.allocate(state.id(), MemoryKind::Device, bytes).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer| {
        submit(&*queue, &Operation::Copy { src, dst }, Timing::Off).and_then(|fence| fence.wait())
    };
    let refuse = |refuses| state.wgpu.staging.is_refused.store(refuses, Ordering::Relaxed);
    let (first, second, back) = (on_host(1), on_host(2), on_host(3));
    copy(&first, &there).unwrap();
    state.wgpu.staging.release(&state.wgpu.queue);
    refuse(true);
    for (src, dst) in [(&second, &there), (&there, &back)] {
        let error = copy(src, dst).unwrap_err();
        assert_eq!((error.kind(), error.is_partial()), (ErrorKind::OutOfMemory, false), "{error}");
    }
    assert!(back.read().unwrap().iter().all(|byte| *byte == 3));
    refuse(false);
    copy(&there, &back).unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 1));
    drop((there, queue));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

#[test]
fn allocation_that_the_driver_refuses_is_out_of_memory_with_the_numbers() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    faults::refuse_buffers(state.queue.vulkan.raw.handle());
    let bytes = 20 << 20;
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let error = backend.allocate(state.id(), kind, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let shortage = error.memory_shortage().unwrap();
        assert!(shortage.requested == bytes as u64 && shortage.total.is_some(), "{shortage:?}");
    }
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
