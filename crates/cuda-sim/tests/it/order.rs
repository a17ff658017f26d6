//! Ordering and queries of streams and events.

use std::{ptr, thread};

use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{AsStream, Event, EventTiming, Stream, StreamOptions, check, ffi};

use crate::raw::{Bench, INVALID_HANDLE, NOT_READY, code, contents, download, fill, upload};
#[test]
fn an_event_never_recorded_is_done() {
    let bench = Bench::new(harness::device());
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    assert_eq!(event.is_done(), Ok(true));
    assert_eq!(event.synchronize(), Ok(()));
    let stream = bench.stream();
    assert_eq!(stream.wait_event(&event), Ok(()));
    assert_eq!(stream.synchronize(), Ok(()));
}

#[test]
fn events_are_queried_without_current_context() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let memory = bench.memory(1 << 20);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    fill(&stream, memory.address, 7, memory.bytes).expect("fill");
    event.record(&stream).expect("record");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut current = ptr::null_mut();
            // SAFETY: the out pointer is valid.
            check("current", unsafe { ffi::cuCtxGetCurrent(&mut current) }).expect("current");
            assert!(current.is_null());
            while !event.is_done().expect("healthy") {
                thread::yield_now();
            }
            assert_eq!(event.synchronize(), Ok(()));
        });
    });
    assert_eq!(contents(&bench, memory.address, memory.bytes), vec![7; memory.bytes]);
}

#[test]
fn priorities_are_clamped_and_flags_confirmed() {
    let bench = Bench::new(harness::device());
    let (least, greatest) = bench.context.stream_priority_range().expect("range");
    assert!(greatest <= least);
    for asked in [least, greatest, least + 10, greatest - 10] {
        let stream =
            Stream::new(&bench.context, StreamOptions { priority: asked, blocking: false }).expect("stream");
        assert_eq!(stream.priority(), Ok(asked.clamp(greatest, least)));
        assert_eq!(stream.is_blocking(), Ok(false));
    }
    assert_eq!(bench.blocking_stream().is_blocking(), Ok(true));
}

#[test]
fn completed_event_makes_earlier_stream_work_visible() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let bytes = 2 << 20;
    let memory = bench.memory(bytes);
    let target = bench.pinned(bytes);
    let mut source = bench.pinned(bytes);
    let content = noise(bytes, 31);
    source.set(&content);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    upload(&stream, memory.address, &source, 0, bytes).expect("up");
    download(&stream, &target, 0, memory.address, bytes).expect("down");
    event.record(&stream).expect("record");
    fill(&stream, memory.address, 0, bytes).expect("later work");
    let mut queries = 0_u64;
    while !event.is_done().expect("healthy") {
        queries += 1;
        thread::yield_now();
    }
    assert_eq!(target.snapshot(), content, "after {queries} queries");
    stream.synchronize().expect("healthy");
}

#[test]
fn a_stream_that_waits_for_an_event_sees_what_came_before_it() {
    let bench = Bench::new(harness::device());
    let (producer, consumer) = (bench.stream(), bench.stream());
    let bytes = (1 << 20) + 5;
    let memory = bench.memory(bytes);
    let mut source = bench.pinned(bytes);
    let target = bench.pinned(bytes);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    for round in 0..4 {
        let content = noise(bytes, 100 + round);
        source.set(&content);
        upload(&producer, memory.address, &source, 0, bytes).expect("up");
        event.record(&producer).expect("record");
        consumer.wait_event(&event).expect("wait");
        download(&consumer, &target, 0, memory.address, bytes).expect("down");
        consumer.synchronize().expect("healthy");
        assert_eq!(target.snapshot(), content, "round {round}");
    }
}

#[test]
fn a_wait_holds_for_the_record_that_was_last_when_it_was_made() {
    let bench = Bench::new(harness::device());
    let (producer, consumer) = (bench.stream(), bench.stream());
    let bytes = 1 << 20;
    let (first, target) = (bench.memory(bytes), bench.pinned(bytes));
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    fill(&producer, first.address, 1, bytes).expect("fill");
    event.record(&producer).expect("record");
    consumer.wait_event(&event).expect("wait");
    // Recording again, after later work, does not move the wait. It would see the later fill only as a race, so the
    // later work goes elsewhere.
    let other = bench.memory(bytes);
    fill(&producer, other.address, 2, bytes).expect("fill");
    event.record(&producer).expect("record again");
    download(&consumer, &target, 0, first.address, bytes).expect("down");
    consumer.synchronize().expect("healthy");
    assert_eq!(target.snapshot(), vec![1; bytes]);
    event.synchronize().expect("healthy");
    assert_eq!(contents(&bench, other.address, 16), vec![2; 16]);
}

