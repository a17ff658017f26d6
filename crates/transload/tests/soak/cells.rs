//! Ranges that all threads read and write: a reader sees one whole write, and of its own writes the last.

use std::collections::HashMap;

use transload::{ErrorKind, RawBuffer, Transfer};

use crate::{Machine, random::Random};

/// Bytes of a cell: a multiple of a tag's 8.
pub(crate) const CELL: usize = 12_288;
const CELLS: usize = 8;

/// One buffer of each kind of memory, divided into cells.
pub(crate) struct Cells {
    buffers: Vec<RawBuffer>,
}

/// A cell: the index of its buffer, and its offset.
pub(crate) type At = (usize, usize);

impl Cells {
    /// Creates cells of zeros.
    pub(crate) fn new(machine: &Machine) -> Self {
        let zeros =
            machine.manager.allocate_for(transload::DeviceId::Cpu, transload::MemoryKind::Pageable, CELL);
        let zeros = zeros.unwrap();
        zeros.write().unwrap().fill(0);
        let cells = Self {
            buffers: machine
                .kinds
                .iter()
                .map(|(device, kind)| machine.manager.allocate_for(*device, *kind, CELL * CELLS).unwrap())
                .collect(),
        };
        for buffer in 0..cells.buffers.len() {
            for cell in 0..CELLS {
                machine.manager.copy(&zeros, &cells.cell((buffer, cell))).wait().unwrap();
            }
        }
        cells
    }

    pub(crate) fn any(&self, random: &mut Random) -> At {
        (random.below(self.buffers.len()), random.below(CELLS))
    }

    pub(crate) fn cell(&self, (buffer, cell): At) -> RawBuffer {
        self.buffers[buffer].slice(cell * CELL..(cell + 1) * CELL).unwrap()
    }
}

/// The last write of one thread to each cell. A tag names the thread and its write.
pub(crate) struct Tags {
    thread: u64,
    last: HashMap<At, u64>,
    writes: u64,
}

impl Tags {
    pub(crate) fn new(thread: u64) -> Self {
        Self { thread, last: HashMap::new(), writes: 0 }
    }

    /// Returns the bytes of the next write.
    pub(crate) fn next(&mut self) -> (u64, Vec<u8>) {
        self.writes += 1;
        let tag = ((self.thread + 1) << 48) | self.writes;
        (tag, tag.to_le_bytes().repeat(CELL / 8))
    }

    /// Records that the write of a tag was submitted.
    pub(crate) fn wrote(&mut self, at: At, tag: u64) {
        self.last.insert(at, tag);
    }

    /// Checks bytes read from a cell.
    pub(crate) fn check(&self, at: At, seen: &[u8]) {
        let tags = || seen.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
        let first = tags().next().unwrap();
        if let Some(other) = tags().find(|tag| *tag != first) {
            panic!("cell {at:?} holds parts of two writes, {first:#x} and {other:#x}");
        }
        if first >> 48 == self.thread + 1 {
            let last = self.last.get(&at).copied();
            assert_eq!(
                Some(first),
                last,
                "cell {at:?} holds an earlier write of this thread's than its last"
            );
        }
    }
}

/// Returns whether a transfer was refused because a host view is open on its range.
pub(crate) fn is_busy(transfer: &Transfer) -> bool {
    transfer.refusal().is_some_and(|error| error.kind() == ErrorKind::Busy)
}
