//! Submissions of copies between CUDA's memory and the device's that the driver refuses, and what is not measured. On the software driver and llvmpipe.

use std::sync::Arc;

use ash::vk;
use transload_core::{
    Backend, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};
use transload_cuda_sim::harness;

use crate::{
    setup,
    vulkan::{faults, perform},
};

/// Copied in two parts: the memory in between has 2 MiB.
const BYTES: usize = 3 << 20;

#[test]
fn refused_part_of_vulkan_is_the_copys_error_and_marks_what_it_wrote() {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    let (_test, cuda, memory) = setup::cuda_of(&state.info);
    let connected = Arc::clone(&memory);
    match backend.connect_cuda(&cuda, move || Ok(Arc::clone(&connected))) {
        Err(error) if error.kind() == ErrorKind::UnknownDevice => return println!("skipped: {error}"),
        connected => assert_eq!(connected.unwrap(), state.id()),
    }
    let theirs = memory.allocate(MemoryKind::Device, BYTES).unwrap();
    let [ours, other] = [(); 2].map(|()| backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap());
    let host = backend.allocate(state.id(), MemoryKind::Pinned, BYTES).unwrap();
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    // Returns whether it was measured.
    let copy = |src: &RawBuffer, dst: &RawBuffer, timing| {
        let fence = submit(&*queue, &Operation::Copy { src, dst }, timing)?;
        fence.wait()?;
        fence.timeline().take_duration(fence.point()).map(|duration| duration.is_some())
    };
    let fill = |dst: &RawBuffer, byte| {
        host.write().unwrap().fill(byte);
        copy(&host, &other, Timing::Off).unwrap();
        copy(&other, dst, Timing::Off).unwrap();
    };
    let read = |src: &RawBuffer| -> transload_core::Result<bool> {
        copy(src, &other, Timing::Off)?;
        copy(&other, &host, Timing::Off)?;
        Ok(host.read()?.iter().all(|byte| *byte == 7))
    };
    let refuse = |nth| {
        let copier = state.copiers[0].queue.raw();
        faults::fail_after(copier, nth, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
    };
    fill(&ours, 7);
    for (src, dst) in [(&ours, &theirs), (&theirs, &ours)] {
        assert!(copy(src, dst, Timing::Measured).unwrap());
        // The first part of the copy, and the second.
        for (nth, is_partial) in [(0, false), (1, true)] {
            refuse(nth);
            let refused = copy(src, dst, Timing::Off).unwrap_err();
            assert_eq!(
                (refused.kind(), refused.is_partial()),
                (ErrorKind::OutOfMemory, is_partial),
                "{refused}"
            );
            for line in [&state.wgpu, &state.copiers[0]] {
                assert_eq!(line.queue.outstanding(), 0, "{nth}");
            }
            match is_partial {
                true => assert_eq!(read(dst).unwrap_err().kind(), ErrorKind::SourceFailed),
                false => assert!(read(dst).unwrap()),
            }
            copy(src, dst, Timing::Off).unwrap();
        }
        // What writes its begin, and, when all is copied, its end.
        for nth in [0, 3] {
            fill(dst, 1);
            refuse(nth);
            assert!(!copy(src, dst, Timing::Measured).unwrap(), "{nth}");
            assert!(read(dst).unwrap(), "{nth}");
            assert!(copy(src, dst, Timing::Measured).unwrap());
        }
    }
    // Nor is one measured whose begin would wait for other work.
    let [from, to] = [(); 2].map(|()| backend.allocate(state.id(), MemoryKind::Device, 64 << 20).unwrap());
    for (src, dst) in [(&ours, &theirs), (&theirs, &ours)] {
        let long = Operation::Copy { src: &from, dst: &to };
        // SAFETY: nothing else uses the buffers, which stay until all is complete.
        let points =
            [(); 8].map(|()| unsafe { perform(&state, &state.copiers[0], &long, (&[], &[])) }.unwrap());
        assert!(!copy(src, dst, Timing::Measured).unwrap());
        state.copiers[0].queue.block_until(points[7]);
        assert!(copy(src, dst, Timing::Measured).unwrap());
    }
    drop((theirs, ours, other, host, queue, from, to));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
