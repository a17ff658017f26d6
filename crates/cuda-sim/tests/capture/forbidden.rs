//! Calls that a capture forbids: each returns its own error code and invalidates the capture.

use std::{sync::mpsc, thread};

use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, Context, Event, EventTiming, Graph, RelaxedCapture, Result, Stream, ffi,
};

use crate::{
    Alone,
    raw::{Bench, code, contents, fill},
};

const NOT_PERMITTED: u32 = 900;
const INVALIDATED: u32 = 901;
const MERGE: u32 = 902;
const UNMATCHED: u32 = 903;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const WRONG_THREAD: u32 = 908;
const ILLEGAL_STATE: u32 = 401;

/// Captures a stream that no other thread uses.
fn begin<S: AsStream>(stream: &S, mode: CaptureMode) -> transload_cuda_sys::Result<Capture<'_, S>> {
    // SAFETY: the tests enqueue only work to be captured, and queries are refused meanwhile.
    unsafe { Capture::begin(stream, mode) }
}

fn event(bench: &Bench) -> Event {
    Event::new(&bench.context, EventTiming::Disabled).expect("event")
}

fn ask(event: &Event) -> u32 {
    // SAFETY: the event is live. Deliberately without the guard that our handles take.
    unsafe { ffi::cuEventQuery(event.as_raw()) }
}

fn allocate_and_free(context: &Context) -> u32 {
    let _bound = context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid, and what is allocated is freed.
    unsafe {
        match ffi::cuMemAlloc_v2(&mut address, 256) {
            0 => ffi::cuMemFree_v2(address),
            code => code,
        }
    }
}

/// Captures a fill in `mode`, runs `meanwhile` on another thread, and ends the capture.
fn captured_while(bench: &Bench, mode: CaptureMode, meanwhile: impl FnOnce() + Send) -> Result<Graph> {
    let (stream, memory) = (bench.stream(), bench.memory(64));
    let ((begun, has_begun), (done, is_done)) = (mpsc::channel(), mpsc::channel::<()>());
    let (captured, address) = (&stream, memory.address);
    let outcome = thread::scope(|scope| {
        let capturing = scope.spawn(move || {
            let capture = begin(captured, mode).expect("begin");
            begun.send(()).expect("awaited");
            // End it also if the other thread panics.
            let _dropped = is_done.recv();
            // A stream with an invalid capture accepts no work.
            let filled = fill(captured, address, 1, 64);
            capture.end().and_then(|graph| filled.map(|()| graph))
        });
        has_begun.recv().expect("the capture began");
        let done = done;
        meanwhile();
        drop(done);
        capturing.join().expect("no panic")
    });
    // Captured or not, the stream works.
    fill(&stream, memory.address, 7, 64).expect("fill");
    assert!(contents(bench, memory.address, 64).iter().all(|byte| *byte == 7));
    outcome
}

#[test]
fn unsafe_call_of_any_thread_invalidates_global_capture() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (stream, marked) = (bench.stream(), event(bench));
    marked.record(&stream).expect("record");
    type Call<'a> = Box<dyn Fn() -> u32 + Sync + 'a>;
    let calls: [Call<'_>; 4] = [
        Box::new(|| ask(&marked)),
        // SAFETY: the event is live.
        Box::new(|| unsafe { ffi::cuEventSynchronize(marked.as_raw()) }),
        // SAFETY: the stream is live.
        Box::new(|| unsafe { ffi::cuStreamSynchronize(stream.as_raw()) }),
        Box::new(|| allocate_and_free(&bench.context)),
    ];
    for call in &calls {
        stream.synchronize().expect("idle");
        let broken = captured_while(bench, CaptureMode::Global, || assert_eq!(call(), NOT_PERMITTED));
        assert_eq!(code(broken), INVALIDATED);
        let kept = captured_while(bench, CaptureMode::Global, || {
            let _relaxed = RelaxedCapture::enter().expect("relaxed");
            assert_eq!(call(), 0);
        });
        kept.expect("a relaxed thread breaks nothing");
        for mode in [CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
            captured_while(bench, mode, || assert_eq!(call(), 0)).expect("other threads are ignored");
        }
    }
    drop(calls);
    drop((stream, marked));
    alone.finish();
}

#[test]
fn capturing_thread_needs_relaxed_mode_for_unsafe_calls() {
    let alone = Alone::new();
    let bench = &alone.bench;
    for (mode, allowed) in
        [(CaptureMode::Global, false), (CaptureMode::ThreadLocal, false), (CaptureMode::Relaxed, true)]
    {
        let stream = bench.stream();
        let capture = begin(&stream, mode).expect("begin");
        let answer = allocate_and_free(&bench.context);
        let ended = capture.end();
        if allowed {
            assert_eq!(answer, 0);
            ended.expect("valid");
        } else {
            assert_eq!((answer, code(ended)), (NOT_PERMITTED, INVALIDATED));
        }
    }
    alone.finish();
}

#[test]
fn captured_stream_or_event_cannot_be_queried_in_any_mode() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (stream, marked) = (bench.stream(), event(bench));
    for wait in [false, true] {
        let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
        let answer = if wait { stream.synchronize() } else { stream.is_idle().map(|_| ()) };
        assert_eq!((code(answer), code(capture.end())), (NOT_PERMITTED, INVALIDATED));
        let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
        marked.record(&stream).expect("captured");
        let answer = if wait { marked.synchronize() } else { marked.is_done().map(|_| ()) };
        assert_eq!((code(answer), code(capture.end())), (CAPTURED_EVENT, INVALIDATED));
    }
    // Recorded outside a capture, it is an ordinary event.
    marked.record(&stream).expect("record");
    marked.synchronize().expect("done");
    drop((marked, stream));
    alone.finish();
}

