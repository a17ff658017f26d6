//! Graphs: captured work runs at each launch, in the captured order.

use std::ptr;

use transload_cuda_sim::{
    SimDevice,
    harness::{self, noise},
    install,
};
use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, Context, Device, Event, EventTiming, Graph, GraphUpdate, Stream, ffi,
};

use crate::{
    Alone,
    raw::{Bench, Pinned, contents, download, fill, upload},
};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// Captures a stream that no other thread uses.
fn begin<S: AsStream>(stream: &S, mode: CaptureMode) -> transload_cuda_sys::Result<Capture<'_, S>> {
    // SAFETY: the tests enqueue only work to be captured, and queries are refused meanwhile.
    unsafe { Capture::begin(stream, mode) }
}

fn event(bench: &Bench) -> Event {
    Event::new(&bench.context, EventTiming::Disabled).expect("event")
}

/// The context of a new device.
fn bench_of(ordinal: u32, alone: &Alone) -> Bench {
    let context = Context::primary(Device::new(ordinal).expect("device")).expect("context");
    Bench { device: alone.bench.device, context, end: None }
}

fn is_capturing(stream: &Stream) -> u32 {
    let mut status = 9;
    // SAFETY: the stream is live, the out pointer valid.
    assert_eq!(unsafe { ffi::cuStreamIsCapturing(stream.as_raw(), &mut status) }, 0);
    status
}

#[test]
fn captured_work_runs_at_each_launch_only() {
    let alone = Alone::new();
    for mode in MODES {
        let bench = &alone.bench;
        let (stream, memory, mut host) = (bench.stream(), bench.memory(1000), bench.pinned(1000));
        fill(&stream, memory.address, 9, 1000).expect("fill");
        stream.synchronize().expect("idle");
        let capture = begin(&stream, mode).expect("begin");
        assert_eq!(is_capturing(&stream), 1);
        upload(&stream, memory.address, &host, 0, 1000).expect("captured");
        let graph = capture.end().expect("end");
        assert_eq!((is_capturing(&stream), graph.node_count()), (0, Ok(1)));
        let mut exec = graph.instantiate().expect("instantiate");
        drop(graph);
        assert!(contents(bench, memory.address, 1000).iter().all(|byte| *byte == 9), "nothing ran yet");
        for seed in 1..4 {
            let content = noise(1000, seed);
            host.set(&content);
            // SAFETY: the memory is live, and waited for below.
            unsafe { exec.launch(&stream) }.expect("launch");
            assert!(contents(bench, memory.address, 1000) == content);
        }
    }
    alone.finish();
}

/// Captures a diamond: an upload, two concurrent copies on two streams, and two downloads after both.
fn diamond(bench: &Bench, streams: [&Stream; 2], memory: [u64; 3], host: &Pinned, bytes: usize) -> Graph {
    let (fork, join) = (event(bench), event(bench));
    let [one, two] = streams;
    let capture = begin(one, CaptureMode::Relaxed).expect("begin");
    upload(one, memory[0], host, 0, bytes).expect("upload");
    fork.record(one).expect("record");
    two.wait_event(&fork).expect("fork");
    for (stream, to) in [(one, memory[1]), (two, memory[2])] {
        // SAFETY: both ranges are live.
        let code = unsafe { ffi::cuMemcpyDtoDAsync_v2(to, memory[0], bytes, stream.as_raw()) };
        assert_eq!(code, 0);
    }
    join.record(two).expect("record");
    one.wait_event(&join).expect("join");
    download(one, host, bytes, memory[1], bytes).expect("download");
    download(one, host, 2 * bytes, memory[2], bytes).expect("download");
    capture.end().expect("end")
}

