//! Kernel timing on a real device: two streams overlap, and high priority overtakes queued work.

use transload_core::{MemoryKind, RawBuffer, StreamPriority};
use transload_streams::{CudaKernel, CudaModule, CudaStream, LaunchConfig};

use crate::{launch::SPIN, support::setup::Setup};

/// A real device with the spin kernel, or `None` with a printed reason.
fn real() -> Option<(Setup, CudaKernel)> {
    let setup = Setup::new();
    if setup.test.is_simulated() {
        println!("skipped: on the software driver kernels take no time");
        return None;
    }
    let kernel = CudaModule::from_ptx(&setup.device, SPIN).unwrap().kernel("transload_spin").unwrap();
    Some((setup, kernel))
}

fn spin(kernel: &CudaKernel, stream: &CudaStream, blocks: u32, milliseconds: u64, out: &RawBuffer) {
    let launch = kernel.launch(LaunchConfig::linear(blocks, 32)).arg(milliseconds * 1_000_000).writes(out);
    // SAFETY: the kernel takes these parameters and stores two numbers.
    drop(unsafe { launch.enqueue(stream) }.unwrap());
}

/// Start and end times that the kernel wrote.
fn stamps(out: &RawBuffer) -> (u64, u64) {
    let view = out.read().unwrap();
    let at = |index: usize| u64::from_le_bytes(view[index..index + 8].try_into().unwrap());
    (at(0), at(8))
}

fn outs(setup: &Setup, count: usize) -> Vec<RawBuffer> {
    (0..count).map(|_| setup.memory.allocate(MemoryKind::Mapped, 16).unwrap()).collect()
}

#[test]
fn kernels_of_two_streams_run_at_the_same_time() {
    let Some((setup, kernel)) = real() else { return };
    let outs = outs(&setup, 2);
    let streams: Vec<_> = (0..2).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
    for (stream, out) in streams.iter().zip(&outs) {
        spin(&kernel, stream, 1, 100, out);
    }
    let (one, two) = (stamps(&outs[0]), stamps(&outs[1]));
    assert!(one.0 < two.1 && two.0 < one.1, "{one:?} and {two:?} overlap");
    drop((streams, outs, kernel));
    setup.finish();
}

#[test]
fn high_priority_kernels_overtake_queued_ones() {
    let Some((setup, kernel)) = real() else { return };
    let outs = outs(&setup, 3);
    let stream = |priority| CudaStream::new_with_priority(&setup.device, priority).unwrap();
    let streams = [StreamPriority::Low, StreamPriority::Low, StreamPriority::High].map(stream);
    let multiprocessors =
        setup.device.driver().attribute(transload_cuda_sys::attribute::MULTIPROCESSOR_COUNT).unwrap();
    // A multiprocessor runs at most 32 blocks at a time (CUDA C++ Programming Guide, "Technical Specifications").
    let full = u32::try_from(multiprocessors).unwrap() * 32;
    // The first fills the device several times over; the second queues behind it, and the urgent one is submitted last.
    spin(&kernel, &streams[0], full * 4, 20, &outs[0]);
    spin(&kernel, &streams[1], full, 1, &outs[1]);
    spin(&kernel, &streams[2], 1, 1, &outs[2]);
    let (second, urgent) = (stamps(&outs[1]), stamps(&outs[2]));
    assert!(urgent.0 < second.0, "urgent {urgent:?}, queued before it {second:?}");
    drop((streams, outs, kernel));
    setup.finish();
}
