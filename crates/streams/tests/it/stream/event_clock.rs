//! A device's clock: its anchors, and that no time is lost by the events that times are measured from.

use std::time::{Duration, Instant};

use transload_core::{ClockAnchor, OperationSampling, Queue, Stamp};
use transload_cuda_sim::{SimDeviceBuilder, harness};
use transload_streams::CudaStream;

use super::profiling::{Recorder, copy, known};
use crate::support::setup::{Setup, noise};

const DRIFT: i32 = 200;

/// A device whose clock runs with the host's.
fn paced(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> Option<Setup> {
    harness::device_with(|builder| properties(builder.paced(Duration::from_secs(5), DRIFT))).map(Setup::on)
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
    let Some(setup) = paced(|builder| builder) else { return };
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
    let drift = 1.0 + f64::from(DRIFT) / 1e6;
    assert!((rate - drift).abs() <= error, "{rate} and not {drift}, error {error}");
    for anchor in &anchors[1..4] {
        let (earliest, latest) = on_host(&first, &last, anchor.device, origin);
        let [before, after] = [anchor.before, anchor.after].map(|at| at.duration_since(origin).as_secs_f64());
        assert!(earliest - resolution <= after && before <= latest + resolution, "{anchors:?}");
    }
    let now = setup.test.sim().unwrap().now();
    assert!(now >= Duration::from_secs(5) + Duration::from_millis(400), "{now:?}");
    drop((anchors, stamp, stream));
    setup.finish();
}

#[test]
fn paced_operations_begin_after_they_are_enqueued_and_end_before_that_is_seen() {
    const TOOK: Duration = Duration::from_millis(5);
    let Some(setup) = paced(|builder| builder.latency(TOOK)) else { return };
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
        assert!(begun.elapsed() >= TOOK.mul_f64(0.999), "work is not complete before its virtual end");
    }
    let last = stamp.clock().anchor().unwrap();
    let resolution = stamp.clock().resolution().as_secs_f64();
    let records = recorder.take();
    assert_eq!(records.len(), seen.len());
    for (record, seen) in records.iter().zip(seen) {
        let [begin, end] = [&record.begin, &record.end].map(known);
        assert!(Duration::from_nanos((end - begin) as u64) >= TOOK.mul_f64(0.999), "{begin} {end}");
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

#[test]
fn times_over_many_bases_are_exact() {
    const COPIES: usize = 1_000;
    /// Copies of which the times are still measured from a base nearby when they are read at the end.
    const LATE: usize = 300;
    // Not a multiple of the driver's steps.
    let latency = Duration::from_nanos(100_123_457);
    let Some(test) = harness::device_with(|builder| builder.latency(latency)) else { return };
    let setup = Setup::on(test);
    let sim = setup.test.sim().unwrap();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&noise(64, 7)), setup.device(64));
    let origin = stream.stamp().unwrap();
    stream.synchronize().unwrap();
    let (begun, first) = (sim.now(), known(&origin));
    // Nanoseconds by which the clock is ahead of virtual time.
    let error = |(stamp, at): &(Stamp, Duration)| {
        (known(stamp) - first) - i64::try_from((*at - begun).as_nanos()).unwrap()
    };
    let (mut stamps, mut last) = (Vec::new(), 0);
    for index in 0..COPIES {
        copy(&stream, &host, &there).unwrap();
        let stamp = stream.stamp().unwrap();
        stream.synchronize().unwrap();
        stamps.push((stamp, sim.now()));
        let now = error(&stamps[index]);
        // In a float of milliseconds, 100 s have steps of 8 µs.
        assert!((now - last).abs() <= 750, "copy {index} lasts {} ns more or less", now - last);
        // Each base is off by at most half of the driver's step, 0.25 µs in two seconds; anchors are off likewise.
        let most = 1_000 + 250 * i64::try_from(index / 20).unwrap();
        assert!(now.abs() <= most, "copy {index} is {now} ns off");
        last = now;
        if index % 20 == 19 {
            // Every two seconds of virtual time.
            stamps[index].0.clock().anchor().unwrap();
        }
    }
    assert!(sim.now() - begun >= Duration::from_secs(100));
    for late in stamps[COPIES - LATE..].windows(2) {
        let [one, two] = [&late[0], &late[1]].map(error);
        assert!((two - one).abs() <= 750, "read late: {} ns more or less", two - one);
    }
    drop((stamps, origin, host, there, stream));
    setup.finish();
}

#[test]
fn time_after_an_idle_hour_is_exact() {
    const LATENCY: i64 = 10_123;
    /// At a millisecond a byte, they take an hour, of which the driver's steps are 0.25 ms.
    const HOUR: usize = 3_600_000;
    let slow = |builder: SimDeviceBuilder| builder.host_link(1e-6).latency(Duration::from_nanos(10_123));
    let Some(test) = harness::device_with(slow) else { return };
    let setup = Setup::on(test);
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there, other) = (setup.pinned(&noise(HOUR, 8)), setup.device(HOUR), setup.device(64));
    drop(stream.stamp().unwrap());
    copy(&stream, &host, &there).unwrap().wait().unwrap();
    let begin = stream.stamp().unwrap();
    copy(&stream, &there.slice(..64).unwrap(), &other).unwrap();
    let end = stream.stamp().unwrap();
    stream.synchronize().unwrap();
    begin.clock().anchor().unwrap();
    let took = known(&end) - known(&begin);
    assert!((took - LATENCY).abs() <= 1_000, "{took} ns");
    drop((begin, end, host, there, other, stream));
    setup.finish();
}
