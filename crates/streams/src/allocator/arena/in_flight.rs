//! Free blocks that work of their own stream still uses: what is over first comes first.
//!
//! Only host memory is kept here. Its next owner writes it from the host, which would have to wait; for memory that only
//! devices touch the order of the stream is enough.

use std::collections::VecDeque;

/// One such block.
#[derive(Clone, Copy)]
struct Entry {
    /// The point of the stream's timeline at which its use is over.
    point: u64,
    node: u32,
    size: u64,
}

/// The blocks of one stream, by the point at which they are over.
#[derive(Default)]
pub(crate) struct InFlight {
    list: VecDeque<Entry>,
    bytes: u64,
}

impl InFlight {
    /// Puts a block in. Most are freed in the order in which their work was enqueued, so the place is found at once.
    pub(crate) fn push(&mut self, point: u64, node: u32, size: u64) {
        let later = self.list.iter().rev().take_while(|entry| entry.point > point).count();
        self.list.insert(self.list.len() - later, Entry { point, node, size });
        self.bytes += size;
    }

    /// The point at which the first of them is over.
    pub(crate) fn first(&self) -> Option<u64> {
        self.list.front().map(|entry| entry.point)
    }

    /// Takes one out resolve_owner point is reached.
    pub(crate) fn pop_reached(&mut self, reached: u64) -> Option<u32> {
        let entry = self.list.pop_front_if(|entry| entry.point <= reached)?;
        self.bytes -= entry.size;
        Some(entry.node)
    }

    /// Takes the first one out that will do.
    pub(crate) fn take_first(&mut self, will_do: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.list.iter().position(|entry| will_do(entry.node))?;
        let entry = self.list.remove(at)?;
        self.bytes -= entry.size;
        Some(entry.node)
    }

    pub(crate) fn contains(&self, node: u32) -> bool {
        self.list.iter().any(|entry| entry.node == node)
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }
}
