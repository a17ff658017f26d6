//! A buffer used by one thread, with its expected content.

use std::ops::Range;

use transload::{DeviceId, MemoryKind, RawBuffer};

use crate::{Machine, random::Random};

/// Maximum length of most buffers: copied in one piece.
const SMALL: usize = 96 << 10;
/// Maximum length of some buffers: staged in pieces.
const LARGE: usize = 3 << 20;

pub(crate) struct Owned {
    pub(crate) buffer: RawBuffer,
    pub(crate) model: Vec<u8>,
    pub(crate) from: (DeviceId, MemoryKind),
}

impl Owned {
    /// Creates one of a kind; content is written by the host or, for a device, copied from `scratch`.
    pub(crate) fn new(
        machine: &Machine,
        from: (DeviceId, MemoryKind),
        random: &mut Random,
        scratch: &RawBuffer,
    ) -> Self {
        let most = if random.one_in(8) { LARGE } else { SMALL };
        let mut model = vec![0; 1 + random.below(most)];
        random.fill(&mut model);
        let buffer = machine.manager.allocate_for(from.0, from.1, model.len()).unwrap();
        let owned = Self { buffer, model, from };
        if owned.buffer.host_address().is_some() {
            owned.buffer.write().unwrap().copy_from_slice(&owned.model);
        } else {
            let part = scratch.slice(..owned.model.len()).unwrap();
            part.write().unwrap().copy_from_slice(&owned.model);
            drop(machine.manager.copy(&part, &owned.buffer).submit());
        }
        owned
    }

    /// Memory used to write and read content.
    pub(crate) fn scratch(machine: &Machine) -> RawBuffer {
        let pinned = machine.kinds.iter().find(|(_, kind)| *kind == MemoryKind::Pinned).unwrap();
        machine.manager.allocate_for(pinned.0, pinned.1, LARGE).unwrap()
    }

    pub(crate) fn range(&self, random: &mut Random) -> Range<usize> {
        let length = random.length(self.model.len());
        let start = random.below(self.model.len() - length + 1);
        start..start + length
    }

    /// Compares a range with the model; waits for work in flight on it.
    pub(crate) fn verify(&self, machine: &Machine, range: Range<usize>, scratch: &RawBuffer) {
        let expected = &self.model[range.clone()];
        let part = self.buffer.slice(range.clone()).unwrap();
        if part.host_address().is_some() {
            self.compare(&part.read().unwrap(), expected, &range);
        } else {
            let to = scratch.slice(..expected.len()).unwrap();
            machine.manager.copy(&part, &to).wait().unwrap();
            self.compare(&to.read().unwrap(), expected, &range);
        }
    }

    fn compare(&self, seen: &[u8], expected: &[u8], range: &Range<usize>) {
        if seen != expected {
            let wrong = seen.iter().zip(expected).filter(|(seen, expected)| seen != expected).count();
            let first = seen.iter().zip(expected).position(|(seen, expected)| seen != expected);
            panic!(
                "{wrong} bytes of {range:?} of a buffer of {} bytes of {:?} differ, the first at {}",
                self.model.len(),
                self.from,
                range.start + first.unwrap_or_default()
            );
        }
    }
}
