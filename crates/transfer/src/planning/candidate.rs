//! A method that applies to a path, and what all transfers by it have in common.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use transload_core::{
    CompletionHandler, CostBasis, DeviceId, Error, Fence, RejectReason, Rejected, Rejections, Result,
    SizeClass, StreamPriority, Submission, Submitted, Timing, TransferEvent, TransferId, TransferMethod,
    TransferPath, TransferReport,
};

use crate::{
    attempt::Extras,
    context::{ManagerContext, is_observed},
    methods::{Declined, Method, Route},
    planning::{
        costs::Cost,
        engine_queue::{COUNTED_FROM, EngineQueue},
        observations,
        planner::Choice,
        request::PlanInput,
    },
    report_events::{self, CompletionWithId},
    stats::{path_stats::PathStats, unobserved::UnobservedTransfer},
};

/// Why methods do not apply, by their index; `None` for those that do.
pub(crate) type Reasons = [Option<RejectReason>; TransferMethod::ALL.len()];

/// A method that applies to a path.
pub(crate) struct Candidate {
    pub(crate) info: Arc<CandidateInfo>,
    pub(crate) method: Arc<dyn Method>,
    /// Whether it is DirectCopy, which needs no preparation and copies in one chunk: its transfers are spared two calls.
    is_direct: bool,
    pub(crate) route: Route,
    /// What this one noted in `PathStats::warm`.
    warm: u8,
    /// The queue of its transfers: that of a copy engine, or of the threads of the host that copy in place.
    pub(crate) engine: Option<Arc<EngineQueue>>,
    /// All copies along the path, whose rate they share.
    link: Option<Arc<EngineQueue>>,
    /// Predicted time of the transfers so far from [`COUNTED_FROM`] on.
    pub(crate) spent: Duration,
    /// What the transfers that [explored](TransferReport::explored) count as.
    pub(crate) explored: Duration,
    /// Transfers of each size class before the next one that is measured.
    unmeasured: [u64; SizeClass::ALL.len()],
    /// References for later transfers, cloned in batches: another thread that drops a transfer takes the cache line
    /// with the reference count, so each clone would fetch it back.
    spare_infos: Vec<Arc<CandidateInfo>>,
}

/// What all transfers by a candidate have in common. It keeps no backend alive. Aligned so that the reference count,
/// which threads that drop transfers write, is not on a cache line that submitting threads read.
#[repr(align(128))]
pub(crate) struct CandidateInfo {
    pub(crate) stats: Arc<PathStats>,
    pub(crate) lane: DeviceId,
    pub(crate) cost: Cost,
    pub(crate) lanes: u32,
    pub(crate) simulated: bool,
    pub(crate) reasons: Reasons,
    /// `reasons` as a list, and its length, for transfers that exclude no further method.
    pub(crate) rejected: ([Rejected; TransferMethod::ALL.len()], usize),
    pub(crate) context: Arc<ManagerContext>,
    /// See [`Candidate::engine`]. Weak, since the queue keeps fences.
    pub(crate) engine: Weak<EngineQueue>,
}

/// The methods that one transfer cannot use although they apply: a bit for each method's index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excluded {
    /// Methods that declined this transfer.
    pub(crate) declined: u8,
    pub(crate) forbidden: u8,
    /// By what the buffers are: a queue does not copy them, or one is not mapped and would be copied in place.
    pub(crate) unfit: u8,
    /// By what is done with it: a recording, or a queue of the caller's if the bit [`ON_QUEUE`] is set.
    pub(crate) unsuited: u8,
}

/// See [`Excluded::unsuited`]. No method's bit.
pub(crate) const ON_QUEUE: u8 = 1 << 7;
/// No method's bit either: the transfer [explores](TransferReport::explored).
pub(crate) const EXPLORED: u8 = 1 << 6;
/// A submission's tag, with no method's bit either: the transfer is measured, and nothing was queued before it.
const ALONE: u32 = u32::from_ne_bytes([0, 0, 0, 1 << 5]);
/// Another bit of the tag, of a list: it goes through device memory. Lists are never [`ALONE`], whose count uses this bit.
pub(crate) const THROUGH_DEVICE: u32 = u32::from_ne_bytes([1 << 7, 0, 0, 0]);
const _: () = assert!(TransferMethod::ALL.len() <= 5);

/// Returns whether the transfer's method is the second best, and tried.
pub(crate) fn is_explored(submission: &Submission) -> bool {
    Excluded::of_tag(submission.tag).unsuited & EXPLORED != 0
}

