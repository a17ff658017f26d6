//! A queued operation, which owns handles of its buffers.

use std::time::Instant;

use smallvec::SmallVec;
use transload_core::{
    Error, ErrorKind, Fence, FloatType, Operation, OperationSample, Pattern, Pitched, RawBuffer, Result,
    Timing, catch_panic,
};

/// A queued operation. Its handles keep the buffers' memory alive.
pub(crate) struct QueuedOp {
    work: Work,
    /// Fences to wait for that were not known to be complete.
    pub(crate) after: SmallVec<[Fence; 4]>,
    pub(crate) point: u64,
    pub(crate) timing: Timing,
    /// For a profiler.
    pub(crate) sample: Option<OperationSample>,
}

enum Work {
    Copy { src: RawBuffer, dst: RawBuffer },
    Pitched { src: RawBuffer, dst: RawBuffer, rows: Pitched },
    Batch { pairs: Vec<(RawBuffer, RawBuffer)> },
    Fill { dst: RawBuffer, pattern: Pattern },
    Cast { src: RawBuffer, from: FloatType, dst: RawBuffer, to: FloatType },
}

impl QueuedOp {
    /// Clones the buffers that the operation borrows. The point is set when it is enqueued.
    pub(crate) fn new(
        operation: &Operation<'_>,
        after: impl Iterator<Item = Fence>,
        (timing, sample): (Timing, Option<OperationSample>),
    ) -> Result<Self> {
        let work = match *operation {
            Operation::Copy { src, dst } => Work::Copy { src: src.clone(), dst: dst.clone() },
            Operation::CopyPitched { src, dst, rows } => {
                Work::Pitched { src: src.clone(), dst: dst.clone(), rows }
            }
            Operation::CopyBatch { pairs } => Work::Batch { pairs: pairs.to_vec() },
            Operation::Fill { dst, pattern } => Work::Fill { dst: dst.clone(), pattern },
            Operation::Cast { src, from, dst, to } => {
                Work::Cast { src: src.clone(), from, dst: dst.clone(), to }
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "a cpu queue can only copy, cast and fill")),
        };
        Ok(Self { work, after: after.collect(), point: 0, timing, sample })
    }

    /// Returns whether its instants are wanted.
    pub(crate) fn is_timed(&self) -> bool {
        self.timing == Timing::Measured || self.sample.is_some()
    }

    pub(crate) fn operation(&self) -> Operation<'_> {
        match &self.work {
            Work::Copy { src, dst } => Operation::Copy { src, dst },
            Work::Pitched { src, dst, rows } => Operation::CopyPitched { src, dst, rows: *rows },
            Work::Batch { pairs } => Operation::CopyBatch { pairs },
            Work::Fill { dst, pattern } => Operation::Fill { dst, pattern: *pattern },
            Work::Cast { src, from, dst, to } => Operation::Cast { src, from: *from, dst, to: *to },
        }
    }
}

/// Result and instants of an operation.
pub(crate) struct Outcome {
    pub(crate) result: Result<()>,
    /// Its begin and end, if they are wanted.
    pub(crate) times: Option<(Instant, Instant)>,
}

impl Outcome {
    /// Runs `work`, and measures it if requested. A panic becomes an error.
    pub(crate) fn of(is_timed: bool, work: impl FnOnce() -> Result<()>) -> Self {
        let begun = is_timed.then(Instant::now);
        let result = catch_panic(work).unwrap_or_else(|panic| {
            Err(Error::caused_by(
                ErrorKind::Interrupted,
                "the operation panicked; its destination is undefined",
                panic,
            ))
        });
        Self { result, times: begun.map(|begun| (begun, Instant::now())) }
    }
}