#[test]
fn capture_ends_on_its_stream_and_thread() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (one, two, fork) = (bench.stream(), bench.stream(), event(bench));
    let end = |stream: &Stream| {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is live, the out pointer valid; no graph comes of these.
        unsafe { ffi::cuStreamEndCapture(stream.as_raw(), &mut graph) }
    };
    assert_eq!(end(&one), ILLEGAL_STATE, "nothing is captured");
    let capture = begin(&one, CaptureMode::ThreadLocal).expect("begin");
    assert_eq!(code(begin(&one, CaptureMode::Relaxed).map(drop)), ILLEGAL_STATE);
    fork.record(&one).expect("record");
    two.wait_event(&fork).expect("fork");
    assert_eq!(end(&two), UNMATCHED);
    assert_eq!(code(capture.end()), INVALIDATED, "by that attempt");
    let begin = |mode| {
        let _bound = bench.context.enter().expect("enter");
        // SAFETY: the stream is live and captures nothing.
        unsafe { ffi::cuStreamBeginCapture_v2(one.as_raw(), mode) }
    };
    let from_elsewhere = || thread::scope(|scope| scope.spawn(|| end(&one)).join().expect("no panic"));
    assert_eq!(begin(1), 0);
    assert_eq!(from_elsewhere(), WRONG_THREAD);
    assert_eq!(end(&one), ILLEGAL_STATE, "it is gone all the same");
    assert_eq!(begin(2), 0);
    assert_ne!(from_elsewhere(), WRONG_THREAD, "a relaxed capture is ended by whom you like");
    assert_eq!(end(&one), ILLEGAL_STATE);
    let _bound = bench.context.enter().expect("enter");
    // SAFETY: the null stream is the legacy default stream of the current context.
    assert_eq!(unsafe { ffi::cuStreamBeginCapture_v2(std::ptr::null_mut(), 2) }, NOT_PERMITTED);
    drop((_bound, one, two, fork));
    alone.finish();
}

#[test]
fn a_forked_stream_must_be_joined_and_captures_do_not_mix() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (one, two, memory) = (bench.stream(), bench.stream(), bench.memory(64));
    let (inside, outside) = (event(bench), event(bench));
    let capture = begin(&one, CaptureMode::Relaxed).expect("begin");
    inside.record(&one).expect("record");
    two.wait_event(&inside).expect("fork");
    fill(&two, memory.address, 1, 64).expect("captured");
    assert_eq!(code(capture.end()), UNJOINED);

    outside.record(&two).expect("record");
    let capture = begin(&one, CaptureMode::Relaxed).expect("begin");
    assert_eq!(code(one.wait_event(&outside)), ISOLATION);
    assert_eq!(code(capture.end()), INVALIDATED);

    let first = begin(&one, CaptureMode::Relaxed).expect("begin");
    let second = begin(&two, CaptureMode::Relaxed).expect("begin");
    inside.record(&one).expect("record");
    assert_eq!(code(two.wait_event(&inside)), MERGE);
    assert_eq!((code(first.end()), code(second.end())), (INVALIDATED, INVALIDATED));
    drop((one, two, inside, outside, memory));
    alone.finish();
}

#[test]
fn legacy_stream_does_not_wait_for_capturing_stream() {
    let alone = Alone::new();
    let bench = &alone.bench;
    let (stream, memory) = (bench.blocking_stream(), bench.memory(64));
    let on_legacy = || {
        let _bound = bench.context.enter().expect("enter");
        // SAFETY: the memory is live; null is the legacy default stream.
        unsafe { ffi::cuMemsetD8Async(memory.address, 1, 64, std::ptr::null_mut()) }
    };
    let capture = begin(&stream, CaptureMode::Relaxed).expect("begin");
    let mut status = 0;
    let bound = bench.context.enter().expect("enter");
    // SAFETY: null is the legacy default stream, the out pointer is valid.
    assert_eq!(unsafe { ffi::cuStreamIsCapturing(std::ptr::null_mut(), &mut status) }, IMPLICIT);
    drop(bound);
    fill(&stream, memory.address, 1, 64).expect("the question harms nothing");
    assert_eq!(on_legacy(), IMPLICIT);
    assert_eq!(code(capture.end()), INVALIDATED);
    let other = bench.stream();
    let capture = begin(&other, CaptureMode::Relaxed).expect("begin");
    assert_eq!(on_legacy(), 0, "a stream that is not blocking concerns it not");
    capture.end().expect("valid");
    bench.context.synchronize().expect("idle");
    drop((stream, other, memory));
    alone.finish();
}

#[test]
fn context_synchronize_invalidates_its_captures() {
    let alone = Alone::new();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let broken = captured_while(&alone.bench, mode, || {
            // Through the handle, which is in relaxed mode.
            assert_eq!(code(alone.bench.context.synchronize()), NOT_PERMITTED);
        });
        assert_eq!(code(broken), INVALIDATED);
    }
    alone.finish();
}
