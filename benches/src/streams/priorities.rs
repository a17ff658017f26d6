//! High work passes Low work that was queued first: a short kernel behind many long ones that fill the device.

use std::{cell::Cell, time::Instant};

use anyhow::Result;
use transload_core::StreamPriority;
use transload_cuda_sys::{RawStream, attribute};
use transload_streams::{AdvancedStreamPool, CudaModule, CudaStream, LaunchConfig};

use super::{
    Fixture, SPIN,
    comparison::{Comparison, Variant},
};
use crate::{
    reference::RawQueue,
    row::{Goal, Row, Summary},
};

/// Threads of a block: two such blocks fill a multiprocessor.
const THREADS: u32 = 1024;
/// How often each Low kernel fills the device: blocks of it wait all the time, and only who is more urgent passes them.
const WAVES: u32 = 20;
/// What a block of a Low kernel takes.
const WAVE_NANOSECONDS: u64 = 50_000;
/// Low kernels that are queued first, of one millisecond each.
const LOW_KERNELS: usize = 6;
const HIGH_NANOSECONDS: u64 = 10_000;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let multiprocessors = fixture.device.driver().attribute(attribute::MULTIPROCESSOR_COUNT)?;
    let fill = u32::try_from(multiprocessors)?.max(1) * 2;
    let (least, greatest) = fixture.context()?.stream_priority_range()?;
    let pool = AdvancedStreamPool::new(&fixture.device)?;
    let stream = |priority| pool.get_priority_stream(priority);
    let plain = [RawQueue::new(0)?, RawQueue::new(0)?];
    let prioritized = [RawQueue::new(least)?, RawQueue::new(greatest)?];
    let ours = [stream(StreamPriority::Low)?, stream(StreamPriority::High)?];
    let race = |low: RawStream, high: RawStream| -> Result<Instant> {
        for _ in 0..LOW_KERNELS {
            // SAFETY: both streams are of the module's context.
            unsafe { fixture.spin.launch(low, fill * WAVES, THREADS, WAVE_NANOSECONDS) }?;
        }
        let begun = Instant::now();
        // SAFETY: as above.
        unsafe { fixture.spin.launch(high, fill / 2, 32, HIGH_NANOSECONDS) }?;
        Ok(begun)
    };
    let kernel = CudaModule::from_ptx(&fixture.device, SPIN)?.kernel("transload_spin")?;
    let launch = |shape, nanoseconds: u64, stream: &CudaStream| {
        // SAFETY: the parameters are the kernel's; with an address of 0 it stores nothing.
        unsafe { kernel.launch(shape).arg(nanoseconds).arg(0_u64).enqueue(stream) }
    };
    // Whether Low work was still running when the High kernel was done.
    let (passed, raced) = (Cell::new(0_u32), Cell::new(0_u32));
    let raw = |[low, high]: &[RawQueue; 2]| {
        let begun = race(low.raw(), high.raw())?;
        high.finish()?;
        let took = begun.elapsed();
        low.finish()?;
        Ok(took.as_secs_f64() * 1e6)
    };
    let variants = vec![
        Variant::new("same", "two streams of the same priority", || raw(&plain)),
        Variant::new("leases", "leases, High behind Low", || {
            for _ in 0..LOW_KERNELS {
                launch(LaunchConfig::linear(fill * WAVES, THREADS), WAVE_NANOSECONDS, &ours[0])?;
            }
            let begun = Instant::now();
            launch(LaunchConfig::linear(fill / 2, 32), HIGH_NANOSECONDS, &ours[1])?;
            ours[1].synchronize()?;
            let took = begun.elapsed();
            raced.set(raced.get() + 1);
            passed.set(passed.get() + u32::from(!ours[0].is_ready()?));
            ours[0].synchronize()?;
            Ok(took.as_secs_f64() * 1e6)
        })
        .goal(Goal::RatioAtMost(0.5)),
        Variant::new("raw", "raw driver, most urgent behind least", || raw(&prioritized)),
    ];
    let comparison = Comparison {
        id: "priority".to_owned(),
        what: format!(
            "a kernel of 10 us behind {LOW_KERNELS} of 1 ms that fill the device, until it is done"
        ),
        unit: "us",
        bytes: 0,
        repetitions: fixture.repetitions(50),
    };
    let mut rows = comparison.rows(fixture, variants)?;
    let share = f64::from(passed.get()) / f64::from(raced.get().max(1));
    let what = "how often the High kernel was done while Low ones queued before it were not";
    let row =
        fixture.row("priority/passed", what, "leases, High behind Low", "share", Summary::single(share));
    rows.push(row.with_goal(Some(Goal::AtLeast(0.95))));
    Ok(rows)
}
