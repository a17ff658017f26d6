//! The handle of a cast, and its report.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use transload_core::{
    Access, Claims, DeviceId, Error, Fence, FloatType, Result, Transfer, TransferId, TransferPath,
    TransferReport, TrySubmitError, Turns, Wanted,
};

use super::{CastRequest, job::Job};
use crate::{context::ManagerContext, staging::StagedTimeline, stats::unobserved::UnobservedTransfer};

/// The report of a cast.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CastReport {
    /// Source and destination.
    pub path: TransferPath,
    /// Number of elements.
    pub elements: u64,
    /// Type of the source's elements.
    pub from: FloatType,
    /// Type of the destination's elements.
    pub to: FloatType,
    /// Device whose threads cast.
    pub lane: DeviceId,
    /// How they moved between that device and the other memory, if they had to: the first chunk's report, with all bytes and chunks, and
    /// no times if there were several.
    pub copied: Option<TransferReport>,
    /// Host time from the beginning of submission until the end was observed.
    #[cfg_attr(feature = "serde", serde(rename = "elapsed_seconds", with = "transload_core::serde_seconds"))]
    pub elapsed: Duration,
}

/// Prints what was cast, where and how, with time and rate of the bytes that were copied.
impl fmt::Display for CastReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, elements, from, to, lane, copied, elapsed } = self;
        write!(f, "{path}: {elements} elements {from} → {to} by {lane} in {elapsed:.1?}")?;
        if let Some(copied) = copied {
            write!(f, ", {} bytes copied by {}", copied.bytes, copied.method)?;
            let rate = copied.bytes as f64 / elapsed.as_secs_f64() / 1e9;
            if rate.is_finite() && rate >= 0.01 {
                write!(f, ", {rate:.2} GB/s")?;
            }
        }
        Ok(())
    }
}

/// A cast in progress. It was enqueued when this was created. Dropping it neither cancels it nor waits for it; the memory stays alive
/// until it is complete.
///
/// Works with any async runtime, or none: [`wait`](Self::wait) blocks instead.
#[must_use = "await it to learn whether all elements are in place"]
pub struct CastTransfer {
    context: Arc<ManagerContext>,
    begun: Instant,
    /// Those not observed to be complete.
    running: VecDeque<Part>,
    report: CastReport,
    /// Why not all steps were submitted.
    refusal: Option<Error>,
    /// The first error of a step that was submitted.
    failed: Option<Error>,
}

/// A submitted step.
pub(super) enum Part {
    Copy(Transfer),
    Cast(Fence),
}

impl Part {
    fn fence(&self) -> Option<&Fence> {
        match self {
            Self::Copy(transfer) => transfer.fence(),
            Self::Cast(fence) => Some(fence),
        }
    }
}

impl CastTransfer {
    pub(super) fn new(context: &Arc<ManagerContext>, request: &CastRequest) -> Self {
        let CastRequest { src, from, dst, to, .. } = request;
        let report = CastReport {
            path: TransferPath::new(src.place(), dst.place()),
            elements: (dst.len() / to.size()) as u64,
            from: *from,
            to: *to,
            lane: DeviceId::Cpu,
            copied: None,
            elapsed: Duration::ZERO,
        };
        let (context, begun, running) = (Arc::clone(context), Instant::now(), VecDeque::new());
        Self { context, begun, running, report, refusal: None, failed: None }
    }

    /// Turns it into the handle of a cast that was refused.
    pub(super) fn refused(mut self, refusal: Transfer) -> Self {
        self.running.push_back(Part::Copy(refusal));
        self
    }

    /// Adds the next step. Returns whether it was submitted.
    pub(super) fn add(&mut self, part: Result<Part>, job: &mut Job) -> bool {
        if let Err(error) = &part {
            self.context.lost.note(job.lane, error);
            // A copy counts itself.
            if self.running.is_empty() {
                self.context.refused(TransferId::if_wanted(Wanted::Failure), error);
            }
        }
        let part = part.and_then(|part| match &part {
            Part::Copy(transfer) => transfer.refusal().cloned().map_or(Ok(part), Err),
            Part::Cast(_) => Ok(part),
        });
        match part {
            Ok(part) => {
                if let Some(end) = part.fence() {
                    job.ends(end);
                }
                self.running.push_back(part);
                true
            }
            Err(error) => {
                self.refusal = Some(error);
                transload_core::mutant!("transfer/cast-stops-at-failure")
            }
        }
    }

    /// Ends the submission. After one that failed in the middle, the destination is marked.
    pub(super) fn submitted(mut self, job: &Job, request: &CastRequest) -> Self {
        self.report.lane = job.lane;
        if self.is_cut_short(job)
            && let Ok(claims) = Claims::acquire(&mut [(&request.dst, Access::Write)])
        {
            self.mark(claims);
        }
        self
    }

