//! Transfers of one device that are recorded as one operation of its queues.

use std::{
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use transload_core::{
    Backend, CompletionHandler, DeviceId, Error, ErrorKind, Fence, Operation, Recording, Result,
    StreamPriority, Submission, Submitted, Timing, Transfer, TransferEvent, TransferId, TransferMethod,
    TransferReport, TransferScope, WorkloadType, submit,
};

use super::Pair;
use crate::{
    CrossBackendTransferManager, TransferOptions,
    context::{ManagerContext, is_observed},
    methods::SingleOperation,
    planning::{candidate::Excluded, copied::Copied, engine_queue::EngineQueue, request::PlanInput},
    report_events::{CompletionWithId, Traced},
    stats::unobserved::UnobservedTransfer,
};

/// Recorded pairs of one device.
pub(super) struct RecordedGraph {
    backend: Arc<dyn Backend>,
    recorded: Arc<dyn Recording>,
    priority: StreamPriority,
    workload: WorkloadType,
    replays: Arc<Replays>,
    /// Source, destination and lane of each transfer.
    devices: Vec<[DeviceId; 3]>,
    /// The copy engines' queues that a replay uses, with its bytes in each.
    engines: Vec<(Arc<EngineQueue>, u64)>,
}

impl RecordedGraph {
    /// Records the pairs, as they were planned.
    ///
    /// # Errors
    /// Those of [`Backend::record`].
    pub(super) fn new(
        manager: &CrossBackendTransferManager,
        options: &TransferOptions,
        pairs: &[Pair],
        planned: &[PlannedPair],
    ) -> Result<Self> {
        let Some(PlannedPair { backend, report: first, .. }) = planned.first() else {
            return Err(Error::new(ErrorKind::InvalidArgument, "a recording needs at least one transfer"));
        };
        let operations: Vec<Operation<'_>> =
            pairs.iter().zip(planned).map(|((src, dst), planned)| (planned.single)(src, dst)).collect();
        let batch = as_batch(manager, pairs, planned, &operations);
        let operations = batch.as_ref().map_or(&*operations, slice::from_ref);
        let recorded = backend.record(first.lane, options.priority, operations)?;
        let mut report = first.clone();
        report.chunks = u32::try_from(planned.len()).unwrap_or(u32::MAX);
        for other in planned.iter().skip(1) {
            report.bytes = report.bytes.saturating_add(other.report.bytes);
            report.predicted = report.predicted.saturating_add(other.report.predicted);
        }
        let mut devices: Vec<_> = planned.iter().map(|planned| devices_of(&planned.report)).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut engines: Vec<(Arc<EngineQueue>, u64)> = Vec::new();
        for PlannedPair { engine, report, .. } in planned {
            let Some(engine) = engine else { continue };
            match engines.iter_mut().find(|(known, _)| Arc::ptr_eq(known, engine)) {
                Some((_, bytes)) => *bytes = bytes.saturating_add(report.bytes),
                None => engines.push((Arc::clone(engine), report.bytes)),
            }
        }
        Ok(Self {
            devices,
            engines,
            backend: Arc::clone(backend),
            recorded,
            priority: options.priority,
            workload: options.workload.unwrap_or_default(),
            replays: Arc::new(Replays {
                report,
                timing: options.timing.unwrap_or_default(),
                context: Arc::clone(&manager.context),
            }),
        })
    }

    /// Submits all transfers again, as one operation.
    pub(super) fn replay(&self) -> Transfer {
        let Replays { report, timing, context } = &*self.replays;
        let id = context.transfer_id(report.bytes);
        let mut submission = Submission { begun: Some(Instant::now()), ..Submission::default() };
        let lost = self.devices.iter().try_for_each(|devices| context.lost.check(devices.each_ref()));
        let submitted = lost.and_then(|()| {
            let _scope = TransferScope::enter(id);
            let queue = self.backend.lease_queue(report.lane, self.priority, self.workload)?;
            submit(&*queue, &Operation::Replay { recorded: &*self.recorded }, *timing)
        });
        match submitted {
            Ok(fence) => {
                self.engines.iter().for_each(|(engine, bytes)| engine.add(&fence, *bytes));
                submission.submitting = submission.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
                if let Some(begun) = submission.begun
                    && is_observed(id)
                {
                    let report = self.replays.report(&submission).with_id(id);
                    context.tell(TransferEvent::Submitted { report: &report, begun, end: Some(&fence) });
                }
                let (end, replays) = (Submitted::Until(fence), Arc::clone(&self.replays));
                match id {
                    None => Transfer::submitted(end, submission, replays),
                    Some(id) => Traced::submitted(id, end, submission, replays),
                }
            }
            Err(error) => {
                context.lost.note(report.lane, &error);
                context.refused(id, &error);
                Transfer::refused_with(error, id, Arc::clone(context) as _)
            }
        }
    }

    /// Returns what a replay would report, before it is submitted.
    pub(super) fn planned(&self) -> &TransferReport {
        &self.replays.report
    }
}

/// What all replays of a recording have in common. No path's statistics count them.
struct Replays {
    report: TransferReport,
    timing: Timing,
    context: Arc<ManagerContext>,
}

impl CompletionHandler for Replays {
    fn report(&self, submission: &Submission) -> TransferReport {
        let mut report = self.report.clone();
        report.submitting = submission.begun.map(|_| submission.submitting);
        report
    }

    fn ended(&self, _: &Submission, report: &TransferReport, outcome: Result<(), &Error>) {
        self.context.ended(report, outcome);
    }

    fn abandoned(&self, submission: &Submission, fence: Fence) {
        self.abandoned_with(None, submission, fence);
    }
}

impl CompletionWithId for Replays {
    fn abandoned_with(&self, id: Option<TransferId>, submission: &Submission, fence: Fence) {
        if is_observed(id) {
            self.context.tell(TransferEvent::Abandoned(&self.report(submission).with_id(id)));
        }
        let TransferReport { bytes, lane, .. } = self.report;
        let is_timed = self.timing == Timing::Measured;
        self.context
            .unobserved
            .add(UnobservedTransfer { id, fence, bytes, lane, stats: None, is_timed }, &self.context);
    }
}

fn devices_of(report: &TransferReport) -> [DeviceId; 3] {
    [report.path.src.device, report.path.dst.device, report.lane]
}

/// One transfer of a recording.
pub(super) struct PlannedPair {
    single: SingleOperation,
    backend: Arc<dyn Backend>,
    engine: Option<Arc<EngineQueue>>,
    pub(super) report: TransferReport,
}

/// Returns the pairs as one operation of a kernel, if kernels would copy every one of them, or all are of one path within the device and
/// the kernel is predicted to be faster. `None` if their order matters.
fn as_batch<'a>(
    manager: &CrossBackendTransferManager,
    pairs: &'a [Pair],
    planned: &[PlannedPair],
    operations: &[Operation<'_>],
) -> Option<Operation<'a>> {
    let batch = Operation::CopyBatchInPlace { pairs };
    let [PlannedPair { backend, report, .. }, _, ..] = planned else { return None };
    let is_kernel = |operation: &Operation<'_>| matches!(operation, Operation::CopyInPlace { .. });
    let is_of_path =
        |other: &PlannedPair| other.report.path == report.path && other.report.method == report.method;
    let are_for_kernel = operations.iter().all(is_kernel)
        || report.method == TransferMethod::DirectCopy
            && planned.iter().all(is_of_path)
            && report.path.src.device == report.path.dst.device
            && backend.in_place_copier(report.path.src, report.path.dst) == Some(report.lane)
            && manager.is_kernel_faster(pairs)
            && backend.prepare_in_place(report.lane).is_ok();
    let is_apart = batch.validate().is_ok() || transload_core::mutant!("transfer/recorded-order-matters");
    (are_for_kernel && is_apart).then_some(batch)
}

