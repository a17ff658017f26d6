//! Pinned memory that nothing used while the profiler was enabled: kept for reuse, and held by the caller.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use transload_core::{Backend, BufferId, HeldPinned};

use crate::{Advice, AdviceBasis, AdviceKind, clock_map::nanoseconds};

/// Less is not told.
const LEAST: u64 = 16 << 20;
/// Time between two readings, besides those of reports.
const INTERVAL: Duration = Duration::from_millis(100);
/// Fewer readings do not tell that memory is not used.
const READINGS: u64 = 10;

struct Idle {
    first: Instant,
    last: Instant,
    readings: u64,
    /// The least at any reading.
    bytes: u64,
    uses: u64,
}

impl Idle {
    fn new(uses: u64) -> Self {
        let now = Instant::now();
        Self { first: now, last: now, readings: 0, bytes: u64::MAX, uses }
    }

    fn add(&mut self, bytes: u64) {
        self.last = Instant::now();
        self.readings += 1;
        self.bytes = self.bytes.min(bytes);
    }
}

/// One reading of a backend's memory.
pub(crate) struct Reading {
    backend: Weak<dyn Backend>,
    is_simulated: bool,
    kept: u64,
    held: Vec<HeldPinned>,
}

impl Reading {
    pub(crate) fn of(backend: &Arc<dyn Backend>, is_simulated: bool) -> Self {
        let (kept, held) = (backend.idle_pinned_bytes(), backend.held_pinned());
        Self { backend: Arc::downgrade(backend), is_simulated, kept, held }
    }
}

struct OfBackend {
    is_simulated: bool,
    kept: Idle,
    /// Those that are alive.
    held: BTreeMap<BufferId, Idle>,
}

/// Readings of backends since the profiler was last enabled.
#[derive(Default)]
pub(crate) struct IdlePinned(Vec<(Weak<dyn Backend>, OfBackend)>);

impl IdlePinned {
    /// Returns whether a reading is due.
    pub(crate) fn is_due(&self) -> bool {
        self.0.iter().all(|(_, of)| of.kept.last.elapsed() >= INTERVAL)
    }

    pub(crate) fn add(&mut self, reading: Reading) {
        let Reading { backend, is_simulated, kept, held } = reading;
        let known = self.0.iter().position(|(known, _)| known.ptr_eq(&backend)).unwrap_or_else(|| {
            self.0.push((backend, OfBackend { is_simulated, kept: Idle::new(0), held: BTreeMap::new() }));
            self.0.len() - 1
        });
        let of = &mut self.0[known].1;
        if kept == 0 && of.kept.readings == 0 {
            // Nothing is kept before the first use.
            of.kept = Idle::new(0);
        } else {
            of.kept.add(kept);
        }
        of.held.retain(|buffer, _| held.iter().any(|it| it.buffer == *buffer));
        for HeldPinned { buffer, bytes, uses, is_in_use } in held {
            let idle = of.held.entry(buffer).or_insert_with(|| Idle::new(uses));
            let is_used = is_in_use || uses != idle.uses;
            idle.add(if is_used && !transload_core::mutant!("profiler/held-and-used") { 0 } else { bytes });
        }
    }

    pub(crate) fn advice(&self) -> impl Iterator<Item = Advice> {
        self.0.iter().flat_map(|(_, of)| {
            let kept = advice([&of.kept].into_iter(), of.is_simulated, |_| AdviceKind::ReleasePinned);
            let held =
                advice(of.held.values(), of.is_simulated, |buffers| AdviceKind::FreePinned { buffers });
            [kept, held].into_iter().flatten()
        })
    }
}

fn advice<'a>(
    idle: impl Iterator<Item = &'a Idle>,
    simulated: bool,
    kind: impl FnOnce(u64) -> AdviceKind,
) -> Option<Advice> {
    let idle: Vec<&Idle> = idle.filter(|idle| idle.readings >= READINGS && idle.bytes > 0).collect();
    let bytes = idle.iter().fold(0_u64, |sum, idle| sum.saturating_add(idle.bytes));
    // What is true of all.
    let times = idle.iter().map(|idle| (idle.last.saturating_duration_since(idle.first), idle.readings));
    let (whole, readings) = times.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))?;
    (bytes >= LEAST).then(|| Advice {
        kind: kind(idle.len() as u64),
        buffer: None,
        path: None,
        method: None,
        transfers: 0,
        bytes,
        share: 0.0,
        took_ns: 0,
        whole_ns: nanoseconds(whole),
        saving_ns: None,
        basis: Some(AdviceBasis::Readings(readings)),
        simulated,
    })
}

#[cfg(test)]
mod tests {
    use transload_backend_cpu::CpuBackend;

    use super::*;

    fn reading(backend: &Arc<dyn Backend>, kept: u64) -> Reading {
        Reading { backend: Arc::downgrade(backend), is_simulated: false, kept, held: Vec::new() }
    }

    #[test]
    fn two_backends_of_one_name_are_apart() {
        let backends = [(); 2].map(|()| CpuBackend::new().unwrap() as Arc<dyn Backend>);
        let mut idle = IdlePinned::default();
        for _ in 0..READINGS {
            backends.iter().zip([4 * LEAST, LEAST / 2]).for_each(|(of, kept)| idle.add(reading(of, kept)));
        }
        assert_eq!(idle.advice().map(|advice| advice.bytes).collect::<Vec<_>>(), [4 * LEAST]);
    }

    #[test]
    fn readings_before_the_profiler_was_enabled_again_do_not_count() {
        let backend = CpuBackend::new().unwrap() as Arc<dyn Backend>;
        let mut collector = crate::collector::Collector::new(Instant::now(), 64);
        let mut after = |readings| {
            (0..readings).for_each(|_| collector.idle_pinned.add(reading(&backend, LEAST)));
            let told = collector.idle_pinned.advice().count();
            collector.resume();
            told
        };
        assert_eq!([READINGS, READINGS - 1, READINGS].map(&mut after), [1, 0, 1]);
    }
}