#[test]
fn the_default_stream_orders_blocking_streams() {
    let bench = Bench::new(harness::device());
    let (one, two) = (bench.blocking_stream(), bench.blocking_stream());
    let bytes = 1 << 20;
    let memory = bench.memory(bytes);
    let target = bench.pinned(bytes);
    // SAFETY: null names the default stream.
    let default = unsafe { Stream::from_raw(&bench.context, ptr::null_mut()) };
    fill(&one, memory.address, 1, bytes).expect("fill");
    fill(&default, memory.address, 2, bytes / 2).expect("fill");
    download(&two, &target, 0, memory.address, bytes).expect("down");
    two.synchronize().expect("healthy");
    let mut expected = vec![2; bytes / 2];
    expected.resize(bytes, 1);
    assert_eq!(target.snapshot(), expected);
}

#[test]
fn elapsed_time_needs_two_recorded_events_with_timing() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let bytes = 8 << 20;
    let memory = bench.memory(bytes);
    let source = bench.pinned(bytes);
    let timed = || Event::new(&bench.context, EventTiming::Enabled).expect("event");
    let (start, end, never) = (timed(), timed(), timed());
    let silent = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    start.record(&stream).expect("record");
    upload(&stream, memory.address, &source, 0, bytes).expect("up");
    end.record(&stream).expect("record");
    silent.record(&stream).expect("record");
    stream.synchronize().expect("healthy");
    let elapsed = end.elapsed_since(&start).expect("both are done");
    // 8 MiB take 150 µs at 56 GB/s, and 8 ms at 1 GB/s.
    assert!((20e-6..1.0).contains(&elapsed.as_secs_f64()), "{elapsed:?}");
    assert_eq!(code(silent.elapsed_since(&start)), INVALID_HANDLE);
    assert_eq!(code(never.elapsed_since(&start)), INVALID_HANDLE);
}

#[test]
fn a_stream_destroyed_with_work_in_it_still_does_it() {
    let bench = Bench::new(harness::device());
    let bytes = 4 << 20;
    let memory = bench.memory(bytes);
    let mut source = bench.pinned(bytes);
    let content = noise(bytes, 66);
    source.set(&content);
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    let stream = bench.stream();
    upload(&stream, memory.address, &source, 0, bytes).expect("up");
    event.record(&stream).expect("record");
    drop(stream);
    event.synchronize().expect("healthy");
    assert_eq!(contents(&bench, memory.address, bytes), content);
}

#[test]
fn host_functions_run_in_their_place() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static SEEN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn note(data: *mut std::ffi::c_void) {
        // SAFETY: the data is the start of two bytes of pinned memory that live until the stream is done.
        let value = unsafe { data.cast::<u8>().read_volatile() };
        SEEN.store(u32::from(value), Ordering::SeqCst);
    }
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let memory = bench.memory(4096);
    let target = bench.pinned(4096);
    fill(&stream, memory.address, 42, 4096).expect("fill");
    download(&stream, &target, 0, memory.address, 4096).expect("down");
    // SAFETY: the function takes the pinned memory, which outlives the stream's work.
    let launched = unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(note), target.pointer().cast()) };
    check("cuLaunchHostFunc", launched).expect("launch");
    fill(&stream, memory.address, 1, 4096).expect("fill");
    download(&stream, &target, 0, memory.address, 4096).expect("down");
    stream.synchronize().expect("healthy");
    assert_eq!(SEEN.load(Ordering::SeqCst), 42, "it ran between the two copies");
    assert_eq!(target.snapshot(), vec![1; 4096]);
}

#[test]
fn a_query_says_not_ready_or_done_and_ends() {
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let memory = bench.memory(32 << 20);
    let source = bench.pinned(32 << 20);
    for _ in 0..8 {
        upload(&stream, memory.address, &source, 0, 32 << 20).expect("up");
    }
    let mut answers = Vec::new();
    loop {
        // SAFETY: the stream is alive.
        let answer = unsafe { ffi::cuStreamQuery(stream.as_raw()) };
        answers.push(answer);
        if answer != NOT_READY {
            break;
        }
    }
    assert_eq!(answers.pop(), Some(0));
    assert!(!answers.is_empty(), "256 MiB are not there at once");
}
