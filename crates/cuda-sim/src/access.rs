//! Who touched which bytes, and which conflicting accesses nothing ordered.
//!
//! The check is by vector clocks, not by the order in which work happened to run: a missing wait is reported also by a
//! run in which the bytes came out right. Operations are checked as they are enqueued, in the order of the calls.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    thread::ThreadId,
};

use crate::clock::{ActorId, Clock, HOST};

/// Who made an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Work of a stream.
    Stream {
        /// The device's ordinal.
        device: u32,
        /// The stream's number on its device, in the order of creation.
        stream: u32,
    },
    /// A thread of the host.
    Host(ThreadId),
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Reads.
    Read,
    /// Writes, allocates or frees.
    Write,
}

/// One access to one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    /// Who.
    pub actor: Actor,
    /// The driver function that enqueued it, or what the host did.
    pub operation: &'static str,
    /// Grows by one with every operation enqueued and every access of the host, in the order of the calls.
    pub sequence: u64,
    /// First byte; a device address where the memory is a device's.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// What it does.
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
    /// The one whose call came first.
    pub first: AccessRecord,
    /// The other.
    pub second: AccessRecord,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unordered: {}; and {}", self.first, self.second)
    }
}

/// An access with its place in the order.
#[derive(Clone, Debug)]
pub(crate) struct ClockedAccess {
    pub(crate) record: AccessRecord,
    pub(crate) by: ActorId,
    pub(crate) step: u64,
    /// What happened before it; `None` for the host, which is asked for its clock as it is now.
    pub(crate) clock: Option<Arc<Clock>>,
}

impl ClockedAccess {
    /// Whether this access and a later checked one are ordered, one way or the other.
    fn is_ordered_with(&self, later: &Self, later_clock: &Clock) -> bool {
        let before = later_clock.of(self.by) >= self.step;
        // Work of a host function is checked when it runs, after operations that were enqueued behind it.
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

/// The accesses of one device's memory.
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

    /// Keeps a record without a check: memory that the driver does not own may be anything next.
    pub(crate) fn record(&mut self, record: AccessRecord) {
        if !self.on {
            return;
        }
        if self.records.len() == RECORDS_KEPT {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Keeps a record and compares it with what came before.
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

    /// Makes `at` a boundary between segments.
    fn split(&mut self, at: u64) {
        let Some((_, before)) = self.shadow.range_mut(..at).next_back() else { return };
        if before.end > at {
            let mut after = before.clone();
            before.end = at;
            after.end = after.end.max(at);
            self.shadow.insert(at, after);
        }
    }

    /// Forgets a range whose memory is gone.
    pub(crate) fn forget_range(&mut self, start: u64, bytes: usize) {
        let end = start.saturating_add(bytes as u64);
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.shadow.range(start..end).map(|(from, _)| *from).collect();
        for from in gone {
            self.shadow.remove(&from);
        }
    }

    /// Forgets the accesses of a stream that is gone and done.
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
