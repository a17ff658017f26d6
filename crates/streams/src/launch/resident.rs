//! What is known to lie in the device's memory already, so that it need not be prefetched again.

use std::{collections::HashMap, ops::Range};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{BufferId, RawBuffer};

use super::uses;

/// How many allocations are remembered; beyond that all are forgotten, which costs a prefetch each.
const MOST: usize = 1024;
/// How many ranges of an allocation are remembered.
const MOST_RANGES: usize = 16;

/// Ranges of unified memory that this executor's own prefetches and launches left on the device. As soon as anybody else used
/// the allocation (a host view, a copy, another stream's work) nothing of it is known any more: each use of a buffer through
/// this library is counted, and only as many as the executor's own are expected. Nothing is known of uses that go around the
/// library, nor of pages that a full device gave up: those cost page faults, never wrong bytes.
#[derive(Debug, Default)]
pub(crate) struct Resident {
    known: Mutex<HashMap<BufferId, Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The allocation's count of uses once all of ours are claimed.
    uses: u64,
    ranges: SmallVec<[Range<usize>; 2]>,
}

impl Resident {
    /// A launch is about to use the buffer: answers whether it lies there already. Otherwise it is to be prefetched first.
    pub(crate) fn expect(&self, buffer: &RawBuffer) -> bool {
        let range = uses::range(buffer);
        let mut all = self.known.lock();
        if all.len() >= MOST && !all.contains_key(&buffer.id()) {
            all.clear();
        }
        let known = all.entry(buffer.id()).or_default();
        let uses = buffer.uses();
        if uses > known.uses {
            *known = Known { uses, ranges: SmallVec::new() };
        }
        // The launch's own use.
        known.uses += 1;
        if known.ranges.iter().any(|there| there.start <= range.start && range.end <= there.end) {
            return true;
        }
        // The prefetch's.
        known.uses += 1;
        if known.ranges.len() == MOST_RANGES {
            known.ranges.clear();
        }
        known.ranges.push(range);
        false
    }

    /// The buffer goes elsewhere, or what was expected did not happen.
    pub(crate) fn forget(&self, buffer: &RawBuffer) {
        self.known.lock().remove(&buffer.id());
    }
}
