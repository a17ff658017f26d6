//! Measures the lists of a path: by each way, over the number of pieces and their length.

use std::{cmp::Reverse, collections::VecDeque, time::Duration};

use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, Result, Timing, TransferPath};

use super::{
    ListCalibration, MeasuredList,
    list_parts::ListPart,
    measure::{QUICK, Run, Stop},
    sample::{Sample, are_enough, contenders, is_far_ahead},
};
use crate::{CrossBackendTransferManager, TransferOptions, planning::candidate::Candidate};

/// Bytes of each piece of the measured lists.
const LENGTHS: [usize; 9] =
    [256, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Numbers of pieces of the measured lists. A queue copies up to three one by one.
const COUNTS: [usize; 7] = [1, 3, 4, 16, 64, 256, 2048];
/// Lists of more pieces are not measured one by one.
pub(crate) const MOST_SINGLES: usize = 16;
/// The largest measured list between the host and a device, in bytes. Beyond it, times grow as the link's rate says; within a device they
/// do so only beyond its caches, and between two devices long lists are faster by kernels than shorter ones by engines. With lists of 64 MiB,
/// pageable memory lost the way through device memory, which takes 32 MiB at most.
const LARGEST: u64 = 16 << 20;
/// Lengths at which lists are measured whatever the time: the first costs what a piece does, the last what a byte does.
pub(super) const FEWEST_LENGTHS: usize = 2;
/// The part of a pair's time that one way and list may use at most.
const SHARE: u32 = 3000;

/// Returns whether a path's lists can go by more than one way: between the host and a device, within a device, and between two whose memory a
/// kernel accesses. Unified memory would migrate between two that are measured.
pub(super) fn has_ways(manager: &CrossBackendTransferManager, path: TransferPath) -> bool {
    let TransferPath { src, dst } = path;
    let is_fixed = src.kind != MemoryKind::Unified && dst.kind != MemoryKind::Unified;
    match (src.device.is_cpu(), dst.device.is_cpu()) {
        (true, true) => false,
        (false, false) if src.device == dst.device => src == dst,
        (false, false) => is_fixed && manager.has_list_kernel(path),
        _ => is_fixed,
    }
}

impl CrossBackendTransferManager {
    /// Returns whether a kernel may copy lists of a path between two devices.
    fn has_list_kernel(&self, path: TransferPath) -> bool {
        let has_kernel =
            |candidate: &Candidate| candidate.route.has_kernel && candidate.method.takes_many(&path);
        let mut cache = self.registry.route_cache();
        cache.routes(&self.registry, &path).is_ok_and(|routes| routes.candidates.iter().any(has_kernel))
    }
}

/// Returns the bytes of the largest measured list of a path, if there may be copies of at most so many.
pub(super) fn largest(TransferPath { src, dst }: TransferPath, most: u64) -> u64 {
    if src.device.is_cpu() || dst.device.is_cpu() { most.min(LARGEST) } else { most }
}

/// Returns the number of pieces and the bytes of each of the lists of at most so many bytes.
pub(super) fn shapes(most: u64) -> impl Iterator<Item = (usize, usize)> + Clone {
    // Drivers copy few pieces in another way, which tells nothing of more.
    shapes_of(most, &LENGTHS, &COUNTS, 4)
}

/// Returns those of a part, by length, in the order in which they are measured: from both ends to the middles.
pub(super) fn of_part(most: u64, part: ListPart) -> Vec<Vec<(usize, usize)>> {
    let shapes: Vec<_> = shapes(most).collect();
    let lengths: Vec<_> = shapes.chunk_by(|(_, a), (_, b)| a == b).collect();
    let spread = spread(&lengths).into_iter().map(<[_]>::to_vec);
    match part {
        ListPart::Fewest => spread.take(FEWEST_LENGTHS).collect(),
        ListPart::Further => spread.skip(FEWEST_LENGTHS).collect(),
        ListPart::Beside => Vec::new(),
    }
}

/// Returns the lists of at most so many bytes, of these lengths and numbers of pieces, for each length `fewest` numbers at least.
pub(super) fn shapes_of(
    most: u64,
    lengths: &'static [usize],
    counts: &'static [usize],
    fewest: usize,
) -> impl Iterator<Item = (usize, usize)> + Clone {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    lengths.iter().flat_map(move |length| {
        let mut counts: Vec<_> = counts.iter().map(|count| (*count).min(most / length)).collect();
        counts.dedup();
        let are_enough = counts.len() >= fewest;
        counts.into_iter().filter(move |_| are_enough).map(move |count| (count, *length))
    })
}

/// Returns the first and the last, then those in the middle between two that were returned.
pub(super) fn spread<T: Copy>(all: &[T]) -> Vec<T> {
    let last = all.len().saturating_sub(1);
    let mut order: Vec<_> = [0, last].into_iter().take(all.len()).collect();
    let mut gaps = VecDeque::from([(0, last)]);
    while let Some((low, high)) = gaps.pop_front().filter(|(low, high)| high - low > 1) {
        let middle = low.midpoint(high);
        order.push(middle);
        gaps.extend([(middle, high), (low, middle)]);
        gaps.make_contiguous().sort_by_key(|(low, high)| Reverse(high - low));
    }
    order.into_iter().filter_map(|index| all.get(index).copied()).collect()
}

/// The options of lists that are measured: a calibration's own memory must not get registered, since pageable memory is measured.
pub(super) fn own_options() -> TransferOptions {
    TransferOptions::new().timing(Timing::Off).unregistered()
}

/// Returns a list of `count` pieces that follow each other in the host's memory and are scattered in the device's, so that no copies are
/// joined; within a device, at the destination.
pub(super) fn pairs(
    (src, dst): (&RawBuffer, &RawBuffer),
    (count, length): (usize, usize),
) -> Result<Vec<(RawBuffer, RawBuffer)>> {
    let is_down = !src.place().device.is_cpu() && dst.place().device.is_cpu();
    let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length);
    let both = |(at, scattered)| if is_down { (scattered, at) } else { (at, scattered) };
    let pairs = (0..count).zip(scattered(count)).map(both);
    pairs.map(|(from, to)| Ok((part(src, from)?, part(dst, to)?))).collect()
}