    /// Like [`submitted`](Self::submitted) for a task: waits for claims of others without its thread.
    pub(super) async fn submitted_async(mut self, job: &Job, request: &CastRequest) -> Self {
        self.report.lane = job.lane;
        let turns = Turns::default();
        while self.is_cut_short(job) {
            match Claims::try_acquire(&mut [(&request.dst, Access::Write)], &turns) {
                Ok(claims) => {
                    self.mark(claims);
                    break;
                }
                Err(TrySubmitError::Failed(_)) => break,
                Err(TrySubmitError::WouldBlock(blocked)) => blocked.await,
            }
        }
        self
    }

    /// Returns whether only a part of the destination is written.
    fn is_cut_short(&self, job: &Job) -> bool {
        let writes = |part: &Part| matches!(part, Part::Copy(_)) == job.copies_last();
        self.refusal.is_some()
            && self.running.iter().any(writes)
            && !transload_core::mutant!("transfer/cast-failure-marks")
    }

    /// Marks the claimed destination.
    fn mark(&self, claims: Claims<'_>) {
        let Some(error) = self.refusal.clone() else { return };
        let end = StagedTimeline::failed(self.report.lane, error, claims.after());
        // SAFETY: nothing works on the range, and the fence completes after everything in `after`.
        unsafe { claims.commit(&end) };
    }

    /// Returns the fences of what is not observed to be complete: other work that waits for all of them comes after the cast.
    pub fn fences(&self) -> impl Iterator<Item = &Fence> {
        self.running.iter().filter_map(Part::fence)
    }

    /// Returns whether it is complete, successfully or not; never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fences().all(Fence::is_complete)
    }

    /// Blocks the calling thread until all elements are in place.
    ///
    /// # Errors
    /// The error with which it was refused, or the first with which it failed.
    pub fn wait(mut self) -> Result<CastReport> {
        while let Some(part) = self.running.pop_front() {
            match part {
                Part::Copy(transfer) => self.ended(transfer.wait().map(Some), false),
                Part::Cast(fence) => self.ended(fence.wait().map(|()| None), true),
            }
        }
        self.end()
    }

    /// Notes the end of a step, with the report of a copy, which has noted itself which device it lost.
    fn ended(&mut self, outcome: Result<Option<TransferReport>>, is_cast: bool) {
        match (outcome, &mut self.report.copied) {
            (Ok(None), _) => {}
            (Ok(Some(report)), first @ None) => *first = Some(report),
            (Ok(Some(report)), Some(sum)) => {
                sum.bytes = sum.bytes.saturating_add(report.bytes);
                sum.chunks = sum.chunks.saturating_add(report.chunks);
                sum.predicted = sum.predicted.saturating_add(report.predicted);
                (sum.id, sum.submitting, sum.elapsed, sum.moving) = (None, None, None, None);
            }
            (Err(error), _) => {
                if is_cast || transload_core::mutant!("transfer/cast-copies-note-losses") {
                    self.context.lost.note(self.report.lane, &error);
                }
                self.failed.get_or_insert(error);
            }
        }
    }

    fn end(&mut self) -> Result<CastReport> {
        // A step may have been refused for what an earlier one failed of.
        let refusal = self.refusal.take();
        match self.failed.take().or(refusal) {
            Some(error) => Err(error),
            None => Ok(CastReport { elapsed: self.begun.elapsed(), ..self.report.clone() }),
        }
    }
}

impl Future for CastTransfer {
    type Output = Result<CastReport>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(part) = self.running.front_mut() {
            let (outcome, is_cast) = match part {
                Part::Copy(transfer) => (Pin::new(transfer).poll(context).map_ok(Some), false),
                Part::Cast(fence) => (Pin::new(&mut fence.done()).poll(context).map_ok(|()| None), true),
            };
            let Poll::Ready(outcome) = outcome else { return Poll::Pending };
            let _observed = self.running.pop_front();
            self.ended(outcome, is_cast);
        }
        Poll::Ready(self.end())
    }
}

impl Drop for CastTransfer {
    /// Keeps errors for the next drain. The copies do so themselves.
    fn drop(&mut self) {
        if let Some(error) = self.failed.take().or_else(|| self.refusal.take()) {
            self.context.unreported.note(None, &error);
        }
        for part in std::mem::take(&mut self.running) {
            if let Part::Cast(fence) = part {
                let unobserved = UnobservedTransfer {
                    id: None,
                    fence,
                    bytes: 0,
                    lane: self.report.lane,
                    stats: None,
                    is_timed: false,
                };
                self.context.unobserved.add(unobserved, &self.context);
            }
        }
    }
}

impl fmt::Debug for CastTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CastTransfer")
            .field("report", &self.report)
            .field("running", &self.running.len())
            .field("refusal", &self.refusal)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