#[test]
fn a_fork_and_a_join_by_events_order_the_nodes_under_any_seed() {
    let alone = Alone::new();
    let bytes = 600_000;
    let ordinals: Vec<u32> = if harness::is_real() {
        vec![0]
    } else {
        install().expect("installed");
        (0..30).map(|seed| SimDevice::builder().seed(seed).record_accesses(true).build().ordinal()).collect()
    };
    for ordinal in ordinals {
        let bench = &bench_of(ordinal, &alone);
        let _bound = bench.context.enter().expect("enter");
        let (one, two, other) = (bench.stream(), bench.stream(), bench.stream());
        let memory = [bench.memory(bytes), bench.memory(bytes), bench.memory(bytes)];
        let mut host = bench.pinned(3 * bytes);
        let graph = diamond(bench, [&one, &two], [0, 1, 2].map(|index| memory[index].address), &host, bytes);
        assert_eq!(graph.node_count(), Ok(5));
        let mut exec = graph.instantiate().expect("instantiate");
        for (turn, stream) in [&one, &other, &two].into_iter().enumerate() {
            let content = noise(bytes, turn as u64);
            host.bytes_mut()[..bytes].copy_from_slice(&content);
            // SAFETY: the memory is live, and waited for below.
            unsafe { exec.launch(stream) }.expect("launch");
            stream.synchronize().expect("idle");
            let seen = host.snapshot();
            assert!(seen[bytes..2 * bytes] == content[..] && seen[2 * bytes..] == content[..], "turn {turn}");
        }
        if !harness::is_real() {
            // One after the other, although the launches are on two streams that nothing else orders.
            // SAFETY: as above.
            unsafe { exec.launch(&one).and_then(|()| exec.launch(&other)) }.expect("launch");
            drop(exec);
            bench.context.synchronize().expect("idle");
        }
    }
    alone.finish();
}

#[test]
fn graph_update_applies_to_later_launches_if_compatible() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (stream, memory) = (bench.stream(), bench.memory(200));
    let filled = |offset: u64, value| {
        let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
        fill(&stream, memory.address + offset, value, 100).expect("captured");
        capture.end().expect("end")
    };
    let mut exec = filled(0, 1).instantiate().expect("instantiate");
    // SAFETY: the memory is live, and waited for below.
    unsafe { exec.launch(&stream) }.expect("launch");
    assert_eq!(exec.update(&filled(100, 2)), Ok(GraphUpdate::Done));
    // SAFETY: as above.
    unsafe { exec.launch(&stream) }.expect("launch");
    let seen = contents(bench, memory.address, 200);
    assert!(seen[..100].iter().all(|byte| *byte == 1) && seen[100..].iter().all(|byte| *byte == 2));
    let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
    fill(&stream, memory.address, 3, 10).expect("captured");
    fill(&stream, memory.address, 4, 10).expect("captured");
    let longer = capture.end().expect("end");
    assert_eq!(exec.update(&longer), Ok(GraphUpdate::Refused(2)));
    // The executable is as it was.
    // SAFETY: as above.
    unsafe { exec.launch(&stream) }.expect("launch");
    assert_eq!(contents(bench, memory.address, 200), seen);
    drop((exec, longer, memory, stream));
    alone.finish();
}

#[test]
fn an_executable_dropped_in_flight_runs_to_its_end() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (stream, memory) = (bench.stream(), bench.memory(1 << 20));
    let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
    fill(&stream, memory.address, 5, 1 << 20).expect("captured");
    let graph = capture.end().expect("end");
    let mut exec = graph.instantiate().expect("instantiate");
    // SAFETY: the memory is live, and waited for below.
    unsafe { exec.launch(&stream) }.expect("launch");
    drop((exec, graph));
    assert!(contents(bench, memory.address, 1 << 20).iter().all(|byte| *byte == 5));
    drop((memory, stream));
    alone.finish();
}

#[test]
fn handles_that_are_no_graph_are_refused() {
    let alone = Alone::new();
    let nobody: *mut u8 = ptr::without_provenance_mut(0x10_0000);
    if !harness::is_real() {
        let stream = alone.bench.stream();
        // SAFETY: the software driver looks handles up and never follows them.
        unsafe {
            assert_ne!(ffi::cuGraphLaunch(nobody.cast(), stream.as_raw()), 0);
            assert_ne!(ffi::cuGraphDestroy(nobody.cast()), 0);
            assert_ne!(ffi::cuGraphExecDestroy(nobody.cast()), 0);
            assert_ne!(ffi::cuGraphInstantiateWithFlags(&mut ptr::null_mut(), nobody.cast(), 0), 0);
        }
    }
    alone.finish();
}
