//! What is known of one stream.

use std::sync::Arc;

use transload_core::{OperationCount, OperationKind, OperationSampling, QueueTally};

use crate::{
    inbox::QueueKey,
    report::ClockReport,
    slots::List,
    statistics::{Room, Times},
    stream_report::{KindReport, StreamReport, timed_share},
};

/// Operations of one kind.
#[derive(Default)]
pub(crate) struct KindTimes {
    /// Operations that the user recorded, with or without a time.
    pub(crate) recorded: OperationCount,
    pub(crate) timed_bytes: u64,
    /// Those of which the user gave a time, which does not say when.
    pub(crate) given: OperationCount,
    pub(crate) waiting: Times,
    pub(crate) running: Times,
    /// Exact spans, and how many of the event spans agree with them.
    pub(crate) exact: Times,
    pub(crate) agreeing: u64,
}

impl KindTimes {
    /// Adds the times of another one, and not what the user recorded.
    fn merge(&mut self, other: &Self, room: &Room) {
        self.timed_bytes = self.timed_bytes.saturating_add(other.timed_bytes);
        self.given.operations = self.given.operations.saturating_add(other.given.operations);
        self.given.bytes = self.given.bytes.saturating_add(other.given.bytes);
        self.waiting.merge(&other.waiting, room);
        self.running.merge(&other.running, room);
        self.exact.merge(&other.exact, room);
        self.agreeing = self.agreeing.saturating_add(other.agreeing);
    }

    /// Returns those of which it is known when they ran.
    pub(crate) fn timed(&self) -> OperationCount {
        OperationCount {
            operations: self.running.count().saturating_sub(self.given.operations),
            bytes: self.timed_bytes.saturating_sub(self.given.bytes),
        }
    }
}

/// Where a stream's operations are reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reported {
    Apart,
    /// By the stream that stands for others.
    WithOthers,
    /// With those of others of its device and priority.
    ForOthers,
}

pub(crate) struct Stream {
    pub(crate) key: QueueKey,
    pub(crate) reported: Reported,
    /// The queue's own counts, and for which attachment.
    tally: Option<(Arc<QueueTally>, u64)>,
    /// These counts at the last collection: the next attachment clears the queue's.
    seen: [OperationCount; OperationKind::ALL.len()],
    /// Counts of earlier attachments.
    before: [OperationCount; OperationKind::ALL.len()],
    /// None if it is reported with others.
    pub(crate) kinds: Vec<KindTimes>,
    /// Operations whose instants are not known.
    pub(crate) pending: List,
    /// The end of the last wait for another stream, by the device's clock, of those that ended before the first of `pending`.
    pub(crate) waited_until: Option<i64>,
    pub(crate) unresolved: u64,
}

impl Stream {
    pub(crate) fn new(key: QueueKey, reported: Reported) -> Self {
        Self {
            key,
            reported,
            tally: None,
            seen: Default::default(),
            before: Default::default(),
            kinds: match reported {
                Reported::WithOthers => Vec::new(),
                _ => OperationKind::ALL.map(|_| KindTimes::default()).into(),
            },
            pending: List::default(),
            waited_until: None,
            unresolved: 0,
        }
    }

    fn counts(&self) -> [OperationCount; OperationKind::ALL.len()] {
        std::array::from_fn(|kind| {
            let recorded = self.kinds.get(kind).map_or(OperationCount::default(), |kind| kind.recorded);
            let parts = [self.before[kind], self.seen[kind], recorded];
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

    /// Takes what the queue of another one, which has no times, counted since.
    pub(crate) fn look_at(&mut self, other: &mut Self) {
        let known = other.seen;
        other.look();
        for ((sum, count), known) in self.before.iter_mut().zip(other.seen).zip(known) {
            let more = count.operations.saturating_sub(known.operations);
            sum.operations = sum.operations.saturating_add(more);
            sum.bytes = sum.bytes.saturating_add(count.bytes.saturating_sub(known.bytes));
        }
        self.unresolved = self.unresolved.saturating_add(std::mem::take(&mut other.unresolved));
    }

    /// Returns whether no operation of it is to come: its queue is gone.
    pub(crate) fn is_gone(&self) -> bool {
        // One that only the caller recorded may go on, as a new one.
        self.tally.as_ref().is_none_or(|(tally, _)| Arc::strong_count(tally) == 1) && self.pending.is_empty()
    }

    /// Adds the counts and times of another stream.
    pub(crate) fn merge(&mut self, mut other: Self, room: &Room) {
        other.look();
        for (sum, count) in self.before.iter_mut().zip(other.counts()) {
            sum.operations = sum.operations.saturating_add(count.operations);
            sum.bytes = sum.bytes.saturating_add(count.bytes);
        }
        for (sum, kind) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.merge(kind, room);
        }
        self.unresolved = self.unresolved.saturating_add(other.unresolved);
    }

    /// Returns the kinds of operations that it had, with their counts and times.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (OperationKind, OperationCount, &KindTimes)> {
        let kinds = OperationKind::ALL.into_iter().zip(self.counts()).zip(&self.kinds);
        let kinds = kinds.filter(|((_, count), _)| count.operations > 0);
        kinds.map(|((kind, count), times)| (kind, count, times))
    }

    /// Returns whether it is known of each operation when it ran. Waits are none.
    pub(crate) fn is_all_timed(&self) -> bool {
        self.unresolved == 0 && self.are_timed(|kind| kind != OperationKind::Wait)
    }

    /// Returns whether it is known of each operation of some kinds when it ran.
    pub(crate) fn are_timed(&self, are_of: impl Fn(OperationKind) -> bool) -> bool {
        let mut kinds = self.kinds().filter(|(kind, ..)| are_of(*kind));
        kinds.all(|(_, count, times)| times.timed().operations == count.operations)
    }

    pub(crate) fn report(
        &self,
        sampling: OperationSampling,
        lost: u64,
        clocks: Vec<ClockReport>,
    ) -> StreamReport {
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
        let kinds: Vec<_> = kinds.collect();
        StreamReport {
            sampling,
            timed_share: timed_share(kinds.iter()),
            lost,
            clocks,
            stream: match self.reported {
                Reported::ForOthers => "others".to_owned(),
                _ => self.key.id.to_string(),
            },
            device: self.key.device,
            priority: self.key.priority,
            simulated: self.key.simulated,
            kinds,
            unresolved: self.unresolved,
        }
    }
}
