//! A device's clock: its anchors, and the times of operations between them.

use std::time::{Duration, Instant};

use transload_core::{ClockAnchor, OperationSampling, Queue};
use transload_cuda_sim::{SimDeviceBuilder, harness};
use transload_streams::CudaStream;

use super::profiling::{Recorder, copy, known};
use crate::support::setup::{Setup, noise};

/// Parts per million.
const DRIFT: i32 = 200;

/// A device whose clock runs with the host's; a simulated one is 5 s ahead and drifts.
fn paced(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Setup {
    Setup::on(harness::device_like(|builder| properties(builder.paced(Duration::from_secs(5), DRIFT))))
}

/// Returns the host's earliest and latest time of an instant of the device, in seconds since `origin`.
fn on_host(one: &ClockAnchor, two: &ClockAnchor, time: i64, origin: Instant) -> (f64, f64) {
    let share = (time - one.device) as f64 / (two.device - one.device) as f64;
    let between = |from: Instant, to: Instant| {
        let [from, to] = [from, to].map(|instant| instant.duration_since(origin).as_secs_f64());
        from + share * (to - from)
    };
    (between(one.before, two.before), between(one.after, two.after))
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn anchors_of_a_drifting_clock_have_its_rate_and_offset() {
    let setup = paced(|builder| builder);
    let stream = CudaStream::new(&setup.device).unwrap();
    let origin = Instant::now();
    let stamp = stream.stamp().unwrap();
    let clock = stamp.clock();
    let resolution = clock.resolution().as_secs_f64();
    let mut anchors = Vec::new();
    for _ in 0..5 {
        anchors.push(clock.anchor().unwrap());
        spin(Duration::from_millis(100));
    }
    let (first, last) = (anchors[0], anchors[4]);
    let width = |anchor: &ClockAnchor| anchor.after.duration_since(anchor.before).as_secs_f64();
    let middle = |anchor: &ClockAnchor| anchor.before + (anchor.after - anchor.before) / 2;
    let span = (middle(&last) - middle(&first)).as_secs_f64();
    assert!(span >= 0.3, "{span}");
    let rate = (last.device - first.device) as f64 / 1e9 / span;
    let error = ((width(&first) + width(&last)) / 2.0 + 2.0 * resolution) / span;
    // Of a real clock only a bound is known.
    let (drift, error) = match setup.test.is_simulated() {
        true => (1.0 + f64::from(DRIFT) / 1e6, error),
        false => (1.0, error + f64::from(DRIFT) / 1e6),
    };
    assert!((rate - drift).abs() <= error, "{rate} and not {drift}, error {error}");
    for anchor in &anchors[1..4] {
        let (earliest, latest) = on_host(&first, &last, anchor.device, origin);
        let [before, after] = [anchor.before, anchor.after].map(|at| at.duration_since(origin).as_secs_f64());
        assert!(earliest - resolution <= after && before <= latest + resolution, "{anchors:?}");
    }
    if let Some(sim) = setup.test.sim() {
        assert!(sim.now() >= Duration::from_secs(5) + Duration::from_millis(400), "{:?}", sim.now());
    }
    drop((anchors, stamp, stream));
    setup.finish();
}

#[test]
fn paced_operations_begin_after_they_are_enqueued_and_end_before_that_is_seen() {
    const TOOK: Duration = Duration::from_millis(5);
    let setup = paced(|builder| builder.latency(TOOK));
    let took = if setup.test.is_simulated() { TOOK.mul_f64(0.999) } else { Duration::ZERO };
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&noise(4096, 6)), setup.device(4096));
    let origin = Instant::now();
    let (recorder, sink) = Recorder::attached(&setup, OperationSampling::ALL);
    let stamp = stream.stamp().unwrap();
    let first = stamp.clock().anchor().unwrap();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let begun = Instant::now();
        copy(&stream, &host, &there).unwrap().wait().unwrap();
        seen.push(Instant::now());
        assert!(begun.elapsed() >= took, "work is not complete before its virtual end");
    }
    let last = stamp.clock().anchor().unwrap();
    let resolution = stamp.clock().resolution().as_secs_f64();
    let records = recorder.take();
    assert_eq!(records.len(), seen.len());
    for (record, seen) in records.iter().zip(seen) {
        let [begin, end] = [&record.begin, &record.end].map(known);
        assert!(Duration::from_nanos((end - begin) as u64) >= took, "{begin} {end}");
        let (_, begun) = on_host(&first, &last, begin, origin);
        let (ended, _) = on_host(&first, &last, end, origin);
        let [enqueued, seen] = [record.enqueued, seen].map(|at| at.duration_since(origin).as_secs_f64());
        assert!(begun + 2.0 * resolution >= enqueued, "began {begun}, enqueued {enqueued}");
        assert!(ended - 2.0 * resolution <= seen, "ended {ended}, seen {seen}");
    }
    setup.device.profile().sink().detach(&sink);
    drop((records, stamp, host, there, stream));
    setup.finish();
}
