//! What is measured of an operation, and by whom it is wanted.

use transload_core::{
    BatchHalf, HalfPairs, Operation, OperationId, OperationInfo, OperationKind, OperationSample, RawBuffer,
    Result, Stamp, TimelineId, Timing, events::report,
};
use transload_memory::{OperationCalls, lift};

use crate::completion::timeline::StreamTimeline;

/// What is measured of an operation.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Whether the submitter wants its duration.
    pub(crate) asked_for: bool,
    /// Whether the stream's metrics count its duration.
    pub(crate) counted: bool,
    /// For a profiler, which wants both instants.
    pub(crate) sample: Option<OperationSample>,
}

impl Measured {
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        !self.asked_for && !self.counted && self.sample.is_none()
    }
}

impl StreamTimeline {
    /// Decides what is measured of the next operation.
    #[inline]
    pub(crate) fn measure(&self, timing: Timing, info: impl FnOnce() -> OperationInfo) -> Measured {
        self.measured(timing, self.profile.sink().sample(&self.tally, info))
    }

    /// Like [`measure`](Self::measure), of an operation of core's.
    #[inline]
    pub(crate) fn measure_operation(&self, timing: Timing, operation: &Operation<'_>) -> Measured {
        self.measured(timing, self.profile.sink().sample_operation(&self.tally, operation))
    }

    #[inline]
    fn measured(&self, timing: Timing, sample: Option<OperationSample>) -> Measured {
        let counted = self.metrics.is_next_timed();
        Measured { asked_for: timing == Timing::Measured, counted, sample }
    }

    /// Enqueues a wait for a point of another timeline by `wait`, which a profiler is told of.
    ///
    /// # Errors
    /// Those of `wait`.
    #[inline]
    pub(crate) fn measured_wait<E>(
        &self,
        on: (TimelineId, u64),
        wait: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let waited = match self.profile.sink().sample_wait(&self.tally, on) {
            None => wait(),
            Some(sample) => self.timed_wait(sample, wait),
        };
        waited.inspect_err(|_| self.withdraw(|| OperationInfo::of_kind(OperationKind::Wait)))
    }

    #[cold]
    fn timed_wait<E>(&self, sample: OperationSample, wait: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        // What is recorded in a capture never ends.
        let begin = (!self.is_captured()).then(|| self.stamp());
        wait()?;
        if let Some(begin) = begin {
            self.pass_as(None, sample, begin.and_then(|begin| Ok((begin, self.stamp()?))));
        }
        Ok(())
    }

    /// Takes back the count of an operation that was refused.
    #[cold]
    pub(crate) fn withdraw(&self, info: impl FnOnce() -> OperationInfo) {
        self.profile.sink().withdraw(&self.tally, info);
    }

    /// Records when the stream reaches this place.
    pub(crate) fn stamp(&self) -> Result<Stamp> {
        let clock = self.profile.clock(self.context())?;
        clock.stamp(self.stream()).map_err(lift)
    }

    /// Passes an operation that was just enqueued to the sink, unless its times could not be recorded.
    #[cold]
    pub(crate) fn pass(&self, sample: OperationSample, times: Result<(Stamp, Stamp)>) {
        self.pass_as(OperationCalls::take(), sample, times);
    }

    fn pass_as(&self, id: Option<OperationId>, sample: OperationSample, times: Result<(Stamp, Stamp)>) {
        let times =
            times.inspect_err(|error| report::call_failed("an operation is not timed", self.device, error));
        self.profile.sink().pass(sample, (self, self.priority), id, times.ok());
    }
}

/// Describes a half of a batch: within the device.
pub(super) fn half_info(half: BatchHalf, pairs: &HalfPairs<'_>, scratch: &RawBuffer) -> OperationInfo {
    let scratch = scratch.place();
    let first = match pairs {
        HalfPairs::Pairs(pairs) => pairs.first(),
        HalfPairs::Blocks(blocks, _) => blocks.pools().first(),
    };
    let path = first.map(|(src, dst)| match half {
        BatchHalf::Gather => (src.place(), scratch),
        BatchHalf::Scatter { .. } => (scratch, dst.place()),
    });
    OperationInfo::of_half(pairs, path)
}
