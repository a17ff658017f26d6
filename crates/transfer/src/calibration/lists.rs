//! Measured times of lists of copies.

use std::{collections::BTreeSet, time::Duration};

use transload_core::{Error, ErrorKind, ListCost, ListModel, ListTime, ListWay, Result, TransferPath};

use super::{
    MeasuredTime, PathCalibration,
    result::{LARGEST, is_time},
};

/// Lists of more pieces are no measurements.
const MOST: u64 = 1 << 30;
/// Most lists of a path by one way: a calibration measures at most some sixty.
const MOST_LISTS: usize = 256;

/// Measured times of the lists of a path by one way, on an idle device or beside kernels that compute there.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ListCalibration {
    /// Source and destination.
    pub path: TransferPath,
    /// What copied the pieces.
    pub way: ListWay,
    /// Whether the device had no other work. Else the times are means, and include by how much a list delayed the kernels.
    #[cfg_attr(feature = "serde", serde(default = "exclusive"))]
    pub exclusive: bool,
    /// Times by ascending length, then number.
    pub times: Vec<MeasuredList>,
}

/// The time of lists of some shape, from before the submission until the thread that waited goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MeasuredList {
    /// Number of pieces.
    pub pieces: u64,
    /// The time of all, with the bytes of each piece.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub time: MeasuredTime,
}

#[cfg(feature = "serde")]
fn exclusive() -> bool {
    true
}

impl ListCalibration {
    /// Returns the cost: linear between the measured lists. `None` if they are too few.
    #[must_use]
    pub fn cost(&self) -> Option<ListCost> {
        self.cost_through(&self.known())
    }

    /// Returns the cost with the steps and bends that the path's single copies have between two measured lengths and beyond, which are measured
    /// at more sizes: copies one by one have them, too.
    pub(super) fn cost_beside(&self, singles: Option<&PathCalibration>) -> Option<ListCost> {
        let known = self.known();
        let (true, Some(singles)) = (self.way == ListWay::OneByOne && self.exclusive, singles) else {
            return self.cost_through(&known);
        };
        let fastest = singles.fastest();
        let best = |bytes| fastest(bytes).map(|(_, time)| time.as_secs_f64());
        let method = |bytes| fastest(bytes).map(|(method, _)| method);
        let sizes: BTreeSet<_> =
            singles.methods.iter().flat_map(|curve| &curve.times).map(|it| it.bytes).collect();
        let of_length: Vec<&[ListTime]> = known.chunk_by(|a, b| a.bytes == b.bytes).collect();
        let mut all = known.clone();
        // A list over a single copy.
        let ratio = |list: &ListTime| Some(list.time.as_secs_f64() / best(list.bytes)?);
        for (short, long) in of_length.iter().zip(of_length.iter().skip(1)) {
            let (Some(low), Some(high)) = (short.first(), long.first()) else { continue };
            let ends = short.iter().filter_map(|list| {
                let other = long.iter().find(|other| other.pieces == list.pieces)?;
                Some((list.pieces, ratio(list)?, ratio(other)?))
            });
            let ends: Vec<_> = ends.collect();
            if ends.len() < 2 {
                continue;
            }
            for bytes in sizes.range(low.bytes + 1..high.bytes) {
                // By how much a list is slower depends on the method.
                let [is_like_low, is_like_high] =
                    [low.bytes, high.bytes].map(|end| method(end) == method(*bytes));
                let share = match (is_like_low, is_like_high) {
                    (true, false) => 0.0,
                    (false, true) => 1.0,
                    _ => (bytes - low.bytes) as f64 / (high.bytes - low.bytes) as f64,
                };
                all.extend(ends.iter().filter_map(|(pieces, low, high)| {
                    let seconds = best(*bytes)? * ((1.0 - share) * low + share * high);
                    let time = Duration::try_from_secs_f64(seconds).ok()?;
                    Some(ListTime { pieces: *pieces, bytes: *bytes, time })
                }));
            }
        }
        // Longer ones take as long as so many single copies: on a line they would be as fast as the shorter ones, which share their overhead. If the
        // longest took longer, since its pieces share threads, those by the same method do so, too.
        if let Some(longest) = of_length.last()
            && let Some(bytes) = longest.first().map(|list| list.bytes)
        {
            let last = method(bytes);
            for bytes in sizes.range(bytes + 1..) {
                all.extend(longest.iter().filter_map(|list| {
                    let slower = if method(*bytes) == last { ratio(list)? } else { 0.0 };
                    let seconds = best(*bytes)? * slower.max(list.pieces as f64);
                    let time = Duration::try_from_secs_f64(seconds).ok()?;
                    Some(ListTime { pieces: list.pieces, bytes: *bytes, time })
                }));
            }
        }
        self.cost_through(&all)
    }

    /// Returns the measured lists by ascending length and number.
    fn known(&self) -> Vec<ListTime> {
        let time = |list: &MeasuredList| {
            let MeasuredList { pieces, time: MeasuredTime { bytes, median, .. } } = *list;
            ListTime { pieces, bytes, time: median }
        };
        let mut known: Vec<_> = self.times.iter().map(time).collect();
        known.sort_by_key(|list| (list.bytes, list.pieces));
        known
    }

