//! Measures lists beside kernels that compute on the device: how long they take, and how long they delay the kernels.

use std::{thread, time::Duration};

use transload_core::{DeviceId, ErrorKind, ListWay, RawBuffer, Timing, TransferPath};

use super::{
    ListCalibration, MeasuredList,
    load::Load,
    measure::{Run, Stop},
    measure_lists::{LARGEST, pairs},
    result::MeasuredTime,
};
use crate::TransferOptions;

/// Bytes of each piece of the measured lists, and their numbers.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const COUNTS: [usize; 3] = [16, 128, 1024];
/// Bytes that a kernel fills, as a multiple of the largest copy: 1 ms on an H200, about as long as a large multiplication of matrices. A list
/// that takes a kernel of its own waits for those that run.
const FILLED: u64 = 16;
/// Kernels that end while lists are copied by one way, at least.
const KERNELS: u32 = 4;

fn shapes(most: u64) -> impl Iterator<Item = (usize, usize)> {
    let most = usize::try_from(most.min(LARGEST)).unwrap_or(usize::MAX);
    LENGTHS.into_iter().flat_map(move |length| {
        let mut counts = COUNTS.map(|count| count.min(most / length)).to_vec();
        counts.dedup();
        let are_enough = counts.len() > 1;
        counts.into_iter().filter(move |_| are_enough).map(move |count| (count, length))
    })
}

/// What lists of one way took, and the kernels meanwhile.
#[derive(Default)]
struct Taken {
    lists: Vec<Duration>,
    kernels: Duration,
    ended: u32,
}

impl Taken {
    /// What three of four lists take at most, and by how much each of them delayed the kernels on average, of which one takes `kernel` alone.
    /// Some lists find a gap between kernels, others wait for one: kernels that others compute with may leave none.
    fn result(mut self, bytes: u64, kernel: Duration) -> MeasuredTime {
        self.lists.sort();
        let count = u32::try_from(self.lists.len()).unwrap_or(u32::MAX).max(1);
        let at = |share: usize| self.lists.get(self.lists.len() * share / 8).copied().unwrap_or_default();
        let delay = self.kernels.saturating_sub(kernel.saturating_mul(self.ended)) / count;
        let median = at(6).saturating_add(delay).max(Duration::from_nanos(1));
        MeasuredTime { bytes, median, noise: at(7).saturating_sub(at(5)) / 2, repetitions: count }
    }
}

impl Run<'_> {
    /// Measures lists of a path beside kernels, by the ways that were `measured` without.
    pub(super) fn lists_beside(
        &mut self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
        device: DeviceId,
    ) -> Result<Vec<ListCalibration>, Stop> {
        let measured =
            |way: &ListWay| self.calibration.lists.iter().any(|list| (list.path, list.way) == (path, *way));
        let ways: Vec<ListWay> = ListWay::ALL.into_iter().filter(measured).collect();
        if ways.len() < 2 || shapes(src.len() as u64).next().is_none() {
            return Ok(Vec::new());
        }
        let mut load = match Load::new(self.manager, device, self.filled(device)?) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Vec::new()),
            load => load?,
        };
        load.run(KERNELS)?;
        let (ended, taken) = (load.ended, load.taken);
        load.run(2 * KERNELS)?;
        let kernel = load.taken.saturating_sub(taken) / (load.ended - ended);
        if kernel.is_zero() {
            // The device measures no durations.
            return Ok(Vec::new());
        }
        let list = |way| ListCalibration { path, way, exclusive: false, times: Vec::new() };
        let mut found: Vec<_> = ways.into_iter().map(list).collect();
        for (count, length) in shapes(src.len() as u64) {
            self.tell(path, (count * length) as u64);
            let pairs = pairs((src, dst), (count, length))?;
            let mut taken: Vec<Taken> = found.iter().map(|_| Taken::default()).collect();
            for (list, taken) in found.iter().zip(&mut taken) {
                self.turn(&mut load, (&pairs, list.way), taken)?;
            }
            for (list, taken) in found.iter_mut().zip(taken) {
                let time = taken.result(length as u64, kernel);
                list.times.push(MeasuredList { pieces: count as u64, time });
            }
        }
        Ok(found)
    }

    /// Returns the bytes that a kernel fills.
    fn filled(&self, device: DeviceId) -> Result<u64, Stop> {
        Ok(self.usable(device)?.min(self.options.largest.saturating_mul(FILLED)))
    }

    /// Copies lists one after another until some kernels have ended.
    fn turn(
        &self,
        load: &mut Load,
        (pairs, way): (&[(RawBuffer, RawBuffer)], ListWay),
        taken: &mut Taken,
    ) -> Result<(), Stop> {
        let options = TransferOptions::new().timing(Timing::Off);
        load.run(1)?;
        let (ended, before) = (load.ended, load.taken);
        while load.ended - ended < KERNELS {
            let time = self.clocked(|| {
                let copies = self.manager.copy_many(pairs).way(way).options(options).submit();
                while !copies.is_complete() {
                    load.feed()?;
                    thread::yield_now();
                }
                Ok(copies.wait().map(drop)?)
            })?;
            load.feed()?;
            taken.lists.push(time);
        }
        taken.kernels += load.taken.saturating_sub(before);
        taken.ended += load.ended - ended;
        Ok(())
    }
}
