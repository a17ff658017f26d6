//! Pinned memory that is kept and that nothing used at any reading.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{Advice, AdviceBasis, AdviceKind, clock_map::nanoseconds};

/// Less is not told.
const LEAST: u64 = 16 << 20;
/// Time between two readings, besides those of reports.
const INTERVAL: Duration = Duration::from_millis(100);

struct Idle {
    first: Instant,
    last: Instant,
    readings: u64,
    /// The least at any reading.
    bytes: u64,
    is_simulated: bool,
}

/// Readings of backends, by name, while the profiler is enabled.
#[derive(Default)]
pub(crate) struct IdlePinned(BTreeMap<&'static str, Idle>);

impl IdlePinned {
    /// Returns whether a reading is due.
    pub(crate) fn is_due(&self) -> bool {
        self.0.values().all(|idle| idle.last.elapsed() >= INTERVAL)
    }

    /// Takes how many bytes a backend keeps in no use.
    pub(crate) fn add(&mut self, backend: &'static str, bytes: u64, is_simulated: bool) {
        let now = Instant::now();
        let new = || Idle { first: now, last: now, readings: 0, bytes, is_simulated };
        let idle = self.0.entry(backend).or_insert_with(new);
        idle.last = now;
        idle.readings += 1;
        idle.bytes = idle.bytes.min(bytes);
    }

    pub(crate) fn advice(&self) -> impl Iterator<Item = Advice> {
        let is_told = |idle: &&Idle| idle.bytes >= LEAST && idle.readings > 1;
        self.0.values().filter(is_told).map(|idle| Advice {
            kind: AdviceKind::ReleasePinned,
            path: None,
            method: None,
            transfers: 0,
            bytes: idle.bytes,
            share: 0.0,
            took_ns: 0,
            whole_ns: nanoseconds(idle.last.saturating_duration_since(idle.first)),
            saving_ns: None,
            basis: Some(AdviceBasis::Readings(idle.readings)),
            simulated: idle.is_simulated,
        })
    }
}
