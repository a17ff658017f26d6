//! The table of registered ranges: which are registered, and which to evict before another one can be.
//!
//! Pure bookkeeping under the cache's lock. A thread marks a range busy here, calls the driver without the lock, and
//! then records the result.

use std::{collections::BTreeMap, ops::Range};

use crate::sync::Arc;

/// A registered or busy range.
struct Entry<P> {
    end: usize,
    writable: bool,
    /// Time of the last request, by the table's clock.
    used: u64,
    state: State<P>,
}

enum State<P> {
    /// A thread is registering or ending it.
    Busy,
    Ready(Arc<P>),
}

impl<P> State<P> {
    fn is_idle(&mut self) -> bool {
        match self {
            Self::Busy => false,
            Self::Ready(payload) => is_idle(payload),
        }
    }
}

/// Registered ranges, which never overlap. `P` is a registration, in use while anything but the table refers to it.
pub(crate) struct Table<P> {
    by_start: BTreeMap<usize, Entry<P>>,
    bytes: u64,
    /// Bytes of registrations that the table does not have, which count within the limit.
    kept: u64,
    clock: u64,
    limit: u64,
}

/// A request to register a range.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) range: Range<usize>,
    pub(crate) writable: bool,
}

/// The next step for a request.
pub(crate) enum Plan<P> {
    /// The range is registered.
    Covered(Arc<P>),
    /// Another thread has marked an overlapping range busy, or one whose end may make room: wait.
    Wait,
    /// End these first; they are marked busy. `joined` ones overlap the range.
    Evict { joined: Vec<Evicted<P>>, others: Vec<Evicted<P>> },
    /// Register the range, now marked busy.
    Register,
    /// An overlapping registration that does not cover the request is in use.
    InUse(Range<usize>),
    /// The limit is reached; this many bytes cannot be evicted.
    LimitExceeded(u64),
}

/// A registration to end.
pub(crate) struct Evicted<P> {
    pub(crate) range: Range<usize>,
    pub(crate) writable: bool,
    pub(crate) payload: Arc<P>,
}

impl<P> Table<P> {
    pub(crate) fn new(limit: u64) -> Self {
        Self { by_start: BTreeMap::new(), bytes: 0, kept: 0, clock: 0, limit }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes registered or being registered.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Sets how many bytes are registered that the table does not have.
    pub(crate) fn set_kept(&mut self, bytes: u64) {
        self.kept = bytes;
    }

    /// Plans a request. Registrations that start at one of `busy` are used by work in flight.
    pub(crate) fn plan(&mut self, request: &Request, busy: &[usize]) -> Plan<P> {
        self.clock += 1;
        let clock = self.clock;
        let wanted = (request.range.end - request.range.start) as u64;
        let mut overlapping = Vec::new();
        for (start, entry) in self.by_start.range_mut(..request.range.end).rev() {
            if entry.end <= request.range.start {
                break;
            }
            let State::Ready(payload) = &mut entry.state else { return Plan::Wait };
            let covers = *start <= request.range.start && request.range.end <= entry.end;
            if covers && (entry.writable || !request.writable) {
                entry.used = clock;
                return Plan::Covered(Arc::clone(payload));
            }
            if busy.contains(start) || !is_idle(payload) {
                return Plan::InUse(*start..entry.end);
            }
            overlapping.push((*start, (entry.end - start) as u64));
        }
        let freed: u64 = overlapping.iter().map(|(_, bytes)| bytes).sum();
        let mut left = (self.bytes - freed).saturating_add(self.kept);
        let mut others = Vec::new();
        if left.saturating_add(wanted) > self.limit {
            let mut idle: Vec<_> =
                self.idle(busy).filter(|(_, start, _)| !overlaps(&overlapping, *start)).collect();
            idle.sort_unstable();
            for (_, start, bytes) in idle {
                if left.saturating_add(wanted) <= self.limit {
                    break;
                }
                left -= bytes;
                others.push(start);
            }
            if left.saturating_add(wanted) > self.limit {
                // A registration being ended may make room.
                let any_busy = self.by_start.values().any(|entry| matches!(entry.state, State::Busy));
                return if any_busy && wanted <= self.limit { Plan::Wait } else { Plan::LimitExceeded(left) };
            }
        }
        if overlapping.is_empty() && others.is_empty() {
            let entry =
                Entry { end: request.range.end, writable: request.writable, used: clock, state: State::Busy };
            self.by_start.insert(request.range.start, entry);
            self.bytes += wanted;
            return Plan::Register;
        }
        let joined = overlapping.into_iter().filter_map(|(start, _)| self.take(start)).collect();
        Plan::Evict { joined, others: others.into_iter().filter_map(|start| self.take(start)).collect() }
    }

    /// Marks all registrations that overlap a range busy and returns them, if all are idle.
    ///
    /// # Errors
    /// The range of one that is in use or busy; none is marked then.
    pub(crate) fn take_touching(&mut self, range: &Range<usize>) -> Result<Vec<Evicted<P>>, Range<usize>> {
        let touching = self.by_start.range_mut(..range.end).filter(|(_, entry)| entry.end > range.start);
        let touching: Vec<(usize, bool)> =
            touching.map(|(start, entry)| (*start, entry.state.is_idle())).collect();
        if let Some((start, _)) = touching.iter().find(|(_, idle)| !idle) {
            return Err(*start..self.by_start.get(start).map_or(*start, |entry| entry.end));
        }
        Ok(touching.into_iter().filter_map(|(start, _)| self.take(start)).collect())
    }

    /// Returns whether a registration is idle.
    pub(crate) fn has_idle(&mut self) -> bool {
        self.idle(&[]).next().is_some()
    }

    /// Marks all idle registrations busy and returns them.
    pub(crate) fn take_idle(&mut self) -> Vec<Evicted<P>> {
        let idle: Vec<usize> = self.idle(&[]).map(|(_, start, _)| start).collect();
        idle.into_iter().filter_map(|start| self.take(start)).collect()
    }

    /// Records that a busy range is registered.
    pub(crate) fn ready(&mut self, start: usize, payload: &Arc<P>) {
        if let Some(entry) = self.by_start.get_mut(&start) {
            entry.state = State::Ready(Arc::clone(payload));
        }
    }

    /// Removes a busy range.
    pub(crate) fn remove(&mut self, start: usize) {
        if let Some(entry) = self.by_start.remove(&start) {
            self.bytes -= (entry.end - start) as u64;
        }
    }

    fn take(&mut self, start: usize) -> Option<Evicted<P>> {
        let entry = self.by_start.get_mut(&start)?;
        match std::mem::replace(&mut entry.state, State::Busy) {
            State::Ready(payload) => {
                Some(Evicted { range: start..entry.end, writable: entry.writable, payload })
            }
            State::Busy => None,
        }
    }

    /// Returns last use, start and length of each idle registration.
    fn idle(&mut self, busy: &[usize]) -> impl Iterator<Item = (u64, usize, u64)> {
        self.by_start.iter_mut().filter_map(move |(start, entry)| {
            let idle = !busy.contains(start) && entry.state.is_idle();
            idle.then_some((entry.used, *start, (entry.end - start) as u64))
        })
    }
}

fn overlaps(overlapping: &[(usize, u64)], start: usize) -> bool {
    overlapping.iter().any(|(known, _)| *known == start)
}

/// Returns whether only the table refers to it. References are only cloned under the table's lock, so this holds while
/// it is locked.
fn is_idle<P>(payload: &mut Arc<P>) -> bool {
    Arc::get_mut(payload).is_some()
}
