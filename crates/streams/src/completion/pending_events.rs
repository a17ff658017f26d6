//! What a stream has in flight: events, each with the event that says when the operations up to it are over.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;
use transload_core::TimelineId;

use crate::sync::Arc;

/// Marks and events that a line has room for from its beginning.
const ROOM: usize = 4;
/// How many measured durations are kept for being asked after.
const DURATIONS_KEPT: usize = 256;
/// From how many operations in flight on, submitting asks whether the oldest is completed: nobody else may ask.
const POLL_FROM: usize = 64;
/// How many submissions share one such question, which is about this many of the oldest operations.
const POLL_INTERVAL: usize = 32;
/// How many other timelines a stream remembers having waited for.
const WAITS_KEPT: usize = 8;

/// An event that may measure time.
pub(crate) trait Timed {
    /// Device time since `start`; `None` where it is not known (yet). Asks the driver.
    fn since(&self, start: &Self) -> Option<Duration>;
}

/// An event, and the points that it covers: those behind the mark before, up to its own.
struct PendingEvent<E> {
    upto: u64,
    /// What its operations are, for messages.
    what: &'static str,
    end: Arc<E>,
    start: Option<Start<E>>,
}

/// The event before a measured operation; both its events have timing.
pub(crate) struct Start<E> {
    pub(crate) event: Arc<E>,
    /// Whether who enqueued the operation wants its duration.
    pub(crate) asked_for: bool,
    /// Whether the stream's metrics do.
    pub(crate) counted: bool,
}

/// Both events of a measured operation that is over.
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

/// Where a point stands.
pub(crate) enum PointState<E> {
    /// Its work is over, as far as it went well.
    Complete,
    /// It is over when this event is, and so are all points up to this one.
    Pending(Arc<E>, u64),
    /// No event covers it yet.
    Unrecorded,
}

/// Device times of operations that were measured and are over.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

/// The events of a stream in order of submission, and the events to be used again.
pub(crate) struct PendingEvents<E> {
    events: VecDeque<PendingEvent<E>>,
    /// How many of the events are of measured operations.
    timed: usize,
    /// The last point of a mark, or that was over before it got one.
    covered: u64,
    /// The last point whose work ended.
    completed: u64,
    /// Events without and with timing whose operations are over. Someone may still wait on one: recording it anew would make
    /// them wait longer.
    spare: [Vec<Arc<E>>; 2],
    durations: VecDeque<(u64, Duration)>,
    /// Measured operations that another thread's event told the end of before their own was recorded or over.
    untimed: Vec<Ended<E>>,
    measured: Measured,
    /// How far other timelines were waited for: a later wait for an earlier point is implied.
    waited: SmallVec<[(TimelineId, u64); WAITS_KEPT]>,
}

impl<E: Timed> PendingEvents<E> {
    /// An empty line with room: whether an early copy takes long enough to need it is chance, and no reason to allocate then.
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

    /// An event to record again, if there is one.
    pub(crate) fn take_spare(&mut self, is_timed: bool) -> Option<Arc<E>> {
        let spare = &mut self.spare[usize::from(is_timed)];
        let index = spare.iter().rposition(|event| Arc::strong_count(event) == 1)?;
        Some(spare.swap_remove(index))
    }

    /// Keeps an event to be recorded again.
    pub(crate) fn recycle(&mut self, is_timed: bool, event: Arc<E>) {
        self.spare[usize::from(is_timed)].push(event);
    }

    /// A point of old work in flight, where there is much and it is time to ask again. A question costs as much as ten
    /// events (1.25 µs on an H200), so it is asked once in so many, about as many.
    pub(crate) fn point_to_poll(&self) -> Option<u64> {
        let asks = self.events.len() >= POLL_FROM && self.events.len().is_multiple_of(POLL_INTERVAL);
        asks.then(|| self.events.get(POLL_INTERVAL - 1).map(|event| event.upto)).flatten()
    }

    /// What the oldest work in flight is, in words.
    pub(crate) fn oldest(&self) -> Option<&'static str> {
        self.events.front().map(|event| event.what)
    }

    /// `end` was recorded behind the work of every point up to `upto`. Where another thread's event for a later point came first,
    /// that one covers these points, too.
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

    /// Forgets the events up to `point`, which is over and so all before it are; their events are used again. Where measured
    /// operations are among them it returns those and does nothing: [`complete_with`](Self::complete_with) wants their durations.
    pub(crate) fn complete_or_list_timed(&mut self, point: u64) -> Option<Vec<Ended<E>>> {
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

    /// Forgets the events up to `point`, which is over and so all before it are. An operation without a duration is reported as
    /// not measured.
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

    /// The device times of what is over.
    pub(crate) fn measured(&self) -> Measured {
        self.measured
    }

    pub(crate) fn take_duration(&mut self, point: u64) -> Option<Duration> {
        let index = self.durations.iter().position(|(at, _)| *at == point)?;
        self.durations.remove(index).map(|(_, duration)| duration)
    }

    /// Takes the events of a measured operation whose duration was not known when it was found to be over.
    pub(crate) fn take_untimed(&mut self, point: u64) -> Option<Ended<E>> {
        let index = self.untimed.iter().position(|ended| ended.upto == point)?;
        Some(self.untimed.swap_remove(index))
    }

    /// Whether this stream already waits for `point` of another timeline.
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
