//! What a trace shows besides operations: memory, and values of the user.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use transload_core::{Backend, DeviceId, catch_panic};

use crate::Unit;

pub(crate) type ReadGauge = Box<dyn FnMut() -> Option<f64> + Send>;

/// A value that was read.
pub(crate) struct Value {
    /// The device that it stands next to, and whether it is simulated.
    pub(crate) device: Option<(DeviceId, bool)>,
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) at: Instant,
    pub(crate) value: f64,
}

#[derive(Default)]
pub(crate) struct Gauges {
    own: Vec<(String, Unit, ReadGauge)>,
    /// Whether a trace is written.
    pub(crate) are_read: bool,
}

impl Gauges {
    /// Adds one. Each has a row of its own: a second one of a name has its number in its name.
    pub(crate) fn add(&mut self, mut name: String, unit: Unit, read: ReadGauge) {
        if self.index_of(&name).is_some() {
            name = self.numbered(&name);
        }
        self.own.push((name, unit, read));
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.own.iter().position(|(known, ..)| known == name)
    }

    /// Returns a name with the first number that makes it a new one.
    fn numbered(&self, name: &str) -> String {
        let mut names = (2_u64..).map(|number| format!("{name} ({number})"));
        names.find(|name| self.index_of(name).is_none()).unwrap_or_default()
    }

    /// Reads the gauges and the backends' memory for a trace: user code and backends are called, so not under the collector's lock.
    pub(crate) fn read(&mut self, alive: &[Arc<dyn Backend>]) -> Vec<Value> {
        if !self.are_read {
            return Vec::new();
        }
        let at = Instant::now();
        let bytes = |device, name: String, bytes: u64| Value {
            device,
            name,
            unit: Unit::Bytes,
            at,
            value: bytes as f64,
        };
        let mut values = Vec::new();
        for (name, sum) in memory(alive) {
            let name = format!("allocated by {name}");
            if let Some(index) = self.index_of(&name) {
                self.own[index].0 = self.numbered(&name);
            }
            values.push(bytes(None, name, sum));
        }
        // Several backends may have one device.
        let mut by_device = BTreeMap::<_, u64>::new();
        for backend in alive {
            for device in backend.devices() {
                if let Some(more) = backend.device_bytes(device.id) {
                    *by_device.entry((device.id, device.simulated)).or_default() += more;
                }
            }
        }
        let of_device = |(device, sum)| bytes(Some(device), "device memory".to_owned(), sum);
        values.extend(by_device.into_iter().map(of_device));
        // One that panics is not read again.
        self.own.retain_mut(|(name, unit, read)| {
            let value = catch_panic(read);
            let is_kept = value.is_ok();
            // A trace has numbers only.
            let number = value.ok().flatten().filter(|value| value.is_finite());
            values.extend(number.map(|value| Value {
                device: None,
                name: name.clone(),
                unit: *unit,
                at,
                value,
            }));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_of_one_name_have_rows_of_their_own() {
        let mut gauges = Gauges { are_read: true, ..Gauges::default() };
        for value in [1.0, 2.0, 3.0] {
            gauges.add("rows".to_owned(), Unit::Count, Box::new(move || Some(value)));
        }
        let read = gauges.read(&[]).into_iter().map(|it| (it.name, it.value));
        let rows = [("rows", 1.0), ("rows (2)", 2.0), ("rows (3)", 3.0)];
        assert_eq!(read.collect::<Vec<_>>(), rows.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn reading_that_is_no_number_is_none() {
        let mut gauges = Gauges { are_read: true, ..Gauges::default() };
        let mut values = [f64::NAN, 1.0, f64::INFINITY, 2.0].into_iter();
        gauges.add("rows".to_owned(), Unit::Count, Box::new(move || values.next()));
        let read: Vec<_> = (0..5).flat_map(|_| gauges.read(&[])).map(|it| it.value).collect();
        assert_eq!(read, [1.0, 2.0]);
    }
}
