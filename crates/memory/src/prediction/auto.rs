//! Turns predictions into prefetches, within limits.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    BufferId, DeviceId, Error, ErrorKind, Operation, Queue, RawBuffer, Result, Timing, TrySubmitError, Turns,
    WeakBuffer, events::report, try_submit,
};
use transload_cuda_sys::Context;

use super::{
    AccessPredictor, DeclaredAccess, DeviceResidency, PredictedAccess, hashing::ByBuffer,
    memory_budget::MemoryBudget, residency::migrates,
};
use crate::{CudaDevice, CudaFeature, error::memory_info};

/// Maximum number of allocations tracked. Beyond it all are forgotten, and tracked again when used.
const MAX_BUFFERS: usize = 1024;

/// Limits of an [`AutoPrefetcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionLimits {
    /// Maximum number of ranges prefetched ahead, 1 to 16.
    pub depth: usize,
    /// Maximum number of bytes prefetched ahead and not used yet.
    pub bytes_ahead: usize,
}

impl Default for PredictionLimits {
    /// 4 ranges, 1 GiB.
    fn default() -> Self {
        Self { depth: 4, bytes_ahead: 1 << 30 }
    }
}

/// Counters of an [`AutoPrefetcher`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PredictionStatistics {
    /// Number of declared accesses.
    pub observed: u64,
    /// Declared accesses that were skipped, because all memory of their launch was resident and there was nothing to
    /// predict. Approximate if several threads declare concurrently.
    pub skipped: u64,
    /// Number of predictions followed by the predicted access.
    pub hits: u64,
    /// Number of predictions not followed by the predicted access.
    pub misses: u64,
    /// Number of prefetches enqueued.
    pub prefetches: u64,
    /// Total bytes of these prefetches.
    pub bytes: u64,
    /// Number of predicted ranges that were already on the device.
    pub resident: u64,
    /// Number of predicted ranges not prefetched: a host view was open, the host would have had to wait, or the device
    /// lacked memory.
    pub refused: u64,
}

/// Prefetches the unified memory that is predicted to be used next, on its own queue, while the device works.
///
/// Each range is declared when a launch that uses it is enqueued; predictions are derived from that (see
/// [`AccessPredictor`]). Prefetches stay within the limits and the device's free memory, less a 32nd of its total. The
/// prefetcher never waits, never touches a range with an open host view, and does nothing if the device migrates
/// unified memory as a whole.
///
/// Skips a launch if all its memory is known to be resident and unused elsewhere since it was last declared, as in the
/// `depth` launches before it. A skipped launch costs a few loads per range, and nothing is learned from it. The first
/// launch that uses other memory ends this: a new range, or an allocation that the host or another device used or that
/// was moved elsewhere.
///
/// A prefetch is ordered with all other uses of its range, so a wrong prediction only costs bandwidth. The prefetcher
/// keeps no buffer alive.
///
/// Usable from any thread, but interleaved declarations of several threads rarely repeat: use one prefetcher per
/// sequence of launches. Dropping it does not cancel prefetches.
pub struct AutoPrefetcher {
    supported: bool,
    device: DeviceId,
    /// Number of consecutive launches whose memory was all resident, up to `depth`: by then all predicted ranges have
    /// been used.
    in_a_row: AtomicUsize,
    depth: usize,
    /// Number of ranges of skipped launches.
    skipped: AtomicU64,
    context: Context,
    queue: Arc<dyn Queue>,
    residency: Arc<DeviceResidency>,
    /// Whether another owner of `residency` records the declared uses there.
    owns_declarations: bool,
    state: Mutex<State>,
}

struct State {
    predictor: AccessPredictor<BufferId>,
    buffers: ByBuffer<WeakBuffer>,
    budget: MemoryBudget,
    statistics: PredictionStatistics,
}

/// Predictions from one declared access.
type Expected = SmallVec<[(PredictedAccess<BufferId>, RawBuffer); 4]>;

impl AutoPrefetcher {
    /// Creates a prefetcher to the device. The queue should carry nothing else: a prefetch that waits for a range in
    /// use delays everything after it.
    ///
    /// # Errors
    /// `InvalidArgument` for a queue of another device; the driver's.
    pub fn new(device: &CudaDevice, queue: Arc<dyn Queue>, limits: PredictionLimits) -> Result<Self> {
        let mut own =
            Self::with_residency(device, queue, limits, Arc::new(DeviceResidency::new(device.id())))?;
        own.owns_declarations = false;
        Ok(own)
    }

