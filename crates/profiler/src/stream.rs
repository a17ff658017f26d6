//! What is known of one stream.

use std::{collections::VecDeque, sync::Arc};

use transload_core::{OperationCount, OperationKind, QueueTally};

use crate::{
    inbox::QueueKey,
    pending::Pending,
    report::{KindReport, StreamReport},
    statistics::Times,
};

/// Operations of one kind.
#[derive(Default)]
pub(crate) struct KindTimes {
    /// Operations that the user recorded, with or without a time.
    pub(crate) recorded: OperationCount,
    pub(crate) timed_bytes: u64,
    pub(crate) waiting: Times,
    pub(crate) running: Times,
    /// Exact spans, and how many of the event spans agree with them.
    pub(crate) exact: Times,
    pub(crate) agreeing: u64,
}

pub(crate) struct Stream {
    pub(crate) key: QueueKey,
    /// The queue's own counts, and for which attachment.
    tally: Option<(Arc<QueueTally>, u64)>,
    /// These counts at the last collection: the next attachment clears the queue's.
    seen: [OperationCount; OperationKind::ALL.len()],
    /// Counts of earlier attachments.
    before: [OperationCount; OperationKind::ALL.len()],
    pub(crate) kinds: [KindTimes; OperationKind::ALL.len()],
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) unresolved: u64,
}

impl Stream {
    pub(crate) fn new(key: QueueKey) -> Self {
        Self {
            key,
            tally: None,
            seen: Default::default(),
            before: Default::default(),
            kinds: Default::default(),
            pending: VecDeque::new(),
            unresolved: 0,
        }
    }

    fn counts(&self) -> [OperationCount; OperationKind::ALL.len()] {
        std::array::from_fn(|kind| {
            let parts = [self.before[kind], self.seen[kind], self.kinds[kind].recorded];
            OperationCount {
                operations: parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.operations)),
                bytes: parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes)),
            }
        })
    }

    /// Takes the counts of a new attachment from now on.
    pub(crate) fn count_for(&mut self, tally: &Arc<QueueTally>, attachment: u64) {
        if self.tally.as_ref().is_none_or(|(_, known)| *known != attachment) {
            for (sum, count) in self.before.iter_mut().zip(std::mem::take(&mut self.seen)) {
                sum.operations = sum.operations.saturating_add(count.operations);
                sum.bytes = sum.bytes.saturating_add(count.bytes);
            }
            self.tally = Some((Arc::clone(tally), attachment));
        }
    }

    /// Takes what the queue counted since.
    pub(crate) fn look(&mut self) {
        if let Some((tally, attachment)) = &self.tally {
            let counts = tally.counts(*attachment);
            // Zeros once the queue counts for another attachment.
            if counts.iter().any(|count| count.operations > 0) {
                self.seen = counts;
            }
        }
    }

    /// Returns the kinds of operations that it had, with their counts and times.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (OperationKind, OperationCount, &KindTimes)> {
        let kinds = OperationKind::ALL.into_iter().zip(self.counts()).zip(&self.kinds);
        let kinds = kinds.filter(|((_, count), _)| count.operations > 0);
        kinds.map(|((kind, count), times)| (kind, count, times))
    }

    pub(crate) fn report(&self) -> StreamReport {
        let kinds = self.kinds().map(|(kind, count, times)| KindReport {
            kind,
            operations: count.operations,
            bytes: count.bytes,
            timed_bytes: times.timed_bytes,
            waiting: times.waiting.report(),
            running: times.running.report(),
            exact: times.exact.report(),
            agreeing: times.agreeing,
        });
        StreamReport {
            stream: self.key.id.to_string(),
            device: self.key.device,
            priority: self.key.priority,
            simulated: self.key.simulated,
            kinds: kinds.collect(),
            unresolved: self.unresolved,
        }
    }
}
