//! A set of bytes as ranges.

use std::ops::Range;

/// Sorted ranges with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    pub(crate) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // What touches it becomes part of it.
        let from = self.0.partition_point(|other| other.end < range.start);
        let to = self.0.partition_point(|other| other.start <= range.end);
        let merged = match self.0.get(from..to) {
            Some([first, .., last]) => range.start.min(first.start)..range.end.max(last.end),
            Some([only]) => range.start.min(only.start)..range.end.max(only.end),
            _ => range,
        };
        self.0.splice(from..to, [merged]);
    }

    pub(crate) fn remove(&mut self, range: &Range<usize>) {
        let parts = |other: &Range<usize>| {
            if range.is_empty() || range.end <= other.start || other.end <= range.start {
                return [other.clone(), 0..0];
            }
            [other.start..range.start.max(other.start), range.end.min(other.end)..other.end]
        };
        self.0 = self.0.iter().flat_map(parts).filter(|part| !part.is_empty()).collect();
    }

    /// What of the range is not in the set.
    pub(crate) fn missing(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut rest = Self::default();
        rest.insert(range.clone());
        let from = self.0.partition_point(|known| known.end <= range.start);
        let near = self.0.get(from..).unwrap_or_default();
        near.iter().take_while(|known| known.start < range.end).for_each(|known| rest.remove(known));
        rest.0
    }

    pub(crate) fn covers(&self, range: &Range<usize>) -> bool {
        range.is_empty() || self.0.iter().any(|known| known.start <= range.start && range.end <= known.end)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_ranges_answers_as_a_set_of_bytes_does() {
        const BYTES: usize = 40;
        let mut seed = 12_345_u64;
        let mut below = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % bound
        };
        for _ in 0..200 {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; BYTES]);
            for _ in 0..20 {
                let start = below(BYTES);
                let range = start..start + below(BYTES - start + 1);
                let insert = below(2) == 0;
                if insert {
                    ranges.insert(range.clone())
                } else {
                    ranges.remove(&range)
                }
                bytes[range.clone()].fill(insert);
                let asked = below(BYTES / 2)..BYTES - below(BYTES / 2);
                assert_eq!(ranges.covers(&asked), bytes[asked.clone()].iter().all(|there| *there));
                let mut known = [true; BYTES];
                ranges.missing(&asked).into_iter().for_each(|part| known[part].fill(false));
                for at in asked {
                    assert_eq!(known[at], bytes[at], "byte {at} of {ranges:?}");
                }
                assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            }
        }
    }
}
