//! What a stream has in flight: one mark per operation, each with the event that says when it is over.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use smallvec::SmallVec;
use transload_core::TimelineId;
use transload_cuda_sys::{Event, EventTiming};

/// How many measured durations are kept for being asked after.
const DURATIONS_KEPT: usize = 256;
/// From how many operations in flight on, submitting asks whether the oldest is over: nobody else may ask.
const MANY: usize = 64;
/// How many other timelines a stream remembers having waited for.
const CURSORS_KEPT: usize = 8;

/// One operation in flight.
struct Mark {
    point: u64,
    end: Arc<Event>,
    /// For a measured operation the event before it; both events have timing then.
    start: Option<Arc<Event>>,
}

/// The marks of a stream in order of submission, and the events to be used again.
#[derive(Default)]
pub(crate) struct Line {
    marks: VecDeque<Mark>,
    spare: Vec<Arc<Event>>,
    spare_timed: Vec<Arc<Event>>,
    /// Events that someone still waited on when their operation was over; recording them anew would make them wait longer.
    retiring: Vec<(EventTiming, Arc<Event>)>,
    durations: VecDeque<(u64, Duration)>,
    /// How far other timelines were waited for: a later wait for an earlier point is implied.
    cursors: SmallVec<[(TimelineId, u64); CURSORS_KEPT]>,
}

impl Line {
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

    fn keep(&mut self, timing: EventTiming, event: Arc<Event>) {
        if Arc::strong_count(&event) == 1 {
            self.spare_of(timing).push(event);
        } else {
            self.retiring.push((timing, event));
        }
    }

    /// The oldest operation in flight, where there are many.
    pub(crate) fn oldest_of_many(&self) -> Option<u64> {
        (self.marks.len() >= MANY).then(|| self.marks.front().map(|mark| mark.point)).flatten()
    }

    pub(crate) fn push(&mut self, point: u64, end: Arc<Event>, start: Option<Arc<Event>>) {
        self.marks.push_back(Mark { point, end, start });
    }

    /// The event at which `point` is over; `None` where it is known to be.
    pub(crate) fn event_at(&self, point: u64) -> Option<Arc<Event>> {
        // Points are consecutive.
        let first = self.marks.front()?.point;
        let index = usize::try_from(point.checked_sub(first)?).ok()?;
        self.marks.get(index).map(|mark| Arc::clone(&mark.end))
    }

    /// Forgets the marks up to `point`, which is over and so all before it are. Their events are used again.
    pub(crate) fn advance_to(&mut self, point: u64) {
        while self.marks.front().is_some_and(|mark| mark.point <= point) {
            let Some(Mark { point, end, start }) = self.marks.pop_front() else { return };
            match start {
                None => self.keep(EventTiming::Disabled, end),
                Some(start) => {
                    // An operation without a duration is reported as not measured.
                    if let Ok(duration) = end.elapsed_since(&start) {
                        if self.durations.len() == DURATIONS_KEPT {
                            self.durations.pop_front();
                        }
                        self.durations.push_back((point, duration));
                    }
                    self.keep(EventTiming::Enabled, start);
                    self.keep(EventTiming::Enabled, end);
                }
            }
        }
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
