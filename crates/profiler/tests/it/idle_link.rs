//! A link that is idle while copies to use it are queued is told, and what is promised is saved.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use transload_core::{Backend, DeviceId, MemoryKind, Operation, Queue as _, Result, Timing, submit};
use transload_cuda_sim::harness;
use transload_profiler::{Advice, AdviceBasis, AdviceKind, TraceFormat, TraceOptions};
use transload_streams::CudaStream;

/// Runs copies next to a kernel, on its queue or on one of their own. On the software driver the device's clock runs with the host's. Returns the advice on idle links, and
/// the time from the begin of the first operation to the end of the last one. An error if engines cannot be recorded.
fn beside_a_kernel(has_kernel: bool, on_its_queue: bool) -> Result<(Option<Advice>, f64)> {
    const KERNEL: Duration = Duration::from_millis(60);
    let (test, backend, profiler) = crate::cuda::setup();
    profiler.record_engines()?;
    let device = DeviceId::Cuda(test.ordinal());
    let stream = || CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    let (first, own) = (stream(), stream());
    let src = backend.allocate(device, MemoryKind::Pinned, 16 << 20).unwrap();
    let dst = backend.allocate(device, MemoryKind::Device, 16 << 20).unwrap();
    if has_kernel {
        // Loads the kernel, which waits for streams.
        first.occupy(Duration::ZERO).unwrap().wait().unwrap();
    }
    // So that it is in no trace that begins later.
    drop(profiler.get_comprehensive_report());
    let written = crate::Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let gate = backend.allocate(device, MemoryKind::Mapped, 4).unwrap();
    // SAFETY: the buffer has 4 aligned bytes and outlives the reference; all access to them is atomic.
    let word: &AtomicU32 = unsafe { gate.host_address().unwrap().cast().as_ref() };
    // However long this thread is held up, on the software driver the copies are queued before the kernel begins.
    let is_held = has_kernel && on_its_queue && test.is_simulated();
    word.store(u32::from(!is_held), Ordering::Relaxed);
    if is_held {
        // SAFETY: the word lives until the stream has passed; this thread writes it below.
        unsafe { first.driver().wait_word(gate.device_address().unwrap(), 1) }.unwrap();
    }
    if has_kernel {
        first.occupy(KERNEL).unwrap();
    }
    let queue = if on_its_queue { &first } else { &own };
    let copy = Operation::Copy { src: &src, dst: &dst };
    (0..4).for_each(|_| _ = submit(queue, &copy, Timing::Off).unwrap());
    word.store(1, Ordering::Release);
    [&first, &own].into_iter().for_each(|stream| stream.synchronize().unwrap());
    let report = profiler.get_comprehensive_report();
    let is_link = |advice: &&Advice| matches!(advice.kind, AdviceKind::UseIdleLink { .. });
    let advice = report.advice.iter().find(is_link).cloned();
    profiler.finish_trace().unwrap();
    let slices = written.slices();
    let operations = slices.iter().filter(|slice| slice["args"]["pieces"].is_number());
    let spans: Vec<_> = operations
        .map(|slice| {
            (slice["ts"].as_f64().unwrap(), slice["ts"].as_f64().unwrap() + slice["dur"].as_f64().unwrap())
        })
        .collect();
    let (begin, end) = spans.iter().fold((f64::MAX, 0.0_f64), |sum, it| (sum.0.min(it.0), sum.1.max(it.1)));
    Ok((advice, (end - begin) * 1e3))
}

/// Runs of each case.
const ATTEMPTS: usize = 20;

#[test]
fn link_idle_while_copies_are_queued_is_told() {
    if let Err(error) = beside_a_kernel(true, true) {
        println!("skipped: {error}");
        return;
    }
    let attempts = |has_kernel, on_its_queue| {
        (0..ATTEMPTS).map(|_| beside_a_kernel(has_kernel, on_its_queue).unwrap()).collect::<Vec<_>>()
    };
    let mut told = attempts(true, true);
    if harness::is_real() {
        // This thread may be held up for longer than the kernel lasts, so that nothing is queued behind it.
        told.retain(|(advice, _)| advice.as_ref().is_some_and(|it| it.transfers == 4));
        assert!(told.len() > ATTEMPTS / 2, "{told:?}");
    }
    let beside = attempts(true, false);
    told.iter().for_each(|(advice, _)| check_idle_link(advice.as_ref().unwrap()));
    // Followed: none waits for the kernel.
    assert!(beside.iter().all(|(again, _)| again.is_none()), "{beside:?}");
    // The software driver's threads may be held up too, which makes a run longer.
    let judged = |runs: &[(Option<Advice>, f64)]| {
        let mut times: Vec<_> = runs.iter().map(|(_, time)| *time).collect();
        times.sort_by(f64::total_cmp);
        times[if harness::is_real() { times.len() / 2 } else { 0 }]
    };
    let promised = told[0].0.as_ref().and_then(|advice| advice.saving_ns).unwrap();
    let saved = (judged(&told) - judged(&beside)) / promised as f64;
    println!("saved {saved:.3} of what was promised");
    assert!((0.75..=1.25).contains(&saved), "{saved}");
    // Queued behind each other, they use the link all the time.
    let alone = attempts(false, true);
    assert!(alone.iter().all(|(advice, _)| advice.is_none()), "{alone:?}");
}

fn check_idle_link(advice: &Advice) {
    assert_eq!((advice.transfers, advice.bytes, advice.basis), (4, 64 << 20, Some(AdviceBasis::Engines)));
    assert_eq!(advice.saving_ns, Some(advice.took_ns), "{advice}");
    // 6 µs each, and 55 GB/s, by a clock that gains 200 millionths.
    assert!(!advice.simulated || advice.took_ns.abs_diff(4 * (6_000 + 305_040)) < 1_000, "{advice}");
    let parts = [
        "cpu/pinned",
        "their copy engine was idle for ",
        "on queues of their own",
        "by records of the engines",
    ];
    parts.iter().for_each(|part| assert!(advice.to_string().contains(part), "{advice}"));
}