/// Returns all numbers below `count`, of less than 5,003, none followed by the next one.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    // A prime, and twice one more than a prime: it is one more than a multiple of few numbers.
    const STEP: usize = 10_007;
    (0..count).map(move |at| (1 + at * STEP) % count)
}

impl Run<'_> {
    /// Measures a part of the lists of a path, by all ways in turn, within about `time`: after the fewest, at as many lengths as there is time
    /// for. Returns those of the parts before, too. None if it has fewer than two ways.
    pub(super) fn lists(
        &mut self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
        (part, time): (ListPart, Duration),
    ) -> Result<Vec<ListCalibration>, Stop> {
        let end = self.now().saturating_add(time).min(self.deadline);
        let of_lengths = of_part(src.len() as u64, part);
        let mut left = of_lengths.iter().map(Vec::len).sum();
        let list = |way| ListCalibration { path, way, exclusive: true, times: Vec::new() };
        let mut found = match part {
            ListPart::Further => self.lists_begun(path),
            _ => ListWay::ALL.map(list).to_vec(),
        };
        let is_enough =
            part == ListPart::Further && !transload_core::mutant!("transfer/lists-of-all-lengths");
        for of_length in of_lengths {
            if is_enough && self.now() >= end {
                break;
            }
            let before = found.clone();
            match self.of_length((src, dst), &of_length, (end, left), &mut found) {
                // The path is finished, if less fine.
                Err(Stop::Budget) if is_enough => {
                    found = before;
                    break;
                }
                measured => measured?,
            }
            left -= of_length.len();
            if found.iter().filter(|list| list.way != ListWay::OneByOne).count() < 2 {
                return Ok(Vec::new());
            }
        }
        found.retain(|list| !list.times.is_empty());
        found.iter_mut().for_each(|list| list.times.sort_by_key(|list| (list.time.bytes, list.pieces)));
        Ok(found)
    }

    /// Measures the lists of one length, with their share of the time until `end`, of which `left` lists are to be measured.
    fn of_length(
        &mut self,
        (src, dst): (&RawBuffer, &RawBuffer),
        shapes: &[(usize, usize)],
        (end, mut left): (Duration, usize),
        found: &mut Vec<ListCalibration>,
    ) -> Result<(), Stop> {
        let path = TransferPath::new(src.place(), dst.place());
        for &(count, length) in shapes {
            // Ways that are close are measured for three shares, and some are left early.
            let all = u32::try_from(2 * left * ListWay::ALL.len()).unwrap_or(u32::MAX).max(1);
            let share = (end.saturating_sub(self.now()) / all).min(self.options.budget / SHARE);
            left = left.saturating_sub(1);
            self.tell(path, (count * length) as u64);
            self.list((src, dst), (count, length), share, found)?;
            self.done += 1;
            if found.iter().filter(|list| list.way != ListWay::OneByOne).count() < 2 {
                break;
            }
        }
        Ok(())
    }

    /// Measures a list by each way in turn. Removes those that cannot be used.
    fn list(
        &self,
        (src, dst): (&RawBuffer, &RawBuffer),
        (count, length): (usize, usize),
        share: Duration,
        found: &mut Vec<ListCalibration>,
    ) -> Result<(), Stop> {
        let pairs = pairs((src, dst), (count, length))?;
        let options = own_options();
        let timed = |way| {
            self.clocked(|| {
                let copies = self.manager.copy_many(&pairs).way(way).options(options).wait();
                Ok(copies.map(drop)?)
            })
        };
        let mut samples = Vec::new();
        let is_measured = |way: ListWay| way != ListWay::OneByOne || count <= MOST_SINGLES;
        for list in found.iter().filter(|list| is_measured(list.way)) {
            // The first warms up the path and the bytes.
            let once = || timed(list.way);
            match once().and_then(|time| if time < QUICK { once() } else { Ok(time) }) {
                Ok(_) => samples.push((list.way, Sample::default())),
                Err(Stop::Failed(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(stop) => return Err(stop),
            }
        }
        if samples.len() < found.iter().filter(|list| is_measured(list.way)).count() {
            // The bytes of a list that failed cannot be read before they are written again.
            self.clocked(|| self.manager.copy(src, dst).options(own_options()).wait().map(drop))?;
        }
        found.retain(|list| !is_measured(list.way) || samples.iter().any(|(way, _)| *way == list.way));
        if samples.len() < 2 {
            return Ok(());
        }
        loop {
            // Others would take most of the time.
            let contenders = contenders(&mut samples);
            let measured = || contenders.iter().map(|(_, sample)| sample);
            if are_enough(measured(), share) || is_far_ahead(measured()) {
                break;
            }
            for (way, sample) in contenders {
                // As in a program that repeats its lists: predictions were off by 6 and 11 % on average instead of 11 and 14 (H200, 8 and 2
                // processors).
                if sample.least() < QUICK {
                    sample.spend(timed(*way)?);
                }
                sample.add(timed(*way)?, 1);
            }
        }
        for list in found {
            if let Some((_, sample)) = samples.iter().find(|(way, _)| *way == list.way) {
                list.times.push(MeasuredList { pieces: count as u64, time: sample.result(length as u64) });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_numbers_are_all_and_have_no_neighbours() {
        for count in 1..3000 {
            let order: Vec<_> = scattered(count).collect();
            assert!(order.windows(2).all(|pair| pair[1] != pair[0] + 1), "{count}");
            let mut sorted = order;
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn ends_come_first_then_the_middles_of_the_widest_gaps() {
        assert_eq!(spread(&[0; 0]), []);
        assert_eq!(spread(&[7]), [7]);
        assert_eq!(spread(&[0, 1]), [0, 1]);
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5]), [0, 5, 2, 3, 1, 4]);
        let all: Vec<_> = (0..100).collect();
        let mut found = spread(&all);
        found.sort_unstable();
        assert_eq!(found, all);
    }
}
