//! What is known to lie in the device's memory already, so that it need not be prefetched again.

use smallvec::SmallVec;
use transload_core::{DeviceId, Fence, MemoryKind, RawBuffer, SpinLock};

use super::hashing::ByBuffer;
use crate::ranges::{Ranges, bytes_of};

/// How many allocations are remembered; beyond that all are forgotten, which costs a prefetch each.
const MAX_ALLOCATIONS: usize = 1024;
/// How many ranges of an allocation are remembered, those that touch each other taken together.
const MAX_RANGES: usize = 1024;
/// Launches after a prefetch until it is polled.
const POLL_INTERVAL: u32 = 8;

/// Ranges of unified memory that prefetches and launches of one owner left on a device. As soon as the allocation is used
/// elsewhere (by the host, another device, a prefetch to there) nothing of it is known any more. Work of the device itself takes
/// nothing away, whoever enqueues it. Nothing is known of uses that go around the library, nor of pages that a full device gave
/// up: those cost page faults, never wrong bytes.
///
/// Usable from any thread. Holds a lock for some instructions for each range.
#[derive(Debug)]
pub struct DeviceResidency {
    device: DeviceId,
    state: SpinLock<State>,
}

#[derive(Debug, Default)]
struct State {
    known: ByBuffer<Known>,
    /// The last prefetch of each queue and how many launches were declared since. It is a use of its range until it is polled,
    /// which nothing else need do: launches wait for it on the device. Until then each finds it in its way.
    prefetches: SmallVec<[(Fence, u32); 2]>,
}

#[derive(Debug, Default)]
struct Known {
    /// The allocation's moves, that of the owner's next use among them.
    moves: u64,
    ranges: Ranges,
    /// A range was prefetched because it was predicted, and the allocation was not declared since.
    is_predicted: bool,
}

impl DeviceResidency {
    /// Of nothing yet.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self { device, state: SpinLock::new(State::default()) }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Declares what the next launch uses, of which memory that does not migrate is of no concern. Returns how many ranges that
    /// are if all of them are known to lie on the device and none was predicted; otherwise each is to be
    /// [marked](Self::mark_resident). Polls an earlier prefetch now and then, and never waits.
    pub fn declare<'a>(&self, uses: impl IntoIterator<Item = &'a RawBuffer>) -> Option<u64> {
        let (mut count, mut all) = (0, true);
        let mut uses = uses.into_iter().filter(|buffer| migrates(buffer)).peekable();
        if uses.peek().is_none() {
            return Some(0);
        }
        let mut state = self.state.lock();
        for buffer in uses {
            count += 1;
            // Each is looked at: what was predicted is declared now.
            all &= state.known.get_mut(&buffer.id()).is_some_and(|known| {
                !std::mem::take(&mut known.is_predicted)
                    && known.moves == buffer.use_epoch_for(self.device)
                    && known.ranges.covers(&bytes_of(buffer))
            });
        }
        let mut due = SmallVec::<[Fence; 2]>::new();
        state.prefetches.retain(|(fence, launches)| {
            *launches += 1;
            if *launches > POLL_INTERVAL {
                due.push(fence.clone());
            }
            *launches <= POLL_INTERVAL
        });
        drop(state);
        for fence in due.into_iter().filter(|fence| !fence.is_complete()) {
            let mut state = self.state.lock();
            if !state.prefetches.iter().any(|(other, _)| other.timeline().id() == fence.timeline().id()) {
                state.prefetches.push((fence, 0));
            }
        }
        all.then_some(count)
    }

    /// The buffer is about to be used there: answers whether it lies there already. Otherwise it is to be prefetched first, or
    /// the use brings it by page faults.
    pub fn mark_resident(&self, buffer: &RawBuffer) -> bool {
        let range = bytes_of(buffer);
        let moves = buffer.use_epoch_for(self.device);
        let mut state = self.state.lock();
        if state.known.len() >= MAX_ALLOCATIONS && !state.known.contains_key(&buffer.id()) {
            state.known.clear();
        }
        let known = state.known.entry(buffer.id()).or_default();
        if known.moves != moves || known.ranges.len() >= MAX_RANGES {
            *known = Known { moves, ..Known::default() };
        }
        let there = known.ranges.covers(&range);
        if !there {
            known.ranges.insert(range);
        }
        there
    }

    /// The buffer goes elsewhere, or what was expected did not happen. What is known of the rest of its allocation stays.
    pub fn forget(&self, buffer: &RawBuffer) {
        if let Some(known) = self.state.lock().known.get_mut(&buffer.id()) {
            known.ranges.remove(&bytes_of(buffer));
        }
    }

    /// A buffer that was expected is on its way, behind all other prefetches of the fence's queue. If it was predicted, the
    /// next launch that uses the allocation is not passed over, so that the prediction is seen to come true.
    pub fn record_prefetch(&self, buffer: &RawBuffer, fence: Fence, is_predicted: bool) {
        let mut state = self.state.lock();
        if is_predicted && let Some(known) = state.known.get_mut(&buffer.id()) {
            known.is_predicted = true;
        }
        let mut last = state.prefetches.iter_mut();
        let before = match last.find(|(other, _)| other.timeline().id() == fence.timeline().id()) {
            Some(last) => Some(std::mem::replace(last, (fence, 0))),
            None => {
                state.prefetches.push((fence, 0));
                None
            }
        };
        drop(state);
        // Not under the lock: it may be the last handle of its queue.
        drop(before);
    }
}

/// Whether the buffer is unified memory that can be prefetched: the host has an address of it only then.
#[inline]
pub(super) fn migrates(buffer: &RawBuffer) -> bool {
    buffer.place().kind == MemoryKind::Unified && !buffer.is_empty() && buffer.host_address().is_some()
}
