//! Reports a manager's [events] to `tracing`.

use std::{fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use tracing::{Span, field::Empty, level_filters::LevelFilter};
use transload_core::{
    CompletionHandler, DeviceId, Error, Fence, RejectReason, Rejected, Result, Submission, Submitted,
    Transfer, TransferId, TransferMethod, TransferPath, TransferReport, catch_panic, events,
};

/// Formats a list with commas.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

/// The completion of a transfer with an id. Others need neither it nor its allocation.
pub(crate) struct Traced<T> {
    id: TransferId,
    /// None of its own if it is a part.
    span: Span,
    inner: Arc<T>,
}

/// A completion handler whose transfers may have an id.
pub(crate) trait CompletionWithId: CompletionHandler {
    /// Like [`CompletionHandler::abandoned`], but for a transfer with this id.
    fn abandoned_with(&self, id: Option<TransferId>, submission: &Submission, fence: Fence);
}

impl<T: CompletionWithId> Traced<T> {
    /// Reports that a transfer was submitted, and creates its handle.
    #[cold]
    pub(crate) fn submitted(
        id: TransferId,
        end: Submitted,
        submission: Submission,
        inner: Arc<T>,
    ) -> Transfer {
        let mut traced = Self { id, span: Span::none(), inner };
        if !id.is_part() {
            traced.span = submitted(&traced.report(&submission));
        }
        Transfer::submitted(end, submission, Arc::new(traced))
    }
}

impl<T: CompletionWithId> CompletionHandler for Traced<T> {
    fn report(&self, submission: &Submission) -> TransferReport {
        let mut report = self.inner.report(submission);
        report.id = Some(self.id);
        report
    }

    fn ended(&self, submission: &Submission, report: &TransferReport, outcome: Result<(), &Error>) {
        let _inside = self.span.enter();
        record_times(&self.span, report);
        if outcome.is_ok() && !self.id.is_part() {
            completed(report);
        }
        self.inner.ended(submission, report, outcome);
    }

    fn abandoned(&self, submission: &Submission, fence: Fence) {
        if !self.id.is_part() {
            self.span.in_scope(|| abandoned(self.id, submission.bytes));
        }
        self.inner.abandoned_with(Some(self.id), submission, fence);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn number(id: Option<TransferId>) -> Option<u64> {
    id.map(TransferId::get)
}

/// Returns the transfer's span.
pub(crate) fn submitted(report: &TransferReport) -> Span {
    let span = tracing::debug_span!(
        target: events::TRANSFER,
        events::TRANSFER_SPAN,
        transfer = number(report.id),
        src = %report.path.src,
        dst = %report.path.dst,
        bytes = report.bytes,
        method = %report.method,
        lane = %report.lane,
        elapsed_ns = Empty,
        moving_ns = Empty,
    );
    let inside = span.enter();
    tracing::debug!(
        name: events::TRANSFER_SUBMITTED,
        target: events::TRANSFER,
        transfer = number(report.id),
        src = %report.path.src,
        dst = %report.path.dst,
        bytes = report.bytes,
        method = %report.method,
        lane = %report.lane,
        chunks = report.chunks,
        predicted_ns = nanos(report.predicted),
        queued = report.queued,
        rejected = %List(&report.rejected),
        "transfer submitted"
    );
    drop(inside);
    span
}

/// Adds to a transfer's span what was measured.
pub(crate) fn record_times(span: &Span, report: &TransferReport) {
    span.record("elapsed_ns", report.elapsed.map(nanos)).record("moving_ns", report.moving.map(nanos));
}

/// Returns the span in which this thread is, for another one that does its work.
pub(crate) fn current_span() -> Span {
    if LevelFilter::current() == LevelFilter::OFF { Span::none() } else { Span::current() }
}

pub(crate) fn completed(report: &TransferReport) {
    // What was noticed during the transfer.
    events::report::emit_deferred();
    tracing::debug!(
        name: events::TRANSFER_COMPLETED,
        target: events::TRANSFER,
        transfer = number(report.id),
        bytes = report.bytes,
        elapsed_ns = report.elapsed.map(nanos),
        moving_ns = report.moving.map(nanos),
        "transfer complete"
    );
}

#[cold]
pub(crate) fn failed(report: &TransferReport, error: &Error) {
    // Often the cause, such as a lost context.
    events::report::emit_deferred();
    tracing::warn!(
        name: events::TRANSFER_FAILED,
        target: events::TRANSFER,
        transfer = number(report.id),
        src = %report.path.src,
        dst = %report.path.dst,
        bytes = report.bytes,
        method = %report.method,
        lane = %report.lane,
        %error,
        "transfer failed"
    );
}

#[cold]
pub(crate) fn refused(id: Option<TransferId>, error: &Error) {
    tracing::debug!(
        name: events::TRANSFER_REFUSED,
        target: events::TRANSFER,
        transfer = number(id),
        %error,
        "transfer refused"
    );
}

pub(crate) fn abandoned(id: TransferId, bytes: u64) {
    tracing::debug!(
        name: events::TRANSFER_ABANDONED,
        target: events::TRANSFER,
        transfer = id.get(),
        bytes,
        "handle dropped before the transfer's end"
    );
}

#[cold]
pub(crate) fn blocked(id: TransferId) {
    tracing::debug!(
        name: events::TRANSFER_BLOCKED,
        target: events::TRANSFER,
        transfer = id.get(),
        "waiting for conflicting work"
    );
}

#[cold]
pub(crate) fn deferred(id: TransferId) {
    tracing::debug!(
        name: events::TRANSFER_DEFERRED,
        target: events::TRANSFER,
        transfer = id.get(),
        "submitted by a thread of the executor"
    );
}

#[cold]
pub(crate) fn unobserved(id: Option<TransferId>, error: &Error) {
    // Drains and drops go on, whatever a subscriber does.
    let _panic = catch_panic(|| {
        tracing::warn!(
            name: events::FAILURE_UNOBSERVED,
            target: events::TRANSFER,
            transfer = number(id),
            %error,
            "no caller observed this failure"
        );
    });
}

#[cold]
pub(crate) fn declined(id: Option<TransferId>, path: TransferPath, method: TransferMethod) {
    tracing::info!(
        name: events::METHOD_DECLINED,
        target: events::TRANSFER,
        transfer = number(id),
        src = %path.src,
        dst = %path.dst,
        %method,
        "trying the next best method"
    );
}

#[cold]
pub(crate) fn rejected(path: TransferPath, rejected: Rejected) {
    tracing::warn!(
        name: events::METHOD_REJECTED,
        target: events::TRANSFER,
        src = %path.src,
        dst = %path.dst,
        method = %rejected.method,
        reason = %rejected.reason,
        "method is not used on this path any more"
    );
}

#[cold]
pub(crate) fn cost_refined(
    (path, method): (TransferPath, TransferMethod),
    sizes: RangeInclusive<u64>,
    factor: f64,
) {
    tracing::info!(
        name: events::COST_REFINED,
        target: events::TRANSFER,
        src = %path.src,
        dst = %path.dst,
        %method,
        bytes = sizes.start(),
        factor,
        "transfers take longer or shorter than predicted; the prediction is corrected"
    );
}

#[cold]
pub(crate) fn peer_retry((device, peer): (DeviceId, DeviceId), skipped: u32, error: &Error) {
    tracing::info!(
        name: events::PEER_RETRY,
        target: events::TRANSFER,
        %device,
        %peer,
        skipped,
        %error,
        "peer access not verified yet"
    );
}

#[cold]
pub(crate) fn peer_rejected(
    (device, peer): (DeviceId, DeviceId),
    reason: RejectReason,
    error: Option<&Error>,
) {
    tracing::warn!(
        name: events::PEER_REJECTED,
        target: events::TRANSFER,
        %device,
        %peer,
        %reason,
        error = error.map(tracing::field::display),
        "peer copies are not used"
    );
}

#[cold]
pub(crate) fn kernel_unavailable(device: DeviceId, error: &Error) {
    tracing::info!(
        name: events::KERNEL_UNAVAILABLE,
        target: events::TRANSFER,
        %device,
        %error,
        "a copy engine copies instead of the copy kernel"
    );
}

#[cold]
pub(crate) fn device_lost(device: DeviceId, error: &Error) {
    let _panic = catch_panic(|| {
        tracing::error!(
            name: events::DEVICE_LOST,
            target: events::TRANSFER,
            %device,
            %error,
            "device is lost; its transfers are refused"
        );
    });
}

#[cold]
pub(crate) fn first_use(what: &str, device: DeviceId, elapsed: Duration) {
    tracing::debug!(
        name: events::FIRST_USE,
        target: events::TRANSFER,
        what,
        %device,
        elapsed_ns = nanos(elapsed),
        "set up at first use"
    );
}

/// Events of a staged transfer's chunk.
#[derive(Clone, Copy)]
pub(crate) enum ChunkEvent<'a> {
    Started,
    Completed,
    Failed(&'a Error),
}

/// Drops a panic of the subscriber: a chunk is told of in the middle of its work, and maybe by another transfer's task.
#[cold]
pub(crate) fn chunk(id: TransferId, offset: usize, bytes: usize, event: ChunkEvent<'_>) {
    let transfer = id.get();
    let tell = || match event {
        ChunkEvent::Started => {
            tracing::trace!(name: events::CHUNK_STARTED, target: events::STAGING, transfer, offset, bytes);
        }
        ChunkEvent::Completed => {
            tracing::trace!(name: events::CHUNK_COMPLETED, target: events::STAGING, transfer, offset, bytes);
        }
        ChunkEvent::Failed(error) => {
            tracing::debug!(
                name: events::CHUNK_FAILED,
                target: events::STAGING,
                transfer,
                offset,
                bytes,
                %error,
                "chunk failed"
            );
        }
    };
    if transload_core::mutant!("transfer/chunk-events-may-panic") {
        tell();
    } else {
        let _panic = catch_panic(tell);
    }
}

#[cold]
pub(crate) fn dependency_failed(id: Option<TransferId>, error: &Error) {
    // A subscriber that panics ends no transfer.
    let _panic = catch_panic(|| {
        tracing::debug!(
            name: events::DEPENDENCY_FAILED,
            target: events::STAGING,
            transfer = number(id),
            %error,
            "earlier work failed"
        );
    });
}

#[cold]
pub(crate) fn ring_grown(device: DeviceId, buffers: usize, elapsed: Duration) {
    tracing::debug!(
        name: events::RING_GROWN,
        target: events::STAGING,
        %device,
        buffers,
        elapsed_ns = nanos(elapsed),
        "pinned a staging buffer"
    );
}

#[cold]
pub(crate) fn ring_limited(device: DeviceId, buffers: usize, most: usize, error: &Error) {
    tracing::warn!(
        name: events::RING_LIMITED,
        target: events::STAGING,
        %device,
        buffers,
        most,
        %error,
        "cannot pin another staging buffer"
    );
}
