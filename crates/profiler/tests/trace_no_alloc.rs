//! Once warm, a slice or a value of a trace allocates nothing, nor does an event of a profiler. A binary of its own, for its allocator.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, Ordering},
    time::Duration,
};

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend as _, DeviceId, OperationSampling, StreamPriority, WorkloadType};
use transload_profiler::{
    Argument, CounterId, Flow, ProfilerOptions, Slice, StreamProfiler, TraceFormat, TraceOptions,
    TraceWriter, TrackId, Unit,
};

struct Counting;

/// Of all threads.
static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// Of this thread: the test harness allocates on its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size() as isize);
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Slices of several shapes, of which some overlap, and a value.
fn round(trace: &mut TraceWriter<std::io::Sink>, track: TrackId, counter: CounterId, at: u64) {
    let numbers = [("bytes", Argument::U64(at)), ("ratio", Argument::F64(0.5)), ("other", Argument::U64(1))];
    let texts = [("method", Argument::Text("DirectCopy")), ("bytes", Argument::U64(at))];
    for (i, arguments) in [&numbers[..], &texts, &[], &texts[..1]].into_iter().enumerate() {
        let begin = at + 10 * i as u64;
        let slice = Slice { name: "copy", begin, end: begin + 15, flow: Some(Flow::Step(at)), arguments };
        trace.slice(track, &slice).unwrap();
    }
    trace.value(counter, at, at as f64).unwrap();
}

#[test]
fn warm_slices_and_values_allocate_nothing() {
    for (format, limit) in
        [(TraceFormat::Perfetto, u64::MAX), (TraceFormat::Chrome, u64::MAX), (TraceFormat::Perfetto, 50)]
    {
        let mut trace = TraceWriter::new(std::io::sink(), format, TraceOptions::new().slices(limit)).unwrap();
        let track = trace.track(None, "stream").unwrap();
        let counter = trace.counter(None, "bytes", Unit::Bytes).unwrap();
        let mut at = 1 << 40;
        let mut rounds = |count| {
            for _ in 0..count {
                round(&mut trace, track, counter, at);
                at += 100;
            }
        };
        rounds(100);
        let before = (ALLOCATIONS.get(), BYTES.get());
        rounds(100_000);
        assert_eq!((ALLOCATIONS.get(), BYTES.get()), before, "{format:?}, limit {limit}");
    }
}

#[test]
fn ten_million_events_end_in_bounded_memory_and_all_count() {
    const EVENTS: u64 = 10_000_000;
    const PARTS: u64 = 100;
    let backend = CpuBackend::new().unwrap();
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL));
    profiler.attach(&(backend.clone() as _)).unwrap();
    profiler.enable().unwrap();
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    profiler.start_trace(std::io::sink(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    // Half of them have times, which the collector adds to a distribution.
    let record = || {
        for number in 0..EVENTS / PARTS / 2 {
            profiler.record_operation(&*queue, "step", None);
            profiler.record_memory_transfer(&*queue, 64, Some(Duration::from_nanos(number)));
        }
    };
    record();
    drop(profiler.get_comprehensive_report());
    let live = LIVE.load(Ordering::Relaxed);
    for _ in 1..PARTS {
        let allocations = ALLOCATIONS.get();
        record();
        assert_eq!(ALLOCATIONS.get(), allocations, "where they happen");
        let grown = LIVE.load(Ordering::Relaxed) - live;
        assert!(grown < 16 << 20, "{grown} bytes more");
        // Collects what has room.
        drop(profiler.get_comprehensive_report());
    }
    profiler.finish_trace().unwrap();
    let all = profiler.get_comprehensive_report();
    assert_eq!(all.streams[0].operations() + all.lost, EVENTS);
    // Else what is bounded is what was lost.
    assert!(all.streams[0].operations() > EVENTS / 20, "{all}");
    let grown = LIVE.load(Ordering::Relaxed) - live;
    assert!(grown < 4 << 20, "{grown} bytes more at the end");
}
