//! Records accesses to memory and reports data races: conflicting accesses that nothing orders.
//!
//! The check uses vector clocks, not the order of execution, so a missing wait is reported even if the bytes happen to
//! be right. Operations are checked when they are enqueued, in the order of the calls.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    thread::ThreadId,
};

use crate::clock::{ActorId, Clock, HOST};

/// The originator of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Work on a stream.
    Stream {
        /// Device ordinal.
        device: u32,
        /// Stream number on its device, in creation order.
        stream: u32,
    },
    /// A host thread.
    Host(ThreadId),
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Reads only.
    Read,
    /// Writes, allocates or frees.
    Write,
}

/// One access to one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    /// Originator of the access.
    pub actor: Actor,
    /// Driver function that enqueued the access, or the host's operation.
    pub operation: &'static str,
    /// Position in the order of all enqueued operations and host accesses.
    pub sequence: u64,
    /// First byte. For device memory, a device address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether the range is read or written.
    pub kind: AccessKind,
}

impl fmt::Display for AccessRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            AccessKind::Read => "reads",
            AccessKind::Write => "writes",
        };
        match self.actor {
            Actor::Stream { device, stream } => {
                write!(f, "{} (#{}) on stream {stream} of device {device}", self.operation, self.sequence)?;
            }
            Actor::Host(thread) => {
                write!(f, "{} (#{}) by host {thread:?}", self.operation, self.sequence)?;
            }
        }
        write!(f, " {verb} {} bytes at {:#x}", self.bytes, self.address)
    }
}

/// Two conflicting accesses that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The access whose call came first.
    pub first: AccessRecord,
    /// The access whose call came second.
    pub second: AccessRecord,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unordered: {}; and {}", self.first, self.second)
    }
}

/// An access with its vector clock.
#[derive(Clone, Debug)]
pub(crate) struct ClockedAccess {
    pub(crate) record: AccessRecord,
    pub(crate) by: ActorId,
    pub(crate) step: u64,
    /// The clock of the access; `None` for the host, whose current clock applies.
    pub(crate) clock: Option<Arc<Clock>>,
}

impl ClockedAccess {
    /// Returns whether this access and `later`, which was checked later, are ordered in either direction.
    fn is_ordered_with(&self, later: &Self, later_clock: &Clock) -> bool {
        let before = later_clock.of(self.by) >= self.step;
        // An access in a host function is checked when the function runs, which is after later operations were
        // enqueued.
        let after = self.clock.as_ref().is_some_and(|mine| mine.of(later.by) >= later.step);
        (self.by == HOST && later.by == HOST) || before || after
    }
}

#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    write: Option<ClockedAccess>,
    reads: Vec<ClockedAccess>,
}

/// The accesses to one device's memory.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    on: bool,
    records: VecDeque<AccessRecord>,
    shadow: BTreeMap<u64, Segment>,
    pub(crate) races: Vec<Race>,
}

const RECORDS_KEPT: usize = 65_536;
const RACES_KEPT: usize = 1_024;

impl AccessLog {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    pub(crate) fn records(&self) -> Vec<AccessRecord> {
        self.records.iter().cloned().collect()
    }

    /// Records an access without checking it: memory that the driver does not own may be reused for anything.
    pub(crate) fn record(&mut self, record: AccessRecord) {
        if !self.on {
            return;
        }
        if self.records.len() == RECORDS_KEPT {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Records an access and checks it against earlier ones.
    pub(crate) fn check(&mut self, access: ClockedAccess, clock: &Clock) {
        if !self.on || access.record.bytes == 0 {
            return;
        }
        self.record(access.record.clone());
        let (start, end) = (access.record.address, access.record.address + access.record.bytes as u64);
        self.split(start);
        self.split(end);
        let mut found: Vec<Race> = Vec::new();
        let mut gaps = Vec::new();
        let mut covered = start;
        for (&from, segment) in self.shadow.range_mut(start..end) {
            if from > covered {
                gaps.push((covered, from));
            }
            covered = segment.end;
            let priors = segment.write.iter().chain(match access.record.kind {
                AccessKind::Write => segment.reads.as_slice(),
                AccessKind::Read => &[],
            });
            for prior in priors {
                let known = found.iter().any(|race| race.first.sequence == prior.record.sequence);
                if !known && !prior.is_ordered_with(&access, clock) {
                    found.push(Race { first: prior.record.clone(), second: access.record.clone() });
                }
            }
            note(segment, &access);
        }
        if covered < end {
            gaps.push((covered, end));
        }
        for (from, to) in gaps {
            let mut segment = Segment { end: to, ..Segment::default() };
            note(&mut segment, &access);
            self.shadow.insert(from, segment);
        }
        let room = RACES_KEPT.saturating_sub(self.races.len());
        self.races.extend(found.into_iter().take(room));
    }

    /// Splits the segment that contains `at`.
    fn split(&mut self, at: u64) {
        let Some((_, before)) = self.shadow.range_mut(..at).next_back() else { return };
        if before.end > at {
            let mut after = before.clone();
            before.end = at;
            after.end = after.end.max(at);
            self.shadow.insert(at, after);
        }
    }

    /// Forgets the accesses to a freed range.
    pub(crate) fn forget_range(&mut self, start: u64, bytes: usize) {
        let end = start.saturating_add(bytes as u64);
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.shadow.range(start..end).map(|(from, _)| *from).collect();
        for from in gone {
            self.shadow.remove(&from);
        }
    }

    /// Forgets the accesses of destroyed streams.
    pub(crate) fn forget_actors(&mut self, actors: &BTreeSet<ActorId>) {
        for segment in self.shadow.values_mut() {
            segment.reads.retain(|read| !actors.contains(&read.by));
            if segment.write.as_ref().is_some_and(|write| actors.contains(&write.by)) {
                segment.write = None;
            }
        }
    }
}

fn note(segment: &mut Segment, access: &ClockedAccess) {
    match access.record.kind {
        AccessKind::Write => {
            segment.reads.clear();
            segment.write = Some(access.clone());
        }
        AccessKind::Read => {
            segment.reads.retain(|read| read.by != access.by);
            segment.reads.push(access.clone());
        }
    }
}
