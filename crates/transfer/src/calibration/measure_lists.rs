//! Measures the lists of a path: by each way, over the number of pieces and their length.

use std::time::Duration;

use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, Result, Timing, TransferPath};

use super::{
    ListCalibration, MeasuredList,
    measure::{QUICK, Run, Stop},
    sample::{Sample, are_enough, contenders, is_far_ahead},
};
use crate::TransferOptions;

/// Bytes of each piece of the measured lists.
const LENGTHS: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Numbers of pieces of the measured lists. A queue copies up to three one by one.
const COUNTS: [usize; 7] = [1, 3, 4, 16, 64, 256, 1024];
/// Lists of more pieces are not measured one by one.
const MOST_SINGLES: usize = 16;
/// The largest measured list between the host and a device, in bytes. Beyond it, times grow as the link's rate says; within a device they
/// do so only beyond its caches.
const LARGEST: u64 = 16 << 20;
/// The part of a pair's time that one way and list may use at most.
const SHARE: u32 = 3000;

/// Returns whether a path's lists can go by more than one way: between the host and a device, and within a device.
pub(super) fn has_ways(TransferPath { src, dst }: TransferPath) -> bool {
    let is_fixed = src.kind != MemoryKind::Unified && dst.kind != MemoryKind::Unified;
    is_fixed && src.device.is_cpu() != dst.device.is_cpu() || src == dst && !src.device.is_cpu()
}

/// Returns the bytes of the largest measured list of a path, if there may be copies of at most so many.
pub(super) fn largest(TransferPath { src, dst }: TransferPath, most: u64) -> u64 {
    if src.device == dst.device { most } else { most.min(LARGEST) }
}

/// Returns the number of pieces and the bytes of each of the lists of at most so many bytes.
pub(super) fn shapes(most: u64) -> impl Iterator<Item = (usize, usize)> + Clone {
    // Drivers copy few pieces in another way, which tells nothing of more.
    shapes_of(most, &LENGTHS, &COUNTS, 4)
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

/// Returns a list of `count` pieces, in the opposite order at the destination, so that no pieces are joined.
pub(super) fn pairs(
    (src, dst): (&RawBuffer, &RawBuffer),
    (count, length): (usize, usize),
) -> Result<Vec<(RawBuffer, RawBuffer)>> {
    let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length);
    (0..count).map(|at| Ok((part(src, at)?, part(dst, count - 1 - at)?))).collect()
}

impl Run<'_> {
    /// Measures all lists of a path, by all ways in turn, within about `time`. None if it has fewer than two ways.
    pub(super) fn lists(
        &mut self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
        time: Duration,
    ) -> Result<Vec<ListCalibration>, Stop> {
        let shapes = shapes(src.len() as u64);
        // Ways that are close are measured for three shares, and some are left early.
        let all = 2 * shapes.clone().count() * ListWay::ALL.len();
        let share = time / u32::try_from(all).unwrap_or(u32::MAX).max(1);
        let share = share.min(self.options.budget / SHARE);
        let list = |way| ListCalibration { path, way, exclusive: true, times: Vec::new() };
        let mut found = ListWay::ALL.map(list).to_vec();
        for (count, length) in shapes {
            self.tell(path, (count * length) as u64);
            self.list((src, dst), (count, length), share, &mut found)?;
            if found.iter().filter(|list| list.way != ListWay::OneByOne).count() < 2 {
                return Ok(Vec::new());
            }
            self.done += 1;
        }
        found.retain(|list| !list.times.is_empty());
        Ok(found)
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
        let options = TransferOptions::new().timing(Timing::Off);
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
            self.clocked(|| self.manager.copy(src, dst).wait().map(drop))?;
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
