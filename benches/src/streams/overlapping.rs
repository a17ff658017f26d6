//! Two independent kernels of 1 ms on two leases: by the device's own events they take little more than one.

use anyhow::{Result, ensure};
use transload_core::{StreamPriority, WorkloadType};
use transload_streams::{AdvancedStreamPool, CudaEvent, CudaModule, LaunchConfig};

use super::{
    Fixture, SPIN,
    comparison::{Comparison, Variant},
};
use crate::{
    reference::{RawEvent, RawQueue},
    row::{Goal, Row},
};

const NANOSECONDS: u64 = 1_000_000;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let queues = [RawQueue::new(0)?, RawQueue::new(0)?];
    let [start, first, second] = [RawEvent::timed()?, RawEvent::timed()?, RawEvent::timed()?];
    let pool = AdvancedStreamPool::new(&fixture.device)?;
    let lease = || pool.lease(StreamPriority::Normal, WorkloadType::Compute);
    let leases = [lease()?, lease()?];
    ensure!(leases[0].id() != leases[1].id(), "two leases share a stream");
    let kernel = CudaModule::from_ptx(&fixture.device, SPIN)?.kernel("transload_spin")?;
    let event = || CudaEvent::new(&fixture.device);
    let marks = [event()?, event()?, event()?];
    let raw = |queues: [&RawQueue; 2]| {
        queues[0].record(&start)?;
        queues[1].wait(&start)?;
        for (queue, end) in queues.into_iter().zip([&first, &second]) {
            // SAFETY: the stream is of the module's context.
            unsafe { fixture.spin.launch(queue.raw(), 1, 1, NANOSECONDS) }?;
            queue.record(end)?;
        }
        first.finish()?;
        second.finish()?;
        Ok(first.since(&start)?.max(second.since(&start)?) * 1e6)
    };
    let variants = vec![
        Variant::new("raw", "raw driver, two streams", || raw([&queues[0], &queues[1]])),
        Variant::new("leases", "two leases", || {
            marks[0].record(&leases[0])?;
            leases[1].wait_event(&marks[0])?;
            for (lease, end) in leases.iter().zip([&marks[1], &marks[2]]) {
                let launch = kernel.launch(LaunchConfig::linear(1, 1)).arg(NANOSECONDS).arg(0_u64);
                // SAFETY: the parameters are the kernel's; with an address of 0 it stores nothing.
                unsafe { launch.enqueue(lease) }?;
                end.record(lease)?;
            }
            marks[1].synchronize()?;
            marks[2].synchronize()?;
            let ends = [marks[1].elapsed_since(&marks[0])?, marks[2].elapsed_since(&marks[0])?];
            Ok(ends[0].max(ends[1]).as_secs_f64() * 1e6)
        })
        .goal(Goal::AtMost(1200.0)),
        Variant::new("one-stream", "the same on one stream, for contrast", || raw([&queues[0], &queues[0]])),
    ];
    let comparison = Comparison {
        id: "overlap/1ms".to_owned(),
        what: "two independent kernels of 1 ms, both, by the device's events".to_owned(),
        unit: "us",
        bytes: 0,
        repetitions: fixture.repetitions(100),
    };
    comparison.rows(fixture, variants)
}