    fn cost_through(&self, times: &[ListTime]) -> Option<ListCost> {
        let model = ListModel::through(times)?;
        Some(ListCost { path: self.path, way: self.way, exclusive: self.exclusive, model })
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it can be no measurement.
    pub(super) fn check(&self) -> Result<()> {
        let Self { path, way, times, .. } = self;
        let is_list = |list: &MeasuredList| {
            let is_short = list.time.bytes.checked_mul(list.pieces).is_some_and(|bytes| bytes <= LARGEST);
            (1..=MOST).contains(&list.pieces) && is_short && is_time(&list.time)
        };
        let wrong = times.iter().find(|list| !is_list(list));
        let text = match wrong {
            Some(MeasuredList { pieces, time }) => {
                format!("a time of {:?} for {pieces} pieces of {} bytes", time.median, time.bytes)
            }
            None if times.len() > MOST_LISTS => {
                format!("{} lists; at most {MOST_LISTS} are valid", times.len())
            }
            None if self.cost().is_none() => "too few lists of one length".to_owned(),
            None => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidArgument, format!("no calibration: {path} by {way} has {text}")))
    }
}

#[cfg(test)]
mod tests {
    use transload_core::{DeviceId, MemoryKind, Place, TransferMethod};

    use super::*;
    use crate::calibration::{Calibration, MethodCurve};

    /// A driver that takes another way from 40 KiB on, and lists of which each copy costs as much as a single one, and 2 µs once.
    #[test]
    fn copies_one_by_one_have_the_steps_of_single_copies() {
        steps(&[TransferMethod::DirectCopy], 1);
    }

    /// The same with another method from 40 KiB on, by which copies of a list take twice as long.
    #[test]
    fn copies_one_by_one_are_as_slow_as_their_method() {
        steps(&[TransferMethod::DirectCopy, TransferMethod::HostStaged], 2);
    }

    fn steps(methods: &[TransferMethod], slower: u64) {
        let time = |bytes: u64, nanos: u64| MeasuredTime {
            bytes,
            median: Duration::from_nanos(nanos),
            noise: Duration::ZERO,
            repetitions: 9,
        };
        let single = |kib: u64| if kib < 40 { 5_000 + 50 * kib } else { 20_000 + 50 * kib };
        let path = TransferPath::new(
            Place::new(DeviceId::Cpu, MemoryKind::Pageable),
            Place::new(DeviceId::Cuda(0), MemoryKind::Device),
        );
        let sizes = [1, 16, 32, 39, 40, 64, 256, 1024].map(|kib| (kib, time(kib << 10, single(kib))));
        let curve = |(index, method): (usize, &TransferMethod)| {
            // Each is far slower where the other one is the fastest.
            let behind = |kib: u64| if methods.len() > 1 && (kib >= 40) != (index == 1) { 90_000 } else { 0 };
            let times = sizes.map(|(kib, size)| MeasuredTime {
                median: size.median + Duration::from_nanos(behind(kib)),
                ..size
            });
            MethodCurve { method: *method, times: times.to_vec() }
        };
        let nanos = |kib: u64, pieces: u64| 2_000 + pieces * single(kib) * if kib < 40 { 1 } else { slower };
        let list = |kib: u64, pieces: u64| MeasuredList { pieces, time: time(kib << 10, nanos(kib, pieces)) };
        let of = |kib| [1, 3, 4, 16].map(|pieces| list(kib, pieces));
        let lists = |way, exclusive| {
            let times = [1, 16, 64, 256].into_iter().flat_map(of).collect();
            ListCalibration { path, way, exclusive, times }
        };
        let found = Calibration {
            paths: vec![PathCalibration { path, methods: methods.iter().enumerate().map(curve).collect() }],
            lists: vec![lists(ListWay::OneByOne, true), lists(ListWay::CopyEngine, true)],
            ..Calibration::default()
        };
        let costs = found.list_costs();
        let predicted = |index: usize, pieces: u64, kib: u64| {
            costs[index].model.predict(pieces, pieces * (kib << 10)).as_nanos() as f64
        };
        for (pieces, kib) in [(3, 24), (3, 36), (3, 48), (10, 24), (16, 39)] {
            let expected = nanos(kib, pieces) as f64;
            let ratio = predicted(0, pieces, kib) / expected;
            assert!((0.97..1.03).contains(&ratio), "{pieces} pieces of {kib} KiB: {ratio}");
        }
        // Beyond what was measured, so many single copies, by as much slower as the longest list was.
        let slower = nanos(256, 3) as f64 / (3 * single(256)) as f64;
        assert!((predicted(0, 3, 1024) / (3 * single(1024)) as f64 - slower).abs() < 0.01);
        // Nothing is known of others between what was measured.
        let linear = (nanos(16, 3) + nanos(64, 3)) as f64 / 2.0;
        assert!((predicted(1, 3, 40) / linear - 1.0).abs() < 0.01);
    }
}