/// Returns the low bits of an engine's count of copies, in the bits of a tag that no method has.
fn count_bits(count: u64) -> u32 {
    const UNUSED: u32 = u8::BITS - TransferMethod::ALL.len() as u32;
    let bits = |index: u32| ((count >> (index * UNUSED)) as u8) << TransferMethod::ALL.len();
    u32::from_ne_bytes([bits(0), bits(1), bits(2), 0])
}

pub(crate) fn bit(method: TransferMethod) -> u8 {
    1 << method as u8
}

impl Excluded {
    pub(crate) fn all(self) -> u8 {
        self.declined | self.forbidden | self.unfit | self.unsuited
    }

    fn reason(self, method: TransferMethod) -> Option<RejectReason> {
        let on_queue = self.unsuited & ON_QUEUE != 0;
        let unsuited = if on_queue { RejectReason::NotOnQueue } else { RejectReason::NotRecordable };
        let declined = match method {
            TransferMethod::PeerToPeer => RejectReason::PeerUnverified,
            TransferMethod::ZeroCopy => RejectReason::NotMapped,
            _ => RejectReason::NoStagingMemory,
        };
        let unfit = match method {
            TransferMethod::ZeroCopy => RejectReason::NotMapped,
            _ => RejectReason::BufferRefused,
        };
        let reasons = [
            (self.declined, declined),
            (self.forbidden, RejectReason::Forbidden),
            (self.unfit, unfit),
            (self.unsuited, unsuited),
        ];
        reasons.into_iter().find(|(methods, _)| methods & bit(method) != 0).map(|(_, reason)| reason)
    }

    fn tag(self) -> u32 {
        u32::from_ne_bytes([self.declined, self.forbidden, self.unfit, self.unsuited])
    }

    fn of_tag(tag: u32) -> Self {
        let [declined, forbidden, unfit, unsuited] = tag.to_ne_bytes();
        Self { declined, forbidden, unfit, unsuited }
    }

    /// Returns the rejections of transfers that exclude no further method, and how many.
    pub(crate) fn usual_rejections(reasons: &Reasons) -> ([Rejected; TransferMethod::ALL.len()], usize) {
        let known = Self::default().rejections(reasons);
        let unused = |method| Rejected { method, reason: RejectReason::Forbidden };
        let mut list = TransferMethod::ALL.map(unused);
        list.iter_mut().zip(&known).for_each(|(slot, rejected)| *slot = *rejected);
        (list, known.len())
    }

    pub(crate) fn rejections(self, reasons: &Reasons) -> Rejections {
        let why = |(method, reason): (TransferMethod, &Option<RejectReason>)| {
            let reason = reason.or_else(|| self.reason(method))?;
            Some(Rejected { method, reason })
        };
        TransferMethod::ALL.into_iter().zip(reasons).filter_map(why).collect()
    }
}

impl Candidate {
    pub(crate) fn new(
        info: CandidateInfo,
        method: Arc<dyn Method>,
        route: Route,
        (engine, link): (Option<Arc<EngineQueue>>, Option<Arc<EngineQueue>>),
    ) -> Self {
        let is_direct = info.stats.method == TransferMethod::DirectCopy;
        let info = Arc::new(info);
        Self {
            info,
            method,
            is_direct,
            route,
            warm: 0,
            engine,
            link,
            spent: Duration::ZERO,
            explored: Duration::ZERO,
            unmeasured: Default::default(),
            spare_infos: Vec::new(),
        }
    }

    pub(crate) fn method(&self) -> TransferMethod {
        self.info.stats.method
    }

    /// Returns whether a device's kernel accesses the host's memory in place, without a copy engine. It waits for other kernels. The
    /// host's threads, which copy in place where a device's memory is the host's, do not.
    pub(crate) fn is_in_place(&self) -> bool {
        self.method() == TransferMethod::ZeroCopy && !self.route.lane.is_cpu()
    }

    pub(crate) fn predict(&self, bytes: u64) -> Duration {
        self.info.cost.model.predict(bytes)
    }

    /// See [`Method::prepare`].
    #[inline]
    pub(crate) fn prepare(&self, path: &TransferPath) -> Result<(), Declined> {
        if self.is_direct { Ok(()) } else { self.method.prepare(path, &self.route) }
    }

    /// Returns whether submitting a transfer may take the calling thread long: it is the first, or the thread or a driver copies the
    /// bytes meanwhile.
    pub(crate) fn is_slow_to_submit(&self, input: &PlanInput, priority: StreamPriority) -> bool {
        if transload_core::mutant!("transfer/slow-submission-by-caller") {
            return false;
        }
        self.info.stats.warm.load(Ordering::Relaxed) & 1 << priority as u8 == 0
            || self.method.copies_during_call(&self.route, input)
    }

