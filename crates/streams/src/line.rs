//! What a stream has in flight: marks, each with the event that says when the operations up to it are over.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use smallvec::SmallVec;
use transload_core::TimelineId;
use transload_cuda_sys::{Event, EventTiming};

/// Marks and events that a line has room for from its beginning.
const ROOM: usize = 4;
/// How many measured durations are kept for being asked after.
const DURATIONS_KEPT: usize = 256;
/// From how many operations in flight on, submitting asks whether the oldest is over: nobody else may ask.
const MANY: usize = 64;
/// How many submissions share one such question, which is about this many of the oldest operations.
const ASKED_EVERY: usize = 32;
/// How many other timelines a stream remembers having waited for.
const CURSORS_KEPT: usize = 8;

/// An event, and the points that it covers: those behind the mark before, up to its own.
struct Mark {
    upto: u64,
    /// What its operations are, for messages.
    what: &'static str,
    end: Arc<Event>,
    start: Option<Start>,
}

/// The event before a measured operation; both its events have timing.
pub(crate) struct Start {
    pub(crate) event: Arc<Event>,
    /// Whether who enqueued the operation wants its duration.
    pub(crate) asked_for: bool,
    /// Whether the stream's metrics do.
    pub(crate) counted: bool,
}

/// Where a point stands.
pub(crate) enum Covered {
    /// Its work is over, as far as it went well.
    Over,
    /// It is over when this event is, and so are all points up to this one.
    By(Arc<Event>, u64),
    /// No event covers it yet.
    NotYet,
}

/// Device times of operations that were measured and are over.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

/// The marks of a stream in order of submission, and the events to be used again.
#[derive(Default)]
pub(crate) struct Line {
    marks: VecDeque<Mark>,
    /// The last point of a mark, or that was over before it got one.
    marked: u64,
    /// The last point whose work ended.
    over: u64,
    spare: Vec<Arc<Event>>,
    spare_timed: Vec<Arc<Event>>,
    /// Events that someone still waited on when their operation was over; recording them anew would make them wait longer.
    retiring: Vec<(EventTiming, Arc<Event>)>,
    durations: VecDeque<(u64, Duration)>,
    measured: Measured,
    /// How far other timelines were waited for: a later wait for an earlier point is implied.
    cursors: SmallVec<[(TimelineId, u64); CURSORS_KEPT]>,
}

impl Line {
    /// A line with one event to record, and room: whether an early copy takes long enough to need them is chance, and no
    /// reason to allocate then.
    pub(crate) fn with(spare: Arc<Event>) -> Self {
        let mut line = Self {
            marks: VecDeque::with_capacity(ROOM),
            spare: Vec::with_capacity(ROOM),
            retiring: Vec::with_capacity(ROOM),
            ..Self::default()
        };
        line.keep(EventTiming::Disabled, spare);
        line
    }

    /// An event to record again, if there is one.
    pub(crate) fn take_spare(&mut self, timing: EventTiming) -> Option<Arc<Event>> {
        if let Some(event) = self.spare_of(timing).pop() {
            return Some(event);
        }
        let rested = |(of, event): &(EventTiming, Arc<Event>)| *of == timing && Arc::strong_count(event) == 1;
        let index = self.retiring.iter().position(rested)?;
        Some(self.retiring.swap_remove(index).1)
    }

    fn spare_of(&mut self, timing: EventTiming) -> &mut Vec<Arc<Event>> {
        match timing {
            EventTiming::Enabled => &mut self.spare_timed,
            EventTiming::Disabled => &mut self.spare,
        }
    }

    /// Keeps an event to be recorded again.
    pub(crate) fn keep(&mut self, timing: EventTiming, event: Arc<Event>) {
        if Arc::strong_count(&event) == 1 {
            self.spare_of(timing).push(event);
        } else {
            self.retiring.push((timing, event));
        }
    }

    /// A point of old work in flight, where there is much and it is time to ask again. A question costs as much as ten
    /// events (1.25 µs on an H200), so it is asked once in so many, about as many.
    pub(crate) fn old_of_many(&self) -> Option<u64> {
        let asks = self.marks.len() >= MANY && self.marks.len().is_multiple_of(ASKED_EVERY);
        asks.then(|| self.marks.get(ASKED_EVERY - 1).map(|mark| mark.upto)).flatten()
    }

    /// What the oldest work in flight is, in words.
    pub(crate) fn oldest(&self) -> Option<&'static str> {
        self.marks.front().map(|mark| mark.what)
    }

    /// `end` was recorded behind the work of every point up to `upto`.
    pub(crate) fn push(&mut self, upto: u64, what: &'static str, end: Arc<Event>, start: Option<Start>) {
        self.marked = self.marked.max(upto);
        self.marks.push_back(Mark { upto, what, end, start });
    }

    /// The last point whose work ended.
    pub(crate) fn over(&self) -> u64 {
        self.over
    }

    pub(crate) fn covering(&self, point: u64) -> Covered {
        if point <= self.over {
            return Covered::Over;
        }
        if point > self.marked {
            return Covered::NotYet;
        }
        let index = self.marks.partition_point(|mark| mark.upto < point);
        self.marks.get(index).map_or(Covered::NotYet, |mark| Covered::By(Arc::clone(&mark.end), mark.upto))
    }

    /// Forgets the marks up to `point`, which is over and so all before it are. Their events are used again.
    pub(crate) fn advance_to(&mut self, point: u64) {
        self.over = self.over.max(point);
        self.marked = self.marked.max(point);
        while self.marks.front().is_some_and(|mark| mark.upto <= point) {
            let Some(Mark { upto, end, start, .. }) = self.marks.pop_front() else { return };
            match start {
                None => self.keep(EventTiming::Disabled, end),
                Some(start) => {
                    // An operation without a duration is reported as not measured.
                    if let Ok(duration) = end.elapsed_since(&start.event) {
                        self.note_duration(upto, duration, &start);
                    }
                    self.keep(EventTiming::Enabled, start.event);
                    self.keep(EventTiming::Enabled, end);
                }
            }
        }
    }

    fn note_duration(&mut self, point: u64, duration: Duration, start: &Start) {
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

    /// Whether this stream already waits for `point` of another timeline.
    pub(crate) fn waits_for(&self, timeline: TimelineId, point: u64) -> bool {
        self.cursors.iter().any(|(id, upto)| *id == timeline && *upto >= point)
    }

    pub(crate) fn note_wait(&mut self, timeline: TimelineId, point: u64) {
        if let Some(cursor) = self.cursors.iter_mut().find(|(id, _)| *id == timeline) {
            cursor.1 = cursor.1.max(point);
        } else {
            if self.cursors.len() == CURSORS_KEPT {
                self.cursors.remove(0);
            }
            self.cursors.push((timeline, point));
        }
    }
}
