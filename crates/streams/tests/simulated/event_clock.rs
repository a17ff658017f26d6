//! No time is lost by the events that times are measured from, whose differences the driver rounds.

use std::time::Duration;

use transload_core::{Fence, MemoryKind, Operation, Queue, RawBuffer, Stamp, Timing, submit};
use transload_cuda_sim::SimDeviceBuilder;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use crate::builder;

fn copy(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Fence {
    submit(stream, &Operation::Copy { src, dst }, Timing::Off).unwrap()
}

fn known(stamp: &Stamp) -> i64 {
    stamp.time().unwrap().unwrap()
}

#[test]
fn times_over_many_bases_are_exact() {
    const COPIES: usize = 1_000;
    /// Copies of which the times are still measured from a base nearby when they are read at the end.
    const LATE: usize = 300;
    // Not a multiple of the driver's steps.
    let latency = Duration::from_nanos(100_123_457);
    let sim = builder().latency(latency).checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let [host, there] =
        [MemoryKind::Pinned, MemoryKind::Device].map(|kind| memory.allocate(kind, 64).unwrap());
    let origin = stream.stamp().unwrap();
    stream.synchronize().unwrap();
    let (begun, first) = (sim.now(), known(&origin));
    // Nanoseconds by which the clock is ahead of virtual time.
    let error = |(stamp, at): &(Stamp, Duration)| {
        (known(stamp) - first) - i64::try_from((*at - begun).as_nanos()).unwrap()
    };
    let (mut stamps, mut last) = (Vec::new(), 0);
    for index in 0..COPIES {
        drop(copy(&stream, &host, &there));
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
}

#[test]
fn time_after_an_idle_hour_is_exact() {
    const LATENCY: i64 = 10_123;
    /// At a millisecond a byte, they take an hour, of which the driver's steps are 0.25 ms.
    const HOUR: usize = 3_600_000;
    let slow = |builder: SimDeviceBuilder| builder.host_link(1e-6).latency(Duration::from_nanos(10_123));
    let sim = slow(builder()).checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let host = memory.allocate(MemoryKind::Pinned, HOUR).unwrap();
    let [there, other] = [HOUR, 64].map(|bytes| memory.allocate(MemoryKind::Device, bytes).unwrap());
    drop(stream.stamp().unwrap());
    copy(&stream, &host, &there).wait().unwrap();
    let begin = stream.stamp().unwrap();
    drop(copy(&stream, &there.slice(..64).unwrap(), &other));
    let end = stream.stamp().unwrap();
    stream.synchronize().unwrap();
    begin.clock().anchor().unwrap();
    let took = known(&end) - known(&begin);
    assert!((took - LATENCY).abs() <= 1_000, "{took} ns");
}