    /// Returns whether a transfer that is submitted now can teach its cost, and needs neither memory nor a thread that the best method
    /// would not need.
    pub(crate) fn can_explore(
        &self,
        input: &PlanInput,
        priority: StreamPriority,
        extras: Option<&Extras<'_>>,
    ) -> bool {
        let is_in_a_hurry = extras.and_then(|extras| extras.task).is_some_and(|task| !task.may_be_slow);
        let is_ready =
            self.method.is_ready(&self.route) && !(is_in_a_hurry && self.is_slow_to_submit(input, priority));
        (is_ready || transload_core::mutant!("transfer/explores-what-is-ready"))
            && self.engine.as_ref().is_some_and(|engine| engine.in_flight() == 0)
    }

    /// Notes that a transfer was submitted.
    #[inline]
    pub(crate) fn warm_up(&mut self, priority: StreamPriority, submission: &Submission) {
        let priority = 1 << priority as u8;
        if self.warm & priority == 0 {
            self.warm_up_first(priority, submission);
        }
    }

    #[cold]
    fn warm_up_first(&mut self, priority: u8, submission: &Submission) {
        self.warm |= priority;
        self.info.stats.warm.fetch_or(priority, Ordering::Relaxed);
        if submission.begun.is_some() {
            let what = format!("{} by {}", self.info.stats.path, self.method());
            report_events::first_use(&what, self.info.lane, submission.submitting);
        }
    }

    /// Returns what is recorded of a transfer before it is submitted.
    pub(crate) fn submission(&self, input: &PlanInput, choice: &Choice) -> Submission {
        Submission {
            bytes: input.bytes,
            predicted: choice.predicted,
            queued: choice.queued,
            chunks: if self.is_direct { 1 } else { self.method.chunks(&self.route, input) },
            tag: choice.excluded.tag(),
            ..Submission::default()
        }
    }

    /// Notes of a measured transfer that nothing is queued before it, so that its time tells the link's, and how many copies there were.
    #[cold]
    pub(crate) fn note_if_alone(&self, submission: &mut Submission, timing: Timing) {
        if let Some(engine) = &self.engine
            && timing == Timing::Measured
            && submission.bytes >= COUNTED_FROM
            && (engine.in_flight() == 0 || transload_core::mutant!("transfer/queueing-is-not-the-link"))
        {
            submission.tag = ALONE | submission.tag & !count_bits(u64::MAX) | count_bits(engine.added());
        }
    }

    /// Returns whether the next transfer of `bytes` is measured, and counts it.
    pub(crate) fn timing(&mut self, bytes: u64, wanted: Option<Timing>) -> Timing {
        if let Some(timing) = wanted {
            return timing;
        }
        match self.unmeasured.get_mut(SizeClass::of(bytes).index()) {
            Some(0) | None => self.sampled(bytes),
            Some(left) => {
                *left -= 1;
                Timing::Off
            }
        }
    }

    #[cold]
    fn sampled(&mut self, bytes: u64) -> Timing {
        let interval = self.info.context.sampling.interval();
        match self.unmeasured.get_mut(SizeClass::of(bytes).index()).zip(interval) {
            None => Timing::Off,
            Some((left, interval)) => {
                *left = interval - 1;
                Timing::Measured
            }
        }
    }

    /// Has the next transfer of about `bytes` measured, whatever came before.
    pub(crate) fn measure_next(&mut self, bytes: u64) {
        if let Some(left) = self.unmeasured.get_mut(SizeClass::of(bytes).index()) {
            *left = 0;
        }
    }

    /// Returns a reference for one transfer.
    pub(crate) fn share_info(&mut self) -> Arc<CandidateInfo> {
        const MANY: usize = 64;
        self.spare_infos.pop().unwrap_or_else(|| {
            self.spare_infos.extend(std::iter::repeat_n(&self.info, MANY).cloned());
            Arc::clone(&self.info)
        })
    }

    /// Counts the predicted time of a submitted transfer, and queues it for the copy engine until its fence is reached.
    pub(crate) fn queue(&mut self, end: &Submitted, submission: &Submission) {
        self.spent = self.spent.saturating_add(submission.predicted);
        if is_explored(submission) {
            self.charge_try(submission.bytes);
        }
        if let Some(engine) = &self.engine
            && !transload_core::mutant!("transfer/engine-queue-counts-nothing")
        {
            match end {
                Submitted::Until(fence) => {
                    engine.add(fence, self.method.queued(&self.route, submission.bytes))
                }
                _ => engine.add_complete(),
            }
        }
    }

