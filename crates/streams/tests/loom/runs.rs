//! Events recorded late: none covers a point whose work it was not recorded behind, none covers a foreigner's work for a
//! point of ours.

use std::convert::Infallible;

use loom::{
    sync::{Arc, Mutex},
    thread,
};

use crate::{model, points::Points};

const FOREIGN: u32 = 99;

/// A stream as the driver has it, and its marks as `marks.rs` makes them.
struct Stream {
    points: Points,
    recording: Mutex<()>,
    /// What was enqueued, in order.
    work: Mutex<Vec<u32>>,
    /// Points and their work.
    given: Mutex<Vec<(u64, u32)>>,
    /// Events: up to which point, behind how much work, recorded by whom.
    marks: Mutex<Vec<(u64, usize, &'static str)>>,
}

impl Stream {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            points: Points::new(false),
            recording: Mutex::new(()),
            work: Mutex::new(Vec::new()),
            given: Mutex::new(Vec::new()),
            marks: Mutex::new(Vec::new()),
        })
    }

    /// How much work is in front of an event that is recorded now.
    fn recorded(&self, behind: &mut usize) -> Result<(), Infallible> {
        *behind = self.work.lock().unwrap().len();
        Ok(())
    }

    fn mark(&self, upto: u64, behind: usize, by: &'static str) {
        self.marks.lock().unwrap().push((upto, behind, by));
        self.points.mark(upto);
    }

    fn small(&self, work: u32, by: &'static str) {
        self.work.lock().unwrap().push(work);
        let (point, close) = self.points.give_small();
        self.given.lock().unwrap().push((point, work));
        if close {
            self.close(by);
        }
    }

    fn large(&self, work: u32, by: &'static str) {
        self.close(by);
        self.work.lock().unwrap().push(work);
        let _in_order = self.recording.lock().unwrap();
        let mut behind = 0;
        let point = self.points.give_and_record(|| self.recorded(&mut behind)).unwrap();
        self.given.lock().unwrap().push((point, work));
        self.mark(point, behind, by);
    }

    fn close(&self, by: &'static str) {
        if !self.points.run_is_open() {
            return;
        }
        let _in_order = self.recording.lock().unwrap();
        let mut behind = 0;
        if let Some(upto) = self.points.record_given(|| self.recorded(&mut behind)).unwrap() {
            self.mark(upto, behind, by);
        }
    }

    /// Every event lies behind the work of every point that it covers, and the marks are in order.
    fn check(&self) {
        let (work, given, marks) =
            (self.work.lock().unwrap(), self.given.lock().unwrap(), self.marks.lock().unwrap());
        for (upto, behind, _) in marks.iter() {
            for (point, own) in given.iter().filter(|(point, _)| point <= upto) {
                assert!(work[..*behind].contains(own), "the event at {upto} came before the work of {point}");
            }
        }
        assert!(marks.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{marks:?}");
    }
}

#[test]
fn no_event_covers_a_point_whose_work_came_later() {
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
        assert!(!stream.points.run_is_open());
        stream.check();
    });
}

#[test]
fn a_point_given_while_the_handle_is_given_out_is_covered_by_its_own_thread_or_before_foreign_work() {
    model(|| {
        let stream = Stream::new();
        let other = Arc::clone(&stream);
        let thread = thread::spawn(move || other.small(1, "submitter"));
        stream.points.share();
        stream.close("sharer");
        stream.work.lock().unwrap().push(FOREIGN);
        // Asks while the submitter is still at it, or later: it must find nothing to record.
        thread.join().unwrap();
        stream.close("who asks later");
        stream.check();
        let marks = stream.marks.lock().unwrap();
        assert!(
            marks.iter().all(|(.., by)| *by != "who asks later"),
            "a late event covers foreign work: {marks:?}"
        );
    });
}

#[test]
fn three_threads_of_small_work_are_all_covered_in_the_end() {
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
        assert!(!stream.points.run_is_open(), "who closes a run leaves none of its own points open");
        stream.check();
    });
}
