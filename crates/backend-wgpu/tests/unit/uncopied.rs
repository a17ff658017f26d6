//! Memory that CUDA and Vulkan share is used by both without a copy. On the software driver and llvmpipe.

use transload_core::{
    Access, Backend, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType,
    submit,
};
use transload_cuda_sim::harness;
use transload_cuda_sys::trace;
use transload_streams::CudaStream;

use crate::{CudaInterop, setup, vulkan::faults};

const BYTES: usize = 3 << 20;

#[test]
fn neither_driver_copies_memory_that_both_use() {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    let (_test, cuda, memory) = setup::cuda_of(&state.info);
    let interop = match CudaInterop::new(&backend, state.id(), &memory) {
        Err(error) if [ErrorKind::UnknownDevice, ErrorKind::Unsupported].contains(&error.kind()) => {
            return println!("skipped: {error}");
        }
        opened => opened.unwrap(),
    };
    let theirs = interop.allocate(BYTES).unwrap();
    let host = memory.allocate(MemoryKind::Pinned, BYTES).unwrap();
    host.write().unwrap().fill(7);
    let stream = CudaStream::new(&cuda).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer| {
        submit(&stream, &Operation::Copy { src, dst }, Timing::Off).unwrap().wait().unwrap();
    };
    let copies = faults::copies_of_this_thread();
    let trace = trace::start();
    copy(&host, &theirs);
    let ours = backend.share(&theirs, state.id()).unwrap().buffer;
    let handle = backend.buffer(&ours).unwrap();
    let device = backend.device(state.id()).unwrap();
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.clear_buffer(&handle, 0, Some(BYTES as u64 / 2));
    backend.submit(state.id(), [encoder.finish()], &[(&ours, Access::Write)]).unwrap().wait().unwrap();
    copy(&theirs, &host);
    let calls = trace.calls_of_this_thread();
    assert_eq!(calls.iter().filter(|call| call.name.starts_with("cuMemcpy")).count(), 2, "{calls:?}");
    assert_eq!(faults::copies_of_this_thread(), copies);
    drop(trace);
    let found = host.read().unwrap();
    assert!(found[..BYTES / 2].iter().all(|byte| *byte == 0));
    assert!(found[BYTES / 2..].iter().all(|byte| *byte == 7));
    drop(found);
    // One of the library's would be counted.
    let other = backend.allocate(state.id(), MemoryKind::Device, BYTES).unwrap();
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    submit(&*queue, &Operation::Copy { src: &ours, dst: &other }, Timing::Off).unwrap().wait().unwrap();
    assert_eq!(faults::copies_of_this_thread(), copies + 1);
}
