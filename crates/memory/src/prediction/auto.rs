//! Predictions turned into prefetches, within bounds.

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
    WeakBuffer, try_submit,
};
use transload_cuda_sys::Context;

use super::{
    AccessPredictor, DeclaredAccess, DeviceResidency, PredictedAccess, hashing::ByBuffer,
    memory_budget::MemoryBudget, residency::migrates,
};
use crate::{CudaDevice, CudaFeature, error::memory_info};

/// How many allocations are remembered; beyond that all are forgotten, and found again when they are used.
const MAX_BUFFERS: usize = 1024;

/// How far an [`AutoPrefetcher`] reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionLimits {
    /// Ranges ahead, 1 to 16.
    pub depth: usize,
    /// Bytes ahead: prefetched and not used yet.
    pub bytes_ahead: usize,
}

impl Default for PredictionLimits {
    /// 4 ranges, 1 GiB.
    fn default() -> Self {
        Self { depth: 4, bytes_ahead: 1 << 30 }
    }
}

/// What an [`AutoPrefetcher`] did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PredictionStatistics {
    /// Accesses that were declared.
    pub observed: u64,
    /// Those of them that were passed over: all of their launch lay on the device, and there was nothing to predict. Where
    /// several threads declare at once, a few may not be counted.
    pub skipped: u64,
    /// Predictions that came true.
    pub hits: u64,
    /// Predictions that did not.
    pub misses: u64,
    /// Prefetches that were enqueued.
    pub prefetches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Predicted ranges that lay on the device already.
    pub resident: u64,
    /// Predicted ranges that were left alone: the host looked at them or would have had to wait, or the device had no room.
    pub refused: u64,
}

/// Prefetches the unified memory that is expected to be used next, on a queue of its own, while the device works.
///
/// It is told of each range when a launch that uses it is enqueued, and predicts from that (see [`AccessPredictor`]). What it
/// predicts it prefetches as far as the limits and the device's free memory (less a 32nd of all) allow. It never waits, never
/// touches a range that a host view holds, and does nothing at all where the device moves unified memory as a whole.
///
/// A launch of nothing but memory that is known to lie on the device, and that nobody elsewhere used since it was declared last,
/// is passed over where it comes behind several such launches (as many as the depth): it costs a few loads for each range, and
/// nothing is learned from it. The first launch that uses anything else ends that at once: a range that was not used before, or
/// an allocation that the host looked at, that another device used, or that was sent elsewhere.
///
/// A prefetch is ordered with all other uses of its range, so a wrong prediction costs time on the link and nothing else. It
/// keeps no buffer alive that nobody else holds.
///
/// Usable from any thread, but what several threads declare in turns hardly repeats itself: give each sequence of launches a
/// prefetcher of its own. Dropping it cuts no prefetch short.
pub struct AutoPrefetcher {
    supported: bool,
    device: DeviceId,
    /// Launches in a row of nothing but memory that lay on the device, up to the depth: what was predicted before has been
    /// used by then.
    in_a_row: AtomicUsize,
    depth: usize,
    /// Ranges of launches that were passed over.
    skipped: AtomicU64,
    context: Context,
    queue: Arc<dyn Queue>,
    residency: Arc<DeviceResidency>,
    /// Whether the residency's owner notes the declared uses there.
    owns_declarations: bool,
    state: Mutex<State>,
}

struct State {
    predictor: AccessPredictor<BufferId>,
    buffers: ByBuffer<WeakBuffer>,
    budget: MemoryBudget,
    statistics: PredictionStatistics,
}

/// Of one declaration.
type Expected = SmallVec<[(PredictedAccess<BufferId>, RawBuffer); 4]>;

impl AutoPrefetcher {
    /// A prefetcher to the device. The queue should have nothing else to do: a prefetch that waits for a range in use holds
    /// up what is behind it.
    ///
    /// # Errors
    /// `InvalidArgument` for a queue of another device; the driver's.
    pub fn new(device: &CudaDevice, queue: Arc<dyn Queue>, limits: PredictionLimits) -> Result<Self> {
        let mut own =
            Self::with_residency(device, queue, limits, Arc::new(DeviceResidency::new(device.id())))?;
        own.owns_declarations = false;
        Ok(own)
    }

    /// As [`new`](Self::new), with what somebody else knows of the device's memory: who notes there every use that is
    /// declared here, before it is enqueued.
    ///
    /// # Errors
    /// As for `new`; `InvalidArgument` also where what is known is known of another device.
    pub fn with_residency(
        device: &CudaDevice,
        queue: Arc<dyn Queue>,
        limits: PredictionLimits,
        residency: Arc<DeviceResidency>,
    ) -> Result<Self> {
        if queue.device() != device.id() {
            let text = format!("the queue is one of {}; valid is one of {}", queue.device(), device.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if residency.device() != device.id() {
            let text = format!("what is known is known of {}, not of {}", residency.device(), device.id());
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

    /// Declares that the launch which is enqueued next uses these ranges of buffers. Memory that is not unified is of no
    /// concern. Answers how many prefetches were enqueued.
    ///
    /// What cannot be prefetched is left alone, and never an error: the launch works all the same.
    pub fn observe(&self, uses: &[&RawBuffer]) -> usize {
        let uses = uses.iter().copied();
        let passes = !self.supported || self.try_skip(self.residency.declare(uses.clone()));
        if passes { 0 } else { self.predict_and_prefetch(uses) }
    }

    /// The first half of [`observe`](Self::observe), with what the residency [says](DeviceResidency::declare) of the launch that
    /// is enqueued next. Returns whether that is all there is to do. Where it is not, [`predict_and_prefetch`](Self::predict_and_prefetch) comes next,
    /// once; it may come after the launch.
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

    /// The second half of [`observe`](Self::observe): predicts from the uses that were declared last, and prefetches.
    pub fn predict_and_prefetch<'a>(&self, uses: impl IntoIterator<Item = &'a RawBuffer>) -> usize {
        let mut enqueued = 0;
        for (argument, buffer) in (0..).zip(uses) {
            if !self.supported || !migrates(buffer) {
                continue;
            }
            if !self.owns_declarations {
                // Where it does not lie there it comes by page faults.
                let _there = self.residency.mark_resident(buffer);
                // Also where the launch goes through a raw handle: the host's next use is one elsewhere.
                buffer.record_external_use(self.device);
            }
            for (predicted, range) in self.predict(buffer, argument) {
                enqueued += usize::from(self.prefetch(&predicted, &range));
            }
        }
        enqueued
    }

    /// What was done so far.
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

    /// Answers whether a prefetch was enqueued.
    fn prefetch(&self, predicted: &PredictedAccess<BufferId>, range: &RawBuffer) -> bool {
        if self.residency.mark_resident(range) {
            self.state.lock().statistics.resident += 1;
            return false;
        }
        let bytes = range.len() as u64;
        let enqueued = self.has_memory(bytes) && self.submit(range);
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
            // A host view is open on it, or the host would have to wait, or the driver refuses: the launch will tell.
            Err(TrySubmitError::WouldBlock(_) | TrySubmitError::Failed(_)) => false,
        }
    }

    fn has_memory(&self, bytes: u64) -> bool {
        let mut budget = std::mem::take(&mut self.state.lock().budget);
        // The driver is asked outside of the lock: another thread that asks meanwhile asks for itself.
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
