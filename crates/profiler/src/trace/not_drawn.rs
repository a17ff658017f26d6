//! Slices that are not drawn, as two counters of their track: how many, and their time in all.

use super::types::Slice;

/// Nanoseconds between two points, at first.
const INTERVAL: u64 = 10_000_000;
/// Points after which the interval is doubled, so that a trace of any length can be opened.
const POINTS: u32 = 4096;

/// Totals of a track. Totals, unlike numbers per interval, stay right if slices arrive late or last long; a viewer
/// shows their rate.
pub(super) struct NotDrawn {
    /// The rows of the two counters.
    pub(super) counters: [usize; 2],
    slices: u64,
    busy: u64,
    /// The latest end of a slice.
    last: u64,
    /// The time of the next point.
    due: u64,
    interval: u64,
    points: u32,
    /// Slices of the last point.
    shown: u64,
}

/// Time and totals.
pub(super) struct Point {
    pub(super) at: u64,
    pub(super) values: [u64; 2],
}

impl NotDrawn {
    pub(super) fn new(counters: [usize; 2]) -> Self {
        Self { counters, slices: 0, busy: 0, last: 0, due: 0, interval: INTERVAL, points: 0, shown: 0 }
    }

    /// Counts a slice. Returns a point if one is due.
    pub(super) fn add(&mut self, slice: &Slice<'_>) -> Option<Point> {
        self.slices += 1;
        self.busy = self.busy.saturating_add(slice.end - slice.begin);
        self.last = self.last.max(slice.end);
        if self.last < self.due {
            return None;
        }
        self.points += 1;
        if self.points == POINTS {
            self.points = 0;
            self.interval = self.interval.saturating_mul(2);
        }
        self.due = self.last.saturating_add(self.interval);
        self.last()
    }

    /// Returns the totals if the last point has not shown them.
    pub(super) fn last(&mut self) -> Option<Point> {
        let new = self.shown < self.slices;
        self.shown = self.slices;
        new.then_some(Point { at: self.last, values: [self.slices, self.busy] })
    }
}
