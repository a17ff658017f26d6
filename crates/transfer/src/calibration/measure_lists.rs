//! Measures the lists of a path: by each way, over the number of pieces and their length.

use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, Result, Timing, TransferPath};

use super::{
    ListCalibration, MeasuredList,
    measure::{Run, Stop},
    sample::{Sample, are_enough},
};
use crate::TransferOptions;

/// Bytes of each piece of the measured lists.
const LENGTHS: [usize; 6] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Numbers of pieces of the measured lists.
const COUNTS: [usize; 5] = [2, 4, 16, 128, 1024];
/// The largest measured list, in bytes.
pub(super) const LARGEST: u64 = 16 << 20;
/// The part of a pair's time that one way and list may use: with five repetitions of each, the lists of a GPU fit beside its single
/// copies.
const SHARE: u32 = 3000;

/// Returns whether a path's lists can go by more than one way: between the host and a device, and within a device.
pub(super) fn has_ways(TransferPath { src, dst }: TransferPath) -> bool {
    let is_fixed = src.kind != MemoryKind::Unified && dst.kind != MemoryKind::Unified;
    is_fixed && src.device.is_cpu() != dst.device.is_cpu() || src == dst && !src.device.is_cpu()
}

/// Returns the number of pieces and the bytes of each of the lists of at most so many bytes.
pub(super) fn shapes(most: u64) -> impl Iterator<Item = (usize, usize)> {
    let most = usize::try_from(most.min(LARGEST)).unwrap_or(usize::MAX);
    LENGTHS.into_iter().flat_map(move |length| {
        let mut counts = COUNTS.map(|count| count.min(most / length.max(4096))).to_vec();
        counts.dedup();
        // Beyond the second: drivers copy so few pieces in another way, which tells nothing of more.
        let are_enough = counts.len() > 2;
        counts.into_iter().filter(move |_| are_enough).map(move |count| (count, length))
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
    /// Measures all lists of a path, by all ways in turn. None if it has fewer than two ways.
    pub(super) fn lists(
        &mut self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
    ) -> Result<Vec<ListCalibration>, Stop> {
        let list = |way| ListCalibration { path, way, exclusive: true, times: Vec::new() };
        let mut found = ListWay::ALL.map(list).to_vec();
        for (count, length) in shapes(src.len() as u64) {
            self.tell(path, (count * length) as u64);
            self.list((src, dst), (count, length), &mut found)?;
            if found.len() < 2 {
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
        for list in found.iter() {
            // The first warms up the path and the bytes.
            match timed(list.way).and_then(|_| timed(list.way)) {
                Ok(_) => samples.push((list.way, Sample::default())),
                Err(Stop::Failed(error)) if error.kind() == ErrorKind::Unsupported => {}
                Err(stop) => return Err(stop),
            }
        }
        if samples.len() < found.len() {
            // The bytes of a list that failed cannot be read before they are written again.
            self.clocked(|| self.manager.copy(src, dst).wait().map(drop))?;
        }
        found.retain(|list| samples.iter().any(|(way, _)| *way == list.way));
        if samples.len() < 2 {
            return Ok(());
        }
        let share = self.options.budget / SHARE;
        while !are_enough(samples.iter().map(|(_, sample)| sample), share) {
            for (way, sample) in &mut samples {
                sample.add(timed(*way)?, 1);
            }
        }
        for (list, (_, sample)) in found.iter_mut().zip(samples) {
            list.times.push(MeasuredList { pieces: count as u64, time: sample.result(length as u64) });
        }
        Ok(())
    }
}
