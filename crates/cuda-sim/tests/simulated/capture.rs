//! Captures and graphs on the software driver only: races among nodes, seeds, and work that cannot be captured.

use transload_cuda_sim::harness;
use transload_cuda_sys::{AsStream, Capture, CaptureMode, Event, EventTiming, ffi};

use crate::raw::{Bench, code, download, fill};

const NOT_PERMITTED: u32 = 900;
const INVALIDATED: u32 = 901;

/// Captures a stream that no other thread uses.
fn begin<S: AsStream>(stream: &S, mode: CaptureMode) -> transload_cuda_sys::Result<Capture<'_, S>> {
    // SAFETY: the tests enqueue only work to be captured, and queries are refused meanwhile.
    unsafe { Capture::begin(stream, mode) }
}

fn bench(seed: u64) -> Bench {
    let device = harness::device_with(|builder| builder.seed(seed).record_accesses(true)).expect("simulated");
    Bench::unchecked(device)
}

fn event(bench: &Bench) -> Event {
    Event::new(&bench.context, EventTiming::Disabled).expect("event")
}

#[test]
fn unordered_nodes_of_a_graph_race_at_its_launch() {
    let bench = bench(0);
    let races = || bench.device.sim().expect("simulated").races();
    let (one, two, memory) = (bench.stream(), bench.stream(), bench.memory(64));
    let (fork, join) = (event(&bench), event(&bench));
    let capture = begin(&one, CaptureMode::Relaxed).expect("begin");
    fork.record(&one).expect("record");
    two.wait_event(&fork).expect("fork");
    fill(&one, memory.address, 1, 64).expect("fill");
    fill(&two, memory.address, 2, 64).expect("fill");
    join.record(&two).expect("record");
    one.wait_event(&join).expect("join");
    let mut exec = capture.end().and_then(|graph| graph.instantiate()).expect("executable");
    assert!(races().is_empty(), "nothing ran");
    // SAFETY: that the fills are unordered is the planted fault.
    unsafe { exec.launch(&one) }.expect("launch");
    one.synchronize().expect("idle");
    assert!(!races().is_empty(), "the checker must see what nothing orders");
}

#[test]
fn graph_launch_keeps_stream_order_for_any_seed() {
    for seed in 0..30 {
        let bench = bench(seed);
        let (stream, memory, host) = (bench.stream(), bench.memory(5000), bench.pinned(5000));
        let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
        download(&stream, &host, 0, memory.address, 5000).expect("captured");
        let mut exec = capture.end().and_then(|graph| graph.instantiate()).expect("executable");
        for value in 1..5 {
            fill(&stream, memory.address, value, 5000).expect("fill");
            // SAFETY: the memory is live, and waited for below.
            unsafe { exec.launch(&stream) }.expect("launch");
            fill(&stream, memory.address, 99, 5000).expect("fill");
            stream.synchronize().expect("idle");
            assert!(host.snapshot().iter().all(|byte| *byte == value), "seed {seed}");
        }
        bench.device.assert_no_races();
    }
}

#[test]
fn pageable_copies_and_prefetches_cannot_be_captured() {
    let bench = bench(0);
    let (stream, memory) = (bench.stream(), bench.memory(64));
    let mut bytes = [0_u8; 64];
    let mut calls: [Box<dyn FnMut() -> u32>; 2] = [
        // SAFETY: the memory is live; the copy is refused.
        Box::new(|| unsafe {
            ffi::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), memory.address, 64, stream.as_raw())
        }),
        // SAFETY: refused before the address is looked at.
        Box::new(|| unsafe { ffi::cuMemPrefetchAsync(memory.address, 64, -1, stream.as_raw()) }),
    ];
    for call in &mut calls {
        let _bound = bench.context.enter().expect("enter");
        let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
        assert_eq!(call(), NOT_PERMITTED);
        assert_eq!(code(fill(&stream, memory.address, 1, 64)), INVALIDATED, "and nothing more is taken");
        assert_eq!(code(capture.end()), INVALIDATED);
    }
    drop(calls);
    drop((stream, memory));
}
