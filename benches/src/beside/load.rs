//! A device that computes meanwhile: one kernel after another on a stream of ordinary priority.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Result, anyhow, ensure};
use transload_cuda_sys::attribute;

use super::cublas::Cublas;
use crate::{
    comparison::Fixture,
    reference::{RawEvent, RawKernel, RawQueue},
};

/// Kernels in the queue at once.
const AHEAD: usize = 4;
/// Blocks for each multiprocessor, threads of each, and multiply-adds of each thread: about 1.5 ms on an H200.
const BLOCKS: u32 = 240;
const THREADS: u32 = 256;
const COUNT: u64 = 1_300;

/// What the device computes.
pub(crate) enum Load {
    Cublas(Cublas),
    /// With the number of blocks.
    MultiplyAdd(RawKernel, u32),
    /// A kernel that waits: on the software driver.
    Spin,
}

impl Load {
    /// Returns the best that there is.
    pub(crate) fn new(fixture: &Fixture<'_>) -> Result<Self> {
        if fixture.is_simulated() {
            return Ok(Self::Spin);
        }
        if let Some(cublas) = Cublas::load(fixture)? {
            return Ok(Self::Cublas(cublas));
        }
        let kernel = RawKernel::load(include_str!("../ptx/multiply_add.ptx"), c"transload_multiply_add")?;
        let multiprocessors = fixture.context()?.device().attribute(attribute::MULTIPROCESSOR_COUNT)?;
        Ok(Self::MultiplyAdd(kernel, u32::try_from(multiprocessors)?.saturating_mul(BLOCKS)))
    }

    /// Returns what it is, for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Cublas(cublas) => format!("GEMM of {}", cublas.origin.display()),
            Self::MultiplyAdd(..) => "multiply-adds (no cuBLAS found)".to_owned(),
            Self::Spin => "a waiting kernel".to_owned(),
        }
    }

    /// Returns whether it uses caches and memory as matrix multiplications do: only then the goals beside such a loop hold.
    pub(crate) fn is_gemm(&self) -> bool {
        matches!(self, Self::Cublas(_))
    }

    fn enqueue(&self, fixture: &Fixture<'_>, queue: &RawQueue) -> Result<()> {
        match self {
            Self::Cublas(cublas) => cublas.multiply(queue),
            Self::MultiplyAdd(kernel, blocks) => {
                let (count, out) = (COUNT, 0_u64);
                let mut parameters =
                    [(&raw const count).cast_mut().cast(), (&raw const out).cast_mut().cast()];
                // SAFETY: the kernel takes these two parameters of 8 bytes; with an address of 0 it stores nothing.
                unsafe { kernel.launch(queue.raw(), (*blocks, THREADS), &mut parameters) }
            }
            // SAFETY: the stream is of the fixture's context.
            Self::Spin => unsafe { fixture.spin.launch(queue.raw(), 1, 1, 1_000) },
        }
    }

    /// Runs `work` while the device computes. Returns its result, and the seconds of one kernel of the load meanwhile.
    pub(crate) fn beside<T>(
        &self,
        fixture: &Fixture<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, f64)> {
        let (stop, is_running) = (AtomicBool::new(false), AtomicBool::new(false));
        let (outcome, ends, span) = thread::scope(|scope| {
            let load = scope.spawn(|| self.repeat(fixture, &stop, &is_running));
            while !is_running.load(Ordering::Acquire) && !load.is_finished() {
                thread::yield_now();
            }
            let begun = Instant::now();
            let outcome = work();
            let ended = Instant::now();
            stop.store(true, Ordering::Release);
            let ends = load.join().unwrap_or_else(|_| Err(anyhow!("the load's thread panicked")));
            (outcome, ends, (begun, ended))
        });
        let (begun, ended) = span;
        let ends: Vec<f64> =
            ends?.into_iter().filter(|(at, _)| begun < *at && *at <= ended).map(|(_, took)| took).collect();
        // One that does not end meanwhile took at least as long.
        let took = if ends.is_empty() {
            (ended - begun).as_secs_f64()
        } else {
            ends.iter().sum::<f64>() / ends.len() as f64
        };
        ensure!(took > 0.0 || fixture.is_simulated(), "a kernel that took no time");
        Ok((outcome?, took))
    }

    /// Runs one after another until it is stopped. Returns when the host saw the end of each, and its seconds of device time.
    fn repeat(
        &self,
        fixture: &Fixture<'_>,
        stop: &AtomicBool,
        is_running: &AtomicBool,
    ) -> Result<Vec<(Instant, f64)>> {
        let _bound = fixture.context()?.enter()?;
        let queue = RawQueue::new(0)?;
        let events = (0..=AHEAD).map(|_| RawEvent::timed()).collect::<Result<Vec<_>>>()?;
        let event = |index: usize| events.get(index % events.len()).ok_or_else(|| anyhow!("no events"));
        let mut ends = Vec::new();
        queue.record(event(0)?)?;
        for last in 1.. {
            self.enqueue(fixture, &queue)?;
            queue.record(event(last)?)?;
            if let Some(first) = (last + 1).checked_sub(AHEAD).filter(|first| *first > 0) {
                event(first)?.finish()?;
                ends.push((Instant::now(), event(first)?.since(event(first - 1)?)?));
                is_running.store(true, Ordering::Release);
            }
            if stop.load(Ordering::Acquire) {
                break;
            }
        }
        queue.finish()?;
        Ok(ends)
    }
}
