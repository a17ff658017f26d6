//! What a trace shows besides operations: memory, and values of the user.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use transload_core::{Backend, catch_panic};

use crate::Unit;

pub(crate) type ReadGauge = Box<dyn FnMut() -> Option<f64> + Send>;

#[derive(Default)]
pub(crate) struct Gauges {
    own: Vec<(String, Unit, ReadGauge)>,
    /// Whether a trace is written.
    pub(crate) are_read: bool,
}

impl Gauges {
    pub(crate) fn add(&mut self, name: String, unit: Unit, read: ReadGauge) {
        self.own.push((name, unit, read));
    }

    /// Reads the gauges and the backends' memory for a trace: user code and backends are called, so not under the collector's lock.
    pub(crate) fn read(&mut self, alive: &[Arc<dyn Backend>]) -> Vec<(String, Unit, Instant, f64)> {
        if !self.are_read {
            return Vec::new();
        }
        let now = Instant::now();
        let memory = memory(alive).into_iter();
        let memory =
            memory.map(|(name, bytes)| (format!("allocated by {name}"), Unit::Bytes, now, bytes as f64));
        let mut values: Vec<_> = memory.collect();
        // One that panics is not read again.
        self.own.retain_mut(|(name, unit, read)| {
            let value = catch_panic(read);
            let is_kept = value.is_ok();
            values.extend(value.ok().flatten().map(|value| (name.clone(), *unit, now, value)));
            is_kept
        });
        values
    }
}

/// Returns the allocated bytes by the backends' names.
pub(crate) fn memory(backends: &[Arc<dyn Backend>]) -> BTreeMap<&'static str, u64> {
    let mut memory = BTreeMap::new();
    for backend in backends {
        *memory.entry(backend.name()).or_default() += backend.resource_counts().bytes;
    }
    memory
}
