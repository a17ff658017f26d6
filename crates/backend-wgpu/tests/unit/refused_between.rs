//! Submissions of copies between CUDA's memory and the device's that the driver refuses. On the software driver and llvmpipe.

use std::sync::Arc;

use ash::vk;
use transload_core::{
    Backend, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};
use transload_cuda_sim::harness;
use transload_memory::{CudaDevice, CudaMemoryManager};

use crate::{setup, vulkan::faults};

#[path = "../it/exported.rs"]
mod exported;

const BYTES: usize = 1 << 20;

#[test]
fn refused_part_of_vulkan_is_the_copys_error_and_marks_what_it_wrote() {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    // SAFETY: mappings stay.
    let test = harness::device_like(|builder| unsafe {
        builder.uuid(state.info.uuid).total_memory(2 << 30).external_memory(exported::open)
    });
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&cuda).unwrap());
    let connected = Arc::clone(&memory);
    match backend.connect_cuda(&cuda, move || Ok(Arc::clone(&connected))) {
        Err(error) if error.kind() == ErrorKind::UnknownDevice => return println!("skipped: {error}"),
        connected => assert_eq!(connected.unwrap(), state.id()),
    }
    let theirs = memory.allocate(MemoryKind::Device, BYTES).unwrap();
    let ours = backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
    let host = backend.allocate(state.id(), MemoryKind::Pinned, BYTES).unwrap();
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer, timing| {
        submit(&*queue, &Operation::Copy { src, dst }, timing)?.wait()
    };
    let refuse = |nth| {
        let copier = state.copiers[0].queue.raw();
        faults::fail_after(copier, nth, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
    };
    copy(&host, &ours, Timing::Off).unwrap();
    for (src, dst, to) in [(&ours, &theirs, &ours), (&theirs, &ours, &host)] {
        copy(src, dst, Timing::Measured).unwrap();
        // The copy itself; what writes its begin, the copy, and what writes its end when all is copied.
        let cases = [(Timing::Off, 0, false), (Timing::Measured, 0, false), (Timing::Measured, 2, true)];
        for (timing, nth, is_partial) in cases {
            refuse(nth);
            let refused = copy(src, dst, timing).unwrap_err();
            assert_eq!(
                (refused.kind(), refused.is_partial()),
                (ErrorKind::OutOfMemory, is_partial),
                "{refused}"
            );
            for line in [&state.wgpu, &state.copiers[0]] {
                assert_eq!(line.queue.outstanding(), 0, "{timing:?}, {nth}");
            }
            let read = copy(dst, to, Timing::Off);
            match is_partial {
                true => assert_eq!(read.unwrap_err().kind(), ErrorKind::SourceFailed),
                false => read.unwrap(),
            }
            copy(src, dst, timing).unwrap();
        }
    }
    drop((theirs, ours, host, queue));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
