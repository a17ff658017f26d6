//! Free blocks still in use by their own stream, in order of completion.
//!
//! Only for host memory: its next owner writes it from the host and would have to wait. For device memory stream
//! order is enough.

use std::collections::VecDeque;

/// A block in flight.
#[derive(Clone, Copy)]
struct Entry {
    /// Point of the stream at which its use completes.
    point: u64,
    node: u32,
    size: u64,
}

/// The in-flight blocks of one stream, by point.
#[derive(Default)]
pub(crate) struct InFlight {
    list: VecDeque<Entry>,
    bytes: u64,
}

impl InFlight {
    /// Adds a block. Most are freed in order of submission, so the position is found at once.
    pub(crate) fn push(&mut self, point: u64, node: u32, size: u64) {
        let later = self.list.iter().rev().take_while(|entry| entry.point > point).count();
        self.list.insert(self.list.len() - later, Entry { point, node, size });
        self.bytes += size;
    }

    /// Returns the point of the first block.
    pub(crate) fn first(&self) -> Option<u64> {
        self.list.front().map(|entry| entry.point)
    }

    /// Removes a block whose point is reached.
    pub(crate) fn pop_reached(&mut self, reached: u64) -> Option<u32> {
        let entry = self.list.pop_front_if(|entry| entry.point <= reached)?;
        self.bytes -= entry.size;
        Some(entry.node)
    }

    /// Removes the first block that matches.
    pub(crate) fn take_first(&mut self, will_do: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.list.iter().position(|entry| will_do(entry.node))?;
        let entry = self.list.remove(at)?;
        self.bytes -= entry.size;
        Some(entry.node)
    }

    pub(crate) fn contains(&self, node: u32) -> bool {
        self.list.iter().any(|entry| entry.node == node)
    }

    /// Returns the total bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }
}
