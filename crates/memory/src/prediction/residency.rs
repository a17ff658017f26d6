//! Ranges known to be in device memory already, which need no prefetch.

use smallvec::SmallVec;
use transload_core::{DeviceId, Fence, MemoryKind, RawBuffer, SpinLock};

use super::hashing::ByBuffer;
use crate::ranges::{Ranges, bytes_of};

/// Maximum number of allocations tracked; beyond it all are forgotten, which costs a prefetch each.
const MAX_ALLOCATIONS: usize = 1024;
/// Maximum number of ranges tracked per allocation, after merging adjacent ones.
const MAX_RANGES: usize = 1024;
/// Launches after a prefetch before its fence is polled.
const POLL_INTERVAL: u32 = 8;

/// Ranges of unified memory that prefetches and launches of one owner left on a device. A use of the allocation
/// elsewhere (by the host, by another device, by a prefetch to one) discards all of its ranges; work of this device
/// does not, regardless of who enqueues it. Uses outside this library and pages evicted by a full device are not tracked: these
/// cost page faults, never wrong data.
///
/// Usable from any thread. Holds a lock for a few instructions per range.
#[derive(Debug)]
pub struct DeviceResidency {
    device: DeviceId,
    state: SpinLock<State>,
}

#[derive(Debug, Default)]
struct State {
    known: ByBuffer<Known>,
    /// The last prefetch of each queue, and the number of launches declared since. It stays in the hazard table until
    /// its fence is polled, which nothing else needs to do: launches wait on the device.
    prefetches: SmallVec<[(Fence, u32); 2]>,
}

#[derive(Debug, Default)]
struct Known {
    /// Use epoch of the allocation, including the owner's next use.
    use_epoch: u64,
    ranges: Ranges,
    /// Whether a range was prefetched by prediction, and the allocation was not declared since.
    is_predicted: bool,
}

impl DeviceResidency {
    /// Creates an empty record.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self { device, state: SpinLock::new(State::default()) }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Declares the ranges that the next launch uses. Returns their number, without memory that does not migrate, if
    /// all are known to be resident and none was predicted; otherwise [mark](Self::mark_resident) each. Polls an
    /// earlier prefetch now and then; never waits.
    pub fn declare<'a>(&self, uses: impl IntoIterator<Item = &'a RawBuffer>) -> Option<u64> {
        let (mut count, mut all) = (0, true);
        let mut uses = uses.into_iter().filter(|buffer| migrates(buffer)).peekable();
        if uses.peek().is_none() {
            return Some(0);
        }
        let mut state = self.state.lock();
        for buffer in uses {
            count += 1;
            // Do not stop early: every range must be recorded as declared.
            all &= state.known.get_mut(&buffer.id()).is_some_and(|known| {
                !std::mem::take(&mut known.is_predicted)
                    && known.use_epoch == buffer.use_epoch_for(self.device)
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

    /// Marks a buffer as resident, because it is about to be used on the device, and returns whether it already was. If
    /// not, prefetch it first, or the use causes page faults.
    pub fn mark_resident(&self, buffer: &RawBuffer) -> bool {
        let range = bytes_of(buffer);
        let use_epoch = buffer.use_epoch_for(self.device);
        let mut state = self.state.lock();
        if state.known.len() >= MAX_ALLOCATIONS && !state.known.contains_key(&buffer.id()) {
            state.known.clear();
        }
        let known = state.known.entry(buffer.id()).or_default();
        if known.use_epoch != use_epoch || known.ranges.len() >= MAX_RANGES {
            *known = Known { use_epoch, ..Known::default() };
        }
        let there = known.ranges.covers(&range);
        if !there {
            known.ranges.insert(range);
        }
        there
    }

    /// Forgets a buffer's range that is moved elsewhere or was not prefetched after all. The rest of its allocation is
    /// kept.
    pub fn forget(&self, buffer: &RawBuffer) {
        if let Some(known) = self.state.lock().known.get_mut(&buffer.id()) {
            known.ranges.remove(&bytes_of(buffer));
        }
    }

    /// Records the prefetch of a buffer marked as resident, after all other prefetches on the fence's queue. If it was
    /// predicted, the next launch that uses the allocation is not skipped, so that the hit is counted.
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
        // Not under the lock: this may drop the last handle of its queue.
        drop(before);
    }
}

/// Returns whether the buffer is unified memory that can be prefetched; only then it has a host address.
#[inline]
pub(super) fn migrates(buffer: &RawBuffer) -> bool {
    buffer.place().kind == MemoryKind::Unified && !buffer.is_empty() && buffer.host_address().is_some()
}
