//! Events recorded for a stream's work that are not yet known to be complete.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;
use transload_core::TimelineId;

use crate::sync::Arc;

/// Initial capacity for pending and spare events.
const ROOM: usize = 4;
/// Durations kept until a transfer takes them.
const DURATIONS_KEPT: usize = 256;
/// From this many pending events on, submitting polls an old one, since no other thread may do so.
const POLL_FROM: usize = 64;
/// Pending events between two such polls, and the index of the event that is polled.
const POLL_INTERVAL: usize = 32;
/// Other timelines for which a stream remembers its latest wait.
const WAITS_KEPT: usize = 8;

/// An event that may have a timestamp.
pub(crate) trait Timed {
    /// Returns the device time since `start`, or `None` if it is not known yet. Calls the driver.
    fn since(&self, start: &Self) -> Option<Duration>;
}

/// An event and the last point it covers. It covers all points after the previous event's.
struct PendingEvent<E> {
    upto: u64,
    /// Name of its operations, for error messages.
    what: &'static str,
    end: Arc<E>,
    start: Option<Start<E>>,
}

/// The event recorded before a timed operation. Its events have timestamps.
pub(crate) struct Start<E> {
    pub(crate) event: Arc<E>,
    /// Whether the submitter asked for the duration.
    pub(crate) asked_for: bool,
    /// Whether the stream's metrics count the duration.
    pub(crate) counted: bool,
}

/// Both events of a timed operation that is complete.
pub(crate) struct Ended<E> {
    pub(crate) upto: u64,
    start: Arc<E>,
    end: Arc<E>,
}

impl<E: Timed> Ended<E> {
    pub(crate) fn duration(self) -> Option<Duration> {
        self.end.since(&self.start)
    }
}

/// What is known of a point.
pub(crate) enum PointState<E> {
    /// Its work is complete, unless it failed.
    Complete,
    /// The event that completes with it, and the last point that this event covers.
    Pending(Arc<E>, u64),
    /// No event covers it yet.
    Unrecorded,
}

/// Total device time of the complete timed operations.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

/// A stream's pending events in order of submission, and spare events to record again.
pub(crate) struct PendingEvents<E> {
    events: VecDeque<PendingEvent<E>>,
    /// Number of pending events of timed operations.
    timed: usize,
    /// Last point that is covered by an event or complete.
    covered: u64,
    /// The last point whose work ended.
    completed: u64,
    /// Completed events without and with timestamps. Re-recording one that has waiters would prolong their wait.
    spare: [Vec<Arc<E>>; 2],
    durations: VecDeque<(u64, Duration)>,
    /// Timed operations found complete, by a later event, before their own event was recorded or complete.
    untimed: Vec<Ended<E>>,
    measured: Measured,
    /// Latest point waited for on other timelines. It implies a wait for earlier points.
    waited: SmallVec<[(TimelineId, u64); WAITS_KEPT]>,
}

impl<E: Timed> PendingEvents<E> {
    /// Returns an empty list with capacity, so that submitting does not allocate when the first copies happen to
    /// overlap.
    pub(crate) fn with_room() -> Self {
        Self {
            events: VecDeque::with_capacity(ROOM),
            timed: 0,
            covered: 0,
            completed: 0,
            spare: [Vec::with_capacity(ROOM), Vec::new()],
            durations: VecDeque::new(),
            untimed: Vec::new(),
            measured: Measured::default(),
            waited: SmallVec::new(),
        }
    }

    /// Returns a spare event without waiters.
    pub(crate) fn take_spare(&mut self, is_timed: bool) -> Option<Arc<E>> {
        let spare = &mut self.spare[usize::from(is_timed)];
        let index = spare.iter().rposition(|event| Arc::strong_count(event) == 1)?;
        Some(spare.swap_remove(index))
    }

    /// Keeps an event for re-recording.
    pub(crate) fn recycle(&mut self, is_timed: bool, event: Arc<E>) {
        self.spare[usize::from(is_timed)].push(event);
    }

    /// From 64 pending events on, at each multiple of 32, returns the 32nd oldest point to poll: a query costs 1.25
    /// µs on an H200, as much as ten records.
    pub(crate) fn point_to_poll(&self) -> Option<u64> {
        let asks = self.events.len() >= POLL_FROM && self.events.len().is_multiple_of(POLL_INTERVAL);
        asks.then(|| self.events.get(POLL_INTERVAL - 1).map(|event| event.upto)).flatten()
    }

    /// Returns the point of the event in the middle.
    pub(crate) fn middle(&self) -> Option<u64> {
        self.events.get(self.events.len() / 2).map(|event| event.upto)
    }

