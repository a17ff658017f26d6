//! The union of many spans of time, in bounded memory.

/// Spans kept before the earlier half of them is closed, and of one of thousands that are kept.
const OPEN: usize = 2048;
const OPEN_OF_MANY: usize = 64;
/// How many of a kind there are before they are of many.
const FEW: usize = 32;
/// Longest gaps kept.
const GAPS: usize = 8;

/// A time without any span, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) begin: i64,
    pub(crate) length: u64,
}

/// Spans that may overlap and come a little out of order.
#[derive(Clone, Debug, Default)]
pub(crate) struct BusyTime {
    is_of_many: bool,
    /// Not yet closed.
    open: Vec<(i64, i64)>,
    /// The last stretch of the closed ones without a gap. A later span that begins before it may have filled gaps.
    stretch: Option<(i64, i64)>,
    is_cut: bool,
    first: Option<i64>,
    /// Sum of the lengths.
    sum: u64,
    union: u64,
    gaps: Vec<Gap>,
}

/// What is known of the spans so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BusySummary {
    /// From the first begin to the last end.
    pub(crate) whole: u64,
    /// Time with at least one span; a lower bound if it is cut.
    pub(crate) union: u64,
    /// Whether a span came too late, so that the gaps are not known.
    pub(crate) is_cut: bool,
    /// Sum of all spans.
    pub(crate) sum: u64,
    /// The longest gaps, longest first.
    pub(crate) gaps: Vec<Gap>,
}

impl BusyTime {
    /// Creates one that takes 1 KiB, of which there may be thousands.
    pub(crate) fn of_many() -> Self {
        Self { is_of_many: true, ..Self::default() }
    }

    /// Creates the one after so many others.
    pub(crate) fn of_nth(others: usize) -> Self {
        Self { is_of_many: others >= FEW, ..Self::default() }
    }

    /// Adds a span; its end is not before its begin.
    pub(crate) fn add(&mut self, begin: i64, end: i64) {
        let end = end.max(begin);
        self.sum = self.sum.saturating_add((end - begin).cast_unsigned());
        let room = if self.is_of_many { OPEN_OF_MANY } else { OPEN };
        if self.open.len() == room {
            self.close(room / 2);
        }
        self.open.push((begin, end));
    }

    /// Closes so many of the earliest spans.
    fn close(&mut self, count: usize) {
        self.open.sort_unstable();
        for (begin, end) in self.open.drain(..count).collect::<Vec<_>>() {
            let (from, closed_to) = self.stretch.unwrap_or((begin, begin));
            self.first = Some(self.first.map_or(begin, |first| first.min(begin)));
            self.is_cut |= begin < from;
            if begin > closed_to {
                self.gaps.push(Gap { begin: closed_to, length: (begin - closed_to).cast_unsigned() });
                self.gaps.sort_unstable_by_key(|gap| std::cmp::Reverse(gap.length));
                self.gaps.truncate(GAPS);
            }
            let union = self.union.saturating_add((end - begin.max(closed_to)).max(0).cast_unsigned());
            self.union = union.max((end - begin).cast_unsigned());
            self.stretch = Some((if begin > closed_to { begin } else { from }, end.max(closed_to)));
        }
    }

    /// Frees what only later spans need, of which none come.
    pub(crate) fn finish(&mut self) {
        self.close(self.open.len());
        self.open = Vec::new();
    }

    /// Returns what is known so far.
    pub(crate) fn summary(&self) -> BusySummary {
        let mut all = self.clone();
        all.close(all.open.len());
        let whole = all.first.zip(all.stretch).map_or(0, |(first, (_, last))| (last - first).cast_unsigned());
        let gaps = if all.is_cut { Vec::new() } else { all.gaps };
        BusySummary { whole, union: all.union, is_cut: all.is_cut, sum: all.sum, gaps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_counts_overlaps_once_and_gaps_are_between() {
        let mut busy = BusyTime::default();
        for (begin, end) in [(10, 20), (15, 30), (50, 60), (22, 25), (100, 100)] {
            busy.add(begin, end);
        }
        let before = busy.summary();
        busy.finish();
        assert_eq!((busy.summary(), busy.open.capacity()), (before, 0));
        let BusySummary { whole, union, sum, gaps, .. } = busy.summary();
        assert_eq!((whole, union, sum), (90, 30, 38));
        assert_eq!(gaps, [Gap { begin: 60, length: 40 }, Gap { begin: 30, length: 20 }]);
    }

    #[test]
    fn many_spans_in_nearly_any_order_have_the_union_of_all() {
        let mut busy = BusyTime::default();
        let count = 5 * OPEN as i64;
        // Pairs are swapped: within what is kept open, order does not matter.
        for index in 0..count {
            let begin = 100 * (index ^ 1);
            busy.add(begin, begin + 60);
        }
        let summary = busy.summary();
        assert_eq!(summary.union, 60 * count.cast_unsigned());
        assert_eq!(summary.whole, 100 * count.cast_unsigned() - 40);
        assert!(busy.open.len() <= OPEN && summary.gaps.iter().all(|gap| gap.length == 40));
    }

    #[test]
    fn one_of_many_has_the_union_of_all_in_little_memory() {
        let mut busy = BusyTime::of_many();
        (0..10_000).for_each(|index: i64| busy.add(100 * (index ^ 1), 100 * (index ^ 1) + 60));
        assert_eq!((busy.summary().union, busy.summary().is_cut), (600_000, false));
        assert!(size_of_val(&busy.open[..]) <= 1024 && busy.open.capacity() <= OPEN_OF_MANY);
    }

    #[test]
    fn span_that_covers_closed_ones_is_not_left_out() {
        let mut busy = BusyTime::default();
        let count = 5 * OPEN as i64;
        (0..count).for_each(|index| busy.add(100 * index, 100 * index + 60));
        busy.add(100 * count - 150, 100 * count);
        assert!(!busy.summary().is_cut, "what it covers is open");
        busy.add(-10, 100 * count);
        let BusySummary { whole, union, is_cut, gaps, .. } = busy.summary();
        assert!(is_cut && gaps.is_empty(), "{gaps:?}");
        assert_eq!((whole, union), (100 * count.cast_unsigned() + 10, 100 * count.cast_unsigned() + 10));
    }
}