impl CrossBackendTransferManager {
    /// Chooses the cheapest method for the pair that is a single operation of a queue.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if there is none, with the reason of each.
    pub(super) fn plan_single(&self, (src, dst): &Pair, options: &TransferOptions) -> Result<PlannedPair> {
        let input = PlanInput::of(src, dst)?;
        let (mut cache, mut excluded) = (self.registry.route_cache(), Excluded::default());
        loop {
            let routes = cache.routes(&self.registry, &input.path)?;
            excluded.unfit = routes.unfit(Copied::All(src, dst));
            let choice = routes.choose_recordable(&input, options, &self.context, excluded)?;
            let candidate = &routes.candidates[choice.index];
            match (
                self.registry.prepare(&input.path, candidate),
                candidate.method.single_operation(input.path),
            ) {
                (Ok(()), Some(single)) => {
                    let (backend, engine) = (Arc::clone(&candidate.route.backend), candidate.engine.clone());
                    let report = candidate.info.report(&candidate.submission(&input, &choice));
                    return Ok(PlannedPair { single, backend, engine, report });
                }
                (Err(methods), _) => excluded.declined |= methods,
                (Ok(()), None) => {
                    return Err(Error::new(ErrorKind::Unsupported, "the chosen method cannot be recorded"));
                }
            }
        }
    }
}
