//! Events recorded late and by several threads: each covers only points whose work was enqueued before it, and never foreign
//! work.

use std::{convert::Infallible, time::Duration};

use loom::thread;

use crate::{
    model,
    pending_events::{PointState, Timed},
    stream_events::StreamEvents,
    sync::{Arc, Mutex},
};

const FOREIGN: u32 = 99;

/// A driver event: how much work preceded its last record, and the recording thread.
#[derive(Default)]
struct Event(Mutex<Option<(usize, &'static str)>>);

impl Timed for Event {
    fn since(&self, _start: &Self) -> Option<Duration> {
        None
    }
}

/// Model of a driver stream. Points and events are the crate's own.
struct Stream {
    events: StreamEvents<Event>,
    /// Enqueued work, in order.
    work: Mutex<Vec<u32>>,
    /// Points and their work.
    given: Mutex<Vec<(u64, u32)>>,
}

impl Stream {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            events: StreamEvents::new(false, Arc::new(Event::default())),
            work: Mutex::new(Vec::new()),
            given: Mutex::new(Vec::new()),
        })
    }

    fn event(&self) -> Arc<Event> {
        self.events.take_event(false).unwrap_or_default()
    }

    /// The driver's part of recording an event.
    fn recorded(&self, event: &Event, by: &'static str) -> Result<(), Infallible> {
        let behind = self.work.lock().len();
        *event.0.lock() = Some((behind, by));
        Ok(())
    }

    fn small(&self, work: u32, by: &'static str) {
        self.work.lock().push(work);
        let (point, close) = self.events.points.issue_small();
        self.given.lock().push((point, work));
        if close {
            self.close(by);
        }
    }

    fn large(&self, work: u32, by: &'static str) {
        self.close(by);
        self.work.lock().push(work);
        let record = |end: &Event| self.recorded(end, by);
        let (point, _) = self.events.record("large", self.event(), None, record).unwrap();
        self.given.lock().push((point, work));
    }

    fn close(&self, by: &'static str) {
        if self.events.points.batch_is_open() {
            self.events.close(self.event(), |end| self.recorded(end, by)).unwrap();
        }
    }

    /// The event that completes a point, and the thread that recorded it.
    fn covering(&self, point: u64) -> (usize, &'static str) {
        let PointState::Pending(event, upto) = self.events.pending.lock().covering(point) else {
            panic!("point {point} has no event");
        };
        assert!(upto >= point);
        let recorded = *event.0.lock();
        recorded.unwrap_or_else(|| panic!("the event of point {point} was never recorded"))
    }

    /// Checks that every point's event was recorded after the work of all points up to it.
    fn check(&self) {
        assert!(!self.events.points.batch_is_open());
        let (work, given) = (self.work.lock(), self.given.lock());
        for (point, _) in given.iter() {
            let (behind, _) = self.covering(*point);
            for (_, own) in given.iter().filter(|(earlier, _)| earlier <= point) {
                assert!(work[..behind].contains(own), "the event of {point} came before the work {own}");
            }
        }
    }
}

#[test]
fn event_does_not_cover_points_of_later_work() {
    model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let thread = thread::spawn(move || {
            other.small(1, "other");
            other.large(2, "other");
        });
        stream.small(3, "this");
        stream.close("this");
        thread.join().unwrap();
        stream.close("this");
        stream.check();
    });
}

#[test]
fn concurrent_large_operations_are_each_recorded() {
    model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let thread = thread::spawn(move || other.large(1, "other"));
        stream.large(2, "this");
        thread.join().unwrap();
        stream.check();
    });
}

#[test]
fn event_is_reused_only_after_its_points_complete() {
    model(|| {
        let stream = Stream::new();
        stream.large(1, "this");
        let other = Arc::clone(&stream);
        // The first is complete, which another thread finds out while more is enqueued.
        let thread = thread::spawn(move || other.events.advance(1));
        stream.large(2, "this");
        thread.join().unwrap();
        stream.large(3, "this");
        assert_eq!(stream.events.points.reached(), 1);
        assert!(matches!(stream.events.pending.lock().covering(1), PointState::Complete));
        assert!(
            (2, 3) == (stream.covering(2).0, stream.covering(3).0),
            "one event was recorded for two points"
        );
    });
}

#[test]
fn point_taken_while_the_handle_is_shared_is_covered() {
    model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let thread = thread::spawn(move || other.small(1, "submitter"));
        stream.events.points.share();
        stream.close("sharer");
        stream.work.lock().push(FOREIGN);
        thread.join().unwrap();
        // A later query records nothing, since its event would cover foreign work.
        stream.close("later query");
        let (behind, by) = stream.covering(1);
        assert_ne!(by, "later query");
        let foreign = stream.work.lock()[..behind].contains(&FOREIGN);
        assert!(by == "submitter" || !foreign, "the sharer's event covers what came after it");
        stream.check();
    });
}

#[test]
fn points_of_three_threads_are_all_covered() {
    model(|| {
        let stream = Stream::new();
        let threads: Vec<_> = [1, 2]
            .map(|work| {
                let stream = Arc::clone(&stream);
                thread::spawn(move || {
                    stream.small(work, "one of two");
                    stream.close("one of two");
                })
            })
            .into();
        for thread in threads {
            thread.join().unwrap();
        }
        stream.check();
    });
}