    /// Returns the name of the oldest pending operation.
    pub(crate) fn oldest(&self) -> Option<&'static str> {
        self.events.front().map(|event| event.what)
    }

    /// Adds `end`, recorded after the work of all points up to `upto`. It is spare if another thread's event already
    /// covers them.
    pub(crate) fn push(&mut self, upto: u64, what: &'static str, end: Arc<E>, start: Option<Start<E>>) {
        if start.is_none() && upto <= self.covered {
            return self.recycle(false, end);
        }
        self.covered = self.covered.max(upto);
        self.timed += usize::from(start.is_some());
        let index = self.events.partition_point(|event| event.upto < upto);
        self.events.insert(index, PendingEvent { upto, what, end, start });
    }

    /// The last point whose work ended.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    pub(crate) fn covering(&self, point: u64) -> PointState<E> {
        if point <= self.completed {
            return PointState::Complete;
        }
        if point > self.covered {
            return PointState::Unrecorded;
        }
        let index = self.events.partition_point(|event| event.upto < point);
        self.events
            .get(index)
            .map_or(PointState::Unrecorded, |event| PointState::Pending(Arc::clone(&event.end), event.upto))
    }

    /// Removes the events up to `point`, which is complete, and keeps them as spares. If timed operations are among
    /// them, returns those and removes nothing: [`complete_with`](Self::complete_with) needs their durations.
    pub(crate) fn complete_or_list_timed(&mut self, point: u64) -> Option<SmallVec<[Ended<E>; 2]>> {
        if self.timed == 0 || self.events.front().is_none_or(|event| event.upto > point) {
            self.complete_with(point, &[]);
            return None;
        }
        let ended = |event: &PendingEvent<E>| {
            let start = Arc::clone(&event.start.as_ref()?.event);
            Some(Ended { upto: event.upto, start, end: Arc::clone(&event.end) })
        };
        Some(self.events.iter().take_while(|event| event.upto <= point).filter_map(ended).collect())
    }

    /// Like [`complete_or_list_timed`](Self::complete_or_list_timed), with the durations. An operation without one is
    /// reported as not measured.
    pub(crate) fn complete_with(&mut self, point: u64, durations: &[(u64, Option<Duration>)]) {
        self.completed = self.completed.max(point);
        self.covered = self.covered.max(point);
        while let Some(PendingEvent { upto, end, start, .. }) =
            self.events.pop_front_if(|event| event.upto <= point)
        {
            let Some(start) = start else {
                self.recycle(false, end);
                continue;
            };
            self.timed = self.timed.saturating_sub(1);
            let known = durations.iter().find(|(of, _)| *of == upto).and_then(|(_, duration)| *duration);
            match known {
                Some(duration) => self.note_duration(upto, duration, &start),
                None if start.asked_for && self.untimed.len() < DURATIONS_KEPT => {
                    self.untimed.push(Ended { upto, start: start.event, end });
                    continue;
                }
                None => {}
            }
            self.recycle(true, start.event);
            self.recycle(true, end);
        }
    }

    fn note_duration(&mut self, point: u64, duration: Duration, start: &Start<E>) {
        if start.counted {
            self.measured.operations += 1;
            self.measured.time = self.measured.time.saturating_add(duration);
        }
        if start.asked_for {
            if self.durations.len() == DURATIONS_KEPT {
                self.durations.pop_front();
            }
            self.durations.push_back((point, duration));
        }
    }

    /// Returns the totals of the complete timed operations.
    pub(crate) fn measured(&self) -> Measured {
        self.measured
    }

    pub(crate) fn take_duration(&mut self, point: u64) -> Option<Duration> {
        let index = self.durations.iter().position(|(at, _)| *at == point)?;
        self.durations.remove(index).map(|(_, duration)| duration)
    }

    /// Removes the events of an operation that was complete before its duration was known.
    pub(crate) fn take_untimed(&mut self, point: u64) -> Option<Ended<E>> {
        let index = self.untimed.iter().position(|ended| ended.upto == point)?;
        Some(self.untimed.swap_remove(index))
    }

    /// Returns whether this stream already waits for `point` of another timeline.
    pub(crate) fn waits_for(&self, timeline: TimelineId, point: u64) -> bool {
        self.waited.iter().any(|(id, upto)| *id == timeline && *upto >= point)
    }

    pub(crate) fn note_wait(&mut self, timeline: TimelineId, point: u64) {
        if let Some(wait) = self.waited.iter_mut().find(|(id, _)| *id == timeline) {
            wait.1 = wait.1.max(point);
        } else {
            if self.waited.len() == WAITS_KEPT {
                self.waited.remove(0);
            }
            self.waited.push((timeline, point));
        }
    }
}
