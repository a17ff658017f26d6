//! Virtual time: derived from the link, and reproducible.

use transload_cuda_sim::harness;
use transload_cuda_sys::{Event, EventTiming};

use crate::raw::{Bench, download, upload};

#[test]
fn virtual_time_follows_the_link_and_is_the_same_every_time() {
    let time = |gbps: f64| {
        let test = harness::device_with(|builder| builder.host_link(gbps).seed(3))?;
        let bench = Bench::new(test);
        let stream = bench.stream();
        let memory = bench.memory(64 << 20);
        let source = bench.pinned(64 << 20);
        let timed = || Event::new(&bench.context, EventTiming::Enabled).expect("event");
        let (start, end) = (timed(), timed());
        start.record(&stream).expect("record");
        upload(&stream, memory.address, &source, 0, 64 << 20).expect("up");
        end.record(&stream).expect("record");
        stream.synchronize().expect("healthy");
        Some(end.elapsed_since(&start).expect("done").as_secs_f64())
    };
    let (Some(fast), Some(slow)) = (time(50.0), time(5.0)) else { return };
    let rate = |seconds: f64| f64::from(64 << 20) / seconds / 1e9;
    assert!((49.0..=50.0).contains(&rate(fast)), "{}", rate(fast));
    assert!((4.9..=5.0).contains(&rate(slow)), "{}", rate(slow));
    assert_eq!(time(5.0), Some(slow));
}

#[test]
fn one_link_serves_one_copy_of_a_direction_at_a_time() {
    let Some(test) = harness::device_with(|builder| builder.host_link(10.0)) else { return };
    let bench = Bench::new(test);
    let (one, two) = (bench.stream(), bench.stream());
    let bytes = 8 << 20;
    let memory = bench.memory(2 * bytes);
    let source = bench.pinned(2 * bytes);
    let timed = || Event::new(&bench.context, EventTiming::Enabled).expect("event");
    let (start, first, second) = (timed(), timed(), timed());
    start.record(&one).expect("record");
    upload(&one, memory.address, &source, 0, bytes).expect("up");
    upload(&two, memory.address + bytes as u64, &source, bytes, bytes).expect("up");
    first.record(&one).expect("record");
    second.record(&two).expect("record");
    bench.context.synchronize().expect("healthy");
    let last = first.elapsed_since(&start).expect("done").max(second.elapsed_since(&start).expect("done"));
    let alone = bytes as f64 / 10e9;
    assert!(
        last.as_secs_f64() >= 2.0 * alone * 0.99,
        "{last:?}: two copies cannot share a link and keep its rate"
    );
}

#[test]
fn two_looks_at_the_clock_are_apart_by_the_work_between() {
    let Some(test) = harness::device_with(|builder| builder.host_link(10.0)) else { return };
    let bench = Bench::new(test);
    let sim = bench.device.sim().expect("simulated");
    let (ahead, stream) = (bench.stream(), bench.stream());
    let bytes = 8 << 20;
    let (memory, host) = (bench.memory(bytes), bench.pinned(bytes));
    upload(&ahead, memory.address, &host, 0, bytes).expect("up");
    // Queries do not wait, so they tell the host's clock nothing.
    while !ahead.is_idle().expect("healthy") {}
    let begun = sim.now();
    download(&stream, &host, 0, memory.address, bytes).expect("down");
    stream.synchronize().expect("healthy");
    let (took, alone) = ((sim.now() - begun).as_secs_f64(), bytes as f64 / 10e9);
    assert!(took >= 0.99 * alone, "{took} of {alone}");
}

#[test]
fn an_event_keeps_the_time_of_its_last_record() {
    for seed in 0..20 {
        let Some(test) = harness::device_with(|builder| builder.seed(seed).host_link(1.0)) else { return };
        let bench = Bench::new(test);
        let (slow, fast) = (bench.stream(), bench.stream());
        let bytes = 8 << 20;
        let memory = bench.memory(bytes);
        let source = bench.pinned(bytes);
        let timed = || Event::new(&bench.context, EventTiming::Enabled).expect("event");
        let (start, end) = (timed(), timed());
        start.record(&fast).expect("record");
        upload(&slow, memory.address, &source, 0, bytes).expect("up");
        end.record(&slow).expect("record");
        end.record(&fast).expect("record again, elsewhere");
        bench.context.synchronize().expect("healthy");
        let elapsed = end.elapsed_since(&start).expect("done");
        assert!(elapsed.as_millis() < 8, "seed {seed}: {elapsed:?} is the time of the first record");
    }
}
