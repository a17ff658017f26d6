//! The one record of a list whose pairs are submitted one by one.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use tracing::Span;
use transload_core::{
    DeviceId, Error, Fence, Result, Timeline, TimelineId, Transfer, TransferEvent, TransferId,
    TransferReport, TransferState, next_timeline_id,
};

use crate::{
    context::{ManagerContext, is_observed},
    report_events,
};

/// What is known of a list whose pairs are submitted one by one. Its events are those of one transfer.
pub(super) struct Singles {
    id: TransferId,
    begun: Instant,
    /// That of all pairs that were submitted, or failed to be; the method and the lane are the first one's.
    report: Option<TransferReport>,
    /// The last end on each timeline, if it is observed and was not told.
    ends: BTreeMap<TimelineId, Fence>,
    /// Pairs whose ends are not known.
    running: usize,
    /// None before the submission is reported.
    span: Span,
    /// Whether any pair was submitted.
    is_any: bool,
    is_submitted: bool,
    failed: Option<Error>,
}

impl Singles {
    pub(super) fn new(id: TransferId) -> Self {
        Self {
            id,
            begun: Instant::now(),
            report: None,
            ends: BTreeMap::new(),
            running: 0,
            span: Span::none(),
            is_any: false,
            is_submitted: false,
            failed: None,
        }
    }

    pub(super) fn id(&self) -> TransferId {
        self.id
    }

    /// Returns the id for one pair.
    pub(super) fn part(&self) -> TransferId {
        self.id.part()
    }

    /// Adds a pair that was submitted or refused.
    pub(super) fn add(&mut self, transfer: &Transfer) {
        self.running += 1;
        let Some(mut part) = transfer.planned() else { return };
        // Without a fence the state is known without asking the device.
        self.is_any |= transfer.fence().is_some() || transfer.state() != TransferState::Refused;
        match &mut self.report {
            None => {
                (part.id, part.chunks) = (Some(self.id), 1);
                self.report = Some(part);
            }
            Some(report) => {
                report.bytes = report.bytes.saturating_add(part.bytes);
                report.chunks = report.chunks.saturating_add(1);
                // The costs are those of single copies.
                report.predicted = Duration::ZERO;
            }
        }
        if let Some(fence) = transfer.fence().filter(|_| is_observed(Some(self.id))) {
            self.ends.insert(fence.timeline().id(), fence.clone());
        }
    }

    /// Reports the submission, once no pair is left, if any was submitted.
    pub(super) fn submitted(&mut self, context: &ManagerContext) {
        let Some(report) = self.report.as_mut().filter(|_| !self.is_submitted) else { return };
        self.is_submitted = true;
        report.submitting = Some(self.begun.elapsed());
        if self.is_any {
            self.span = report_events::submitted(report);
        }
        if self.is_any && is_observed(report.id) {
            let fences: Vec<_> = std::mem::take(&mut self.ends).into_values().collect();
            let end = (!fences.is_empty()).then(|| JoinedEnds::fence(report.lane, fences));
            context.tell(TransferEvent::Submitted { report, begun: self.begun, end: end.as_ref() });
        }
        self.end(context);
    }

    /// Takes the end of a pair.
    pub(super) fn ended(&mut self, error: Option<&Error>, context: &ManagerContext) {
        self.running = self.running.saturating_sub(1);
        if let Some(error) = error {
            self.failed.get_or_insert_with(|| error.clone());
        }
        self.end(context);
    }

    /// Reports the end, once all pairs were submitted and have ended.
    fn end(&mut self, context: &ManagerContext) {
        if self.running > 0 || !self.is_submitted {
            return;
        }
        let Some(mut report) = self.report.take() else { return };
        report.elapsed = Some(self.begun.elapsed());
        // The span ends here.
        let span = std::mem::replace(&mut self.span, Span::none());
        report_events::record_times(&span, &report);
        let _inside = span.enter();
        match &self.failed {
            None => {
                report_events::completed(&report);
                context.ended(&report, Ok(()));
            }
            Some(error) => Self::tell_failed(&report, error, context),
        }
    }

    /// The pairs have noted which device is lost.
    fn tell_failed(report: &TransferReport, error: &Error, context: &ManagerContext) {
        report_events::failed(report, error);
        context.tell(TransferEvent::Failed(report, error));
    }

    /// Reports that the handle was dropped, if the end was not reported.
    pub(super) fn abandoned(&mut self, context: &ManagerContext) {
        self.submitted(context);
        let Some(report) = self.report.take() else { return };
        let _inside = std::mem::replace(&mut self.span, Span::none()).entered();
        if let Some(error) = &self.failed {
            return Self::tell_failed(&report, error, context);
        }
        report_events::abandoned(self.id, report.bytes);
        if is_observed(report.id) {
            context.tell(TransferEvent::Abandoned(&report));
        }
    }
}

/// Reaches point 1 when several fences are complete.
struct JoinedEnds {
    id: TimelineId,
    device: DeviceId,
    fences: Vec<Fence>,
    is_over: AtomicBool,
}

impl JoinedEnds {
    fn fence(device: DeviceId, fences: Vec<Fence>) -> Fence {
        Fence::new(
            Arc::new(Self { id: next_timeline_id(), device, fences, is_over: AtomicBool::new(false) }),
            1,
        )
    }
}

// SAFETY: the point is reached when every fence is complete, with or without an error.
unsafe impl Timeline for JoinedEnds {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        u64::from(self.is_over.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        let mut outcome = Ok(true);
        for fence in &self.fences {
            match fence.poll() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                failed => outcome = outcome.and(failed),
            }
        }
        self.is_over.store(true, Ordering::Release);
        outcome
    }

    fn wait(&self, _point: u64) -> Result<()> {
        let mut outcome = Ok(());
        // All, also after an error.
        for fence in &self.fences {
            outcome = outcome.and(fence.wait());
        }
        self.is_over.store(true, Ordering::Release);
        outcome
    }

    fn is_simulated(&self) -> bool {
        self.fences.iter().any(|fence| fence.timeline().is_simulated())
    }

    fn wake_at(&self, _point: u64, waker: &Waker) -> bool {
        let is_over = self.fences.iter().all(|fence| fence.wake_at(waker));
        self.is_over.fetch_or(is_over, Ordering::AcqRel);
        is_over
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