    /// Counts a transfer by a kernel among those that share the link, until its fence is reached.
    #[cold]
    pub(crate) fn queue_kernel(&self, end: &Submitted, submission: &Submission) {
        if let (Some(link), Submitted::Until(fence)) = (&self.link, end)
            && !transload_core::mutant!("transfer/kernels-copies-count")
        {
            link.add_kernel(fence, submission.bytes);
        }
    }

    /// Counts a try of the method, which may have failed.
    pub(crate) fn charge_try(&mut self, bytes: u64) {
        let cost = &self.info.cost;
        let (time, charge) = cost.charge(bytes);
        cost.observations.note_try(bytes, charge);
        self.explored = self.explored.saturating_add(time);
    }
}

impl CandidateInfo {
    /// Compares a transfer that began alone with its prediction, if it was alone to the end: what was queued meanwhile may have shared the
    /// link.
    #[cold]
    fn observe(&self, submission: &Submission, report: &TransferReport) {
        if !self.context.refines || self.simulated || self.cost.basis == CostBasis::User {
            return;
        }
        let is_alone = self.engine.upgrade().is_some_and(|engine| {
            // It was the last copy to be counted.
            let last = count_bits(engine.added().wrapping_sub(1));
            submission.tag & count_bits(u64::MAX) == last && engine.in_flight() == 0
        });
        if !is_alone && !transload_core::mutant!("transfer/company-is-not-the-link") {
            return;
        }
        let Some(time) = observations::time_of(report) else { return };
        let predicted = self.cost.model.predict(report.bytes);
        if predicted.is_zero() {
            // No factor corrects it.
            return;
        }
        let ratio = time.as_secs_f64() / predicted.as_secs_f64();
        let Some(factor) = self.cost.observations.add(report.bytes, ratio) else { return };
        let of = (self.stats.path, self.stats.method);
        if self.context.costs.refine(of, &self.cost, (report.bytes, factor)) {
            report_events::cost_refined(of, observations::sizes_with(report.bytes), factor);
        }
    }
}

impl CompletionHandler for CandidateInfo {
    fn report(&self, submission: &Submission) -> TransferReport {
        let mut report =
            TransferReport::planned(self.stats.path, self.stats.method, self.lane, submission.bytes);
        report.lanes = self.lanes;
        report.chunks = submission.chunks;
        report.submitting = submission.begun.map(|_| submission.submitting);
        report.predicted = submission.predicted;
        report.queued = submission.queued;
        report.basis = self.cost.basis;
        report.rejected = match submission.tag {
            // Copied without a call.
            0 => Rejections::from_buf_and_len(self.rejected.0, self.rejected.1),
            tag => {
                report.explored = is_explored(submission);
                report.through_device = tag & ALONE == 0 && tag & THROUGH_DEVICE != 0;
                Excluded::of_tag(tag).rejections(&self.reasons)
            }
        };
        report.simulated = self.simulated;
        report
    }

    fn ended(&self, submission: &Submission, report: &TransferReport, outcome: Result<(), &Error>) {
        self.stats.count(report.bytes, |counts| match outcome {
            Ok(()) => {
                counts.add(report.bytes, report.moving);
                if let Some(elapsed) = report.elapsed {
                    counts.latencies.record(elapsed);
                }
            }
            Err(_) => counts.failures += 1,
        });
        self.context.ended(report, outcome);
        if submission.tag & ALONE != 0 && outcome.is_ok() {
            self.observe(submission, report);
        }
    }

    fn abandoned(&self, submission: &Submission, fence: Fence) {
        self.abandoned_with(None, submission, fence);
    }
}

impl CompletionWithId for CandidateInfo {
    fn abandoned_with(&self, id: Option<TransferId>, submission: &Submission, fence: Fence) {
        let bytes = submission.bytes;
        self.stats.count(bytes, |counts| counts.abandoned += 1);
        if is_observed(id) {
            let report = self.report(submission).with_id(id);
            self.context.tell(TransferEvent::Abandoned(&report));
        }
        let (stats, is_timed) = (Some(Arc::clone(&self.stats)), submission.begun.is_some());
        self.context
            .unobserved
            .add(UnobservedTransfer { id, fence, bytes, lane: self.lane, stats, is_timed }, &self.context);
    }
}