    /// Like [`new`](Self::new), but shares `residency` with an owner, who must record each declared use there before it
    /// is enqueued.
    ///
    /// # Errors
    /// Like `new`, and `InvalidArgument` if `residency` tracks another device.
    pub fn with_residency(
        device: &CudaDevice,
        queue: Arc<dyn Queue>,
        limits: PredictionLimits,
        residency: Arc<DeviceResidency>,
    ) -> Result<Self> {
        if queue.device() != device.id() {
            let text = format!("queue belongs to {}, expected a queue of {}", queue.device(), device.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if residency.device() != device.id() {
            let text = format!("residency tracks {}, expected {}", residency.device(), device.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self {
            device: device.id(),
            context: device.context()?.clone(),
            queue,
            supported: device.supports_feature(CudaFeature::ConcurrentManagedAccess)?,
            in_a_row: AtomicUsize::new(0),
            depth: limits.depth,
            skipped: AtomicU64::new(0),
            residency,
            owns_declarations: true,
            state: Mutex::new(State {
                predictor: AccessPredictor::new(limits.depth, limits.bytes_ahead),
                buffers: ByBuffer::default(),
                budget: MemoryBudget::default(),
                statistics: PredictionStatistics::default(),
            }),
        })
    }

    /// Declares the ranges that the next launch uses, and returns the number of prefetches enqueued. Memory that is not
    /// unified is ignored.
    ///
    /// A range that cannot be prefetched is skipped without an error: the launch works regardless.
    pub fn observe(&self, uses: &[&RawBuffer]) -> usize {
        let uses = uses.iter().copied();
        let passes = !self.supported || self.try_skip(self.residency.declare(uses.clone()));
        if passes { 0 } else { self.predict_and_prefetch(uses) }
    }

    /// First half of [`observe`](Self::observe), given the result of [`DeviceResidency::declare`] for the next launch.
    /// Returns whether nothing is left to do; otherwise call [`predict_and_prefetch`](Self::predict_and_prefetch) once,
    /// possibly after the launch.
    #[must_use]
    pub fn try_skip(&self, there: Option<u64>) -> bool {
        let before = self.in_a_row.load(Ordering::Relaxed);
        match there {
            Some(0) => return true,
            Some(count) if before >= self.depth => {
                self.skipped
                    .store(self.skipped.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
                return true;
            }
            Some(_) => self.in_a_row.store(before + 1, Ordering::Relaxed),
            None => self.in_a_row.store(0, Ordering::Relaxed),
        }
        false
    }

    /// Second half of [`observe`](Self::observe): predicts from the last declared uses, and prefetches. Returns the
    /// number of prefetches enqueued.
    pub fn predict_and_prefetch<'a>(&self, uses: impl IntoIterator<Item = &'a RawBuffer>) -> usize {
        let mut enqueued = 0;
        for (argument, buffer) in (0..).zip(uses) {
            if !self.supported || !migrates(buffer) {
                continue;
            }
            if !self.owns_declarations {
                // If it is not resident, page faults bring it.
                let _there = self.residency.mark_resident(buffer);
                // Needed even if the launch uses a raw handle: the next use by the host then counts as a change of
                // user.
                buffer.record_external_use(self.device);
            }
            for (predicted, range) in self.predict(buffer, argument) {
                enqueued += usize::from(self.prefetch(&predicted, &range));
            }
        }
        enqueued
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn statistics(&self) -> PredictionStatistics {
        let state = self.state.lock();
        let (hits, misses) = state.predictor.hits_and_misses();
        let (seen, skipped) = (state.statistics.observed, self.skipped.load(Ordering::Relaxed));
        let observed = seen.saturating_add(skipped);
        PredictionStatistics { observed, skipped, hits, misses, ..state.statistics }
    }

    fn predict(&self, buffer: &RawBuffer, argument: u32) -> Expected {
        let mut expected = Expected::new();
        let mut state = self.state.lock();
        let State { predictor, buffers, statistics, .. } = &mut *state;
        statistics.observed += 1;
        if buffers.len() >= MAX_BUFFERS && !buffers.contains_key(&buffer.id()) {
            buffers.clear();
        }
        buffers.entry(buffer.id()).or_insert_with(|| buffer.downgrade());
        let access = DeclaredAccess {
            buffer: buffer.id(),
            argument,
            start: buffer.offset(),
            len: buffer.len(),
            allocation_len: buffer.allocation_len(),
        };
        let mut gone: SmallVec<[PredictedAccess<BufferId>; 4]> = SmallVec::new();
        for predicted in predictor.observe(access) {
            let end = predicted.start.saturating_add(predicted.len);
            let alive = buffers.get(&predicted.buffer).and_then(WeakBuffer::upgrade);
            match alive.and_then(|whole| whole.slice(predicted.start..end).ok()) {
                Some(range) => expected.push((*predicted, range)),
                None => gone.push(*predicted),
            }
        }
        for predicted in gone {
            buffers.remove(&predicted.buffer);
            predictor.forget(predicted.buffer);
        }
        expected
    }

    /// Prefetches one range unless it is resident. Returns whether a prefetch was enqueued.
    fn prefetch(&self, predicted: &PredictedAccess<BufferId>, range: &RawBuffer) -> bool {
        if self.residency.mark_resident(range) {
            self.state.lock().statistics.resident += 1;
            return false;
        }
        let bytes = range.len() as u64;
        let enqueued = match self.has_memory(bytes) {
            true => self.submit(range),
            false => self.declined(range, &"device memory is short"),
        };
        let mut state = self.state.lock();
        if enqueued {
            state.statistics.prefetches += 1;
            state.statistics.bytes += bytes;
        } else {
            state.statistics.refused += 1;
            state.predictor.withdraw(predicted);
            drop(state);
            self.residency.forget(range);
        }
        enqueued
    }

    fn submit(&self, range: &RawBuffer) -> bool {
        let operation = Operation::Prefetch { buffer: range, to: self.device };
        match try_submit(&*self.queue, &operation, Timing::Off, &Turns::default()) {
            Ok(fence) => {
                self.residency.record_prefetch(range, fence, true);
                true
            }
            Err(TrySubmitError::WouldBlock(_)) => self.declined(range, &"the host would have to wait"),
            // A host view is open, or the driver refuses, which the launch itself will report.
            Err(TrySubmitError::Failed(error)) => self.declined(range, &error),
        }
    }

    fn declined(&self, range: &RawBuffer, error: &dyn fmt::Display) -> bool {
        report::hint_declined("predicted prefetch", self.device, range.len(), error);
        false
    }

    fn has_memory(&self, bytes: u64) -> bool {
        let mut budget = std::mem::take(&mut self.state.lock().budget);
        // Query the driver without the lock. A concurrent thread makes its own query.
        let has = budget.try_reserve(bytes, || memory_info(&self.context).ok());
        self.state.lock().budget = budget;
        has
    }
}

impl fmt::Debug for AutoPrefetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoPrefetcher")
            .field("device", &self.device)
            .field("supported", &self.supported)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
