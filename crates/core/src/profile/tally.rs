//! Counts of a queue's operations while a sink is attached, and which of them are timed.

use crate::{
    OperationInfo, OperationKind,
    sync::{AtomicU64, Mutex, Ordering, fence},
};

const KINDS: usize = OperationKind::ALL.len();

/// Which operations a sink is given, with their times. All others are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OperationSampling {
    /// Operations of at least this many bytes are all timed.
    pub all_from_bytes: u64,
    /// Of smaller ones of each queue and kind, one in this many on average, at irregular distances; 0 times none of them. Operations of
    /// transfers of which an observer wants the times count among them. The first operation of each queue is always timed, so that the sink learns of
    /// it: of many short-lived queues more are.
    pub one_in: u32,
}

impl OperationSampling {
    /// Times every operation. Two events each: about half again as long for a copy of 4 KiB on a GPU.
    pub const ALL: Self = Self { all_from_bytes: 0, one_in: 1 };
}

/// All from 4 MiB, one in 64 below.
impl Default for OperationSampling {
    fn default() -> Self {
        Self { all_from_bytes: 4 << 20, one_in: 64 }
    }
}

/// Counts of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OperationCount {
    /// Number of operations.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Counts the operations of one queue while a sink is attached to its device. Written mostly by one thread.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct QueueTally {
    /// The attachment that is counted for, of which later ones have larger numbers; 0 while the counts of an earlier one are cleared.
    attachment: AtomicU64,
    clearing: Mutex<()>,
    operations: [AtomicU64; KINDS],
    bytes: [AtomicU64; KINDS],
    /// Small operations of each kind until the next one that is timed.
    left: [AtomicU64; KINDS],
    random: AtomicU64,
}

impl QueueTally {
    /// Counts an operation. Returns whether it is timed: the first one of each attachment always is, so that the sink learns of the queue,
    /// and all of transfers whose times are wanted.
    #[inline]
    pub(super) fn count(
        &self,
        (kind, bytes): (OperationKind, u64),
        attachment: u64,
        sampling: (u64, u64),
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let (all_from_bytes, one_in) = sampling;
        if self.attachment.load(Ordering::Acquire) != attachment {
            return self.count_first((kind, bytes), attachment, sampling, &is_wanted);
        }
        self.add(kind, bytes);
        if bytes >= all_from_bytes {
            return true;
        }
        // A lost race samples one operation more or less.
        let next = &self.left[kind as usize];
        let left = next.load(Ordering::Relaxed);
        // Last, since it is a call, and registers need not be kept for it.
        let is_wanted = is_wanted();
        match left.checked_sub(1) {
            Some(fewer) if !is_wanted => next.store(fewer, Ordering::Relaxed),
            _ => self.draw(next, one_in, is_wanted),
        }
        left == 0 || is_wanted
    }

    /// Counts an operation that may be the first of an attachment.
    #[cold]
    fn count_first(
        &self,
        (kind, bytes): (OperationKind, u64),
        attachment: u64,
        sampling: (u64, u64),
        is_wanted: &dyn Fn() -> bool,
    ) -> bool {
        if self.count_for(attachment, sampling.1) {
            self.add(kind, bytes);
            return true;
        }
        // Either again, or for a sink that is no longer attached.
        self.attachment.load(Ordering::Acquire) == attachment
            && self.count((kind, bytes), attachment, sampling, is_wanted)
    }

    fn add(&self, kind: OperationKind, bytes: u64) {
        self.operations[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Draws how many operations are not timed from now on. One that is wanted counts as one of those that are due, of which the next is due only if no
    /// wanted one comes before.
    #[cold]
    fn draw(&self, next: &AtomicU64, one_in: u64, is_wanted: bool) {
        let later = if is_wanted && one_in > 1 { 2 * one_in } else { 0 };
        next.store(self.next_distance(one_in).saturating_add(later), Ordering::Relaxed);
    }

    /// Has the next operation of each kind timed, since the sink was not given one that should have been, perhaps the first.
    pub fn time_next(&self) {
        self.left.iter().for_each(|left| left.store(0, Ordering::Relaxed));
    }

    /// Takes back the count of an operation that was refused. If it was the only one, the next one is the first.
    pub(super) fn withdraw(&self, info: &OperationInfo, attachment: u64) {
        if self.attachment.load(Ordering::Relaxed) != attachment {
            return;
        }
        let subtract = |counter: &AtomicU64, count: u64| {
            counter.update(Ordering::Relaxed, Ordering::Relaxed, |before| before.saturating_sub(count));
        };
        let kind = info.kind as usize;
        subtract(&self.operations[kind], 1);
        subtract(&self.bytes[kind], info.bytes);
        // One that it was to wait for may have been counted before.
        let mut others = OperationKind::ALL.into_iter().zip(&self.operations);
        if others.all(|(kind, count)| kind == OperationKind::Wait || count.load(Ordering::Relaxed) == 0) {
            self.time_next();
        }
    }

    /// Returns the counts of each kind for an attachment, in the order of [`OperationKind::ALL`]; zeros if it counted for another one last.
    #[must_use]
    pub fn counts(&self, attachment: u64) -> [OperationCount; KINDS] {
        if self.attachment.load(Ordering::Acquire) != attachment {
            return Default::default();
        }
        let counts = std::array::from_fn(|kind| OperationCount {
            operations: self.operations[kind].load(Ordering::Relaxed),
            bytes: self.bytes[kind].load(Ordering::Relaxed),
        });
        // With the fence of `count_for`: counts that were cleared meanwhile are not returned.
        fence(Ordering::Acquire);
        match self.attachment.load(Ordering::Relaxed) == attachment {
            true => counts,
            false => Default::default(),
        }
    }

    /// Begins to count for an attachment. Returns `false` if another thread did, or if it counts for a later one.
    #[cold]
    fn count_for(&self, attachment: u64, one_in: u64) -> bool {
        let _clearing = self.clearing.lock();
        if self.attachment.load(Ordering::Relaxed) >= attachment {
            return false;
        }
        self.attachment.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        if !crate::mutant!("core/tally-cleared") {
            self.operations.iter().chain(&self.bytes).for_each(|counter| counter.store(0, Ordering::Relaxed));
        }
        // Queues differ by their addresses.
        let seed = (std::ptr::from_ref(self).addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.random.store(seed ^ attachment, Ordering::Relaxed);
        // The next ones as irregularly as later ones: a queue may be short-lived.
        self.left.iter().for_each(|left| left.store(self.next_distance(one_in), Ordering::Relaxed));
        // A thread that reads it counts after the clearing.
        self.attachment.store(attachment, Ordering::Release);
        true
    }

    /// Returns how many small operations are not timed before the next one that is: `one_in - 1` on average, and all if it is 0.
    fn next_distance(&self, one_in: u64) -> u64 {
        (2 * one_in).checked_sub(1).map_or(u64::MAX, |range| self.next_random() % range)
    }

    /// Returns the next number of a xorshift generator.
    fn next_random(&self) -> u64 {
        let mut number = self.random.load(Ordering::Relaxed) | 1 << 40;
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        self.random.store(number, Ordering::Relaxed);
        number
    }
}
