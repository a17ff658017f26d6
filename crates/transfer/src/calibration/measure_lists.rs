//! Measures the lists of a path: by each way, over the number of pieces and their length.

use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, Result, Timing, TransferPath};

use super::{
    ListCalibration, MeasuredList,
    measure::{Run, Stop},
    sample::{Sample, are_enough},
};
use crate::TransferOptions;

/// Bytes of each piece of the measured lists.
const LENGTHS: [usize; 5] = [512, 4 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Numbers of pieces of the measured lists.
const COUNTS: [usize; 4] = [2, 16, 128, 1024];
/// The part of the largest copy that a list may have.
const OF_LARGEST: usize = 8;
/// The largest measured list, in bytes.
const LARGEST: usize = 32 << 20;
/// The part of a pair's time that one way and list may use.
const SHARE: u32 = 600;

/// Returns whether a path's lists can go by more than one way: between the host and a device, and within a device.
fn has_ways(TransferPath { src, dst }: TransferPath) -> bool {
    let is_fixed = src.kind != MemoryKind::Unified && dst.kind != MemoryKind::Unified;
    is_fixed && src.device.is_cpu() != dst.device.is_cpu() || src == dst && !src.device.is_cpu()
}

impl Run<'_> {
    /// Measures all lists of a path, by all ways in turn. None if it has fewer than two ways.
    pub(super) fn lists(
        &self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
    ) -> Result<Vec<ListCalibration>, Stop> {
        let ways = if has_ways(path) { ListWay::ALL.as_slice() } else { &[] };
        let list = |way: &ListWay| ListCalibration { path, way: *way, times: Vec::new() };
        let mut found: Vec<_> = ways.iter().map(list).collect();
        let most = LARGEST.min(src.len() / OF_LARGEST);
        for length in LENGTHS {
            let counts = COUNTS.map(|count| count.min(most / length.max(4096)));
            // At least two, and each once.
            if counts.first() == counts.last() || counts.first() < Some(&COUNTS[0]) {
                break;
            }
            for (at, count) in counts.into_iter().enumerate() {
                if counts.get(at + 1) == Some(&count) {
                    continue;
                }
                self.list((src, dst), (count, length), &mut found)?;
                if found.len() < 2 {
                    return Ok(Vec::new());
                }
            }
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
        // In the opposite order at the destination, so that no pieces are joined.
        let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length);
        let pair = |at: usize| Ok((part(src, at)?, part(dst, count - 1 - at)?));
        let pairs = (0..count).map(pair).collect::<Result<Vec<_>>>()?;
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
