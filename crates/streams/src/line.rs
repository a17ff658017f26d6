//! What a stream has in flight: one mark per operation, each with the event that says when it is over.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use smallvec::SmallVec;
use transload_core::TimelineId;
use transload_cuda_sys::{Context, DriverError, Event, EventTiming};

/// How many measured durations are kept for being asked after.
const DURATIONS_KEPT: usize = 256;
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
    durations: VecDeque<(u64, Duration)>,
    /// How far other timelines were waited for: a later wait for an earlier point is implied.
    cursors: SmallVec<[(TimelineId, u64); CURSORS_KEPT]>,
}

impl Line {
    /// An event to record, from the spare ones if there is one.
    pub(crate) fn take_event(
        &mut self,
        context: &Context,
        timing: EventTiming,
    ) -> Result<Arc<Event>, DriverError> {
        let spare = match timing {
            EventTiming::Enabled => &mut self.spare_timed,
            EventTiming::Disabled => &mut self.spare,
        };
        match spare.pop() {
            Some(event) => Ok(event),
            None => Event::new(context, timing).map(Arc::new),
        }
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
                None => keep(&mut self.spare, end),
                Some(start) => {
                    // An operation without a duration is reported as not measured.
                    if let Ok(duration) = end.elapsed_since(&start) {
                        if self.durations.len() == DURATIONS_KEPT {
                            self.durations.pop_front();
                        }
                        self.durations.push_back((point, duration));
                    }
                    keep(&mut self.spare_timed, start);
                    keep(&mut self.spare_timed, end);
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

/// Keeps an event for reuse unless someone still waits on it: recording it anew would make them wait longer.
fn keep(spare: &mut Vec<Arc<Event>>, event: Arc<Event>) {
    if Arc::strong_count(&event) == 1 {
        spare.push(event);
    }
}
