//! Measures lists beside kernels that compute on the device: how long they take, and how long they delay the kernels.

use std::time::Duration;

use transload_core::{DeviceId, Error, ErrorKind, ListWay, RawBuffer, TransferPath};

use super::{
    ListCalibration, MeasuredList,
    load::{Load, Ran},
    measure::{Run, Stop},
    measure_lists::{FEWEST_LENGTHS, own_options, pairs, shapes_of, spread},
    result::MeasuredTime,
};
use crate::methods::CHUNK;

/// Bytes of each piece of the measured lists, and their numbers.
const LENGTHS: [usize; 5] = [2 << 10, 6 << 10, 16 << 10, 128 << 10, 1 << 20];
const COUNTS: [usize; 3] = [4, 128, 2048];
/// The largest measured list, in bytes: one that is staged is copied at once.
const LARGEST: usize = CHUNK;
/// How often each way is measured, in turn with the others, while half of the path's time is not spent, and where the first time is
/// [doubtful](is_doubtful). The shortest counts, since what else happens on the machine only adds.
const TURNS: usize = 2;
/// How many times as long as one copy of all bytes a list by copy engines takes at most, if its pieces have so many bytes at least: they wait
/// for no kernel.
const OVER_SINGLE: u32 = 3;
const LONG_PIECE: usize = 128 << 10;
/// How many times as long as the fastest way of a list one takes that is measured no further.
const BEHIND: u32 = 3;
/// Kernels by which it is found how long one takes.
const KERNELS: u32 = 4;
/// Kernels from which a list takes so long that it does not matter when in a kernel it begins.
const LONG: u32 = 4;

/// What lists of one way took, and the kernels meanwhile.
struct Taken {
    lists: Vec<Duration>,
    kernels: Ran,
}

/// Least number of kernels that the time of a pair has room for.
const KERNELS_A_BUDGET: u32 = 64;

impl Taken {
    /// Returns what each list took on average, and by how much it delayed the kernels, of which one takes `kernel` alone.
    fn result(&self, bytes: u64, kernel: Duration) -> MeasuredTime {
        let repetitions = u32::try_from(self.lists.len()).unwrap_or(u32::MAX).max(1);
        let lists = self.lists.iter().sum::<Duration>();
        let delay = self.kernels.time.saturating_sub(kernel.saturating_mul(self.kernels.kernels));
        let median = (lists.saturating_add(delay) / repetitions).max(Duration::from_nanos(1));
        let mean = (lists / repetitions).as_secs_f64();
        let squares = self.lists.iter().map(|time| (time.as_secs_f64() - mean).powi(2)).sum::<f64>();
        let noise = Duration::from_secs_f64(2.0 * squares.sqrt() / f64::from(repetitions));
        MeasuredTime { bytes, median, noise, repetitions }
    }
}

/// Returns the number of pieces and the bytes of each of the lists of at most so many bytes.
pub(super) fn shapes(most: u64) -> impl Iterator<Item = (usize, usize)> + Clone {
    shapes_of(most, &LENGTHS, &COUNTS, 2)
}

impl Run<'_> {
    /// Returns how long the kernels take beside which lists are measured.
    pub(super) fn kernel(&self) -> Duration {
        self.options.kernel.min(self.options.budget / KERNELS_A_BUDGET)
    }

    /// Measures lists of a path beside kernels, by all ways, within about `time`: after the fewest lengths, at as many as there is time for. None if it
    /// has fewer than two ways, or the device has no such kernel.
    pub(super) fn lists_beside(
        &mut self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
        (device, time): (DeviceId, Duration),
    ) -> Result<Vec<ListCalibration>, Stop> {
        // Not a kernel more once it is cancelled, or the time is spent.
        self.check()?;
        let load = match Load::new(self, device, self.kernel()) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Vec::new()),
            load => load?,
        };
        self.lists_beside_load(path, (src, dst), &load, time)
    }

    fn lists_beside_load(
        &mut self,
        path: TransferPath,
        (src, dst): (&RawBuffer, &RawBuffer),
        load: &Load,
        time: Duration,
    ) -> Result<Vec<ListCalibration>, Stop> {
        let most = src.len().min(LARGEST) as u64;
        // The first loads what it needs.
        load.mean(self, 1)?;
        let kernel = load.mean(self, KERNELS)?;
        if kernel.is_zero() {
            // The device measures no durations.
            return Ok(Vec::new());
        }
        // Pieces one by one go by copy engines: as on an idle device.
        let ways = ListWay::ALL.into_iter().filter(|way| *way != ListWay::OneByOne);
        let list = |way| ListCalibration { path, way, exclusive: false, times: Vec::new() };
        let mut found: Vec<_> = ways.map(list).collect();
        let (begun, shapes) = (self.now(), shapes(most).collect::<Vec<_>>());
        let of_lengths: Vec<_> = shapes.chunk_by(|(_, a), (_, b)| a == b).collect();
        for (index, of_length) in spread(&of_lengths).into_iter().enumerate() {
            let is_enough = index >= FEWEST_LENGTHS;
            if is_enough && self.now().saturating_sub(begun) >= time {
                break;
            }
            let before = found.clone();
            let measured = of_length.iter().try_for_each(|shape| {
                if found.len() < 2 {
                    return Ok(());
                }
                self.list_beside((src, dst), *shape, (load, kernel), (begun, time), &mut found)
            });
            match measured {
                // The path is finished, if less fine.
                Err(Stop::Budget) if is_enough => {
                    found = before;
                    break;
                }
                measured => measured?,
            }
            if found.len() < 2 {
                return Ok(Vec::new());
            }
        }
        found.retain(|list| !list.times.is_empty());
        found.iter_mut().for_each(|list| list.times.sort_by_key(|list| (list.time.bytes, list.pieces)));
        Ok(found)
    }

    /// Measures a list by each way in turn, for a path whose lists were begun then and have so much time. Removes those that cannot be used.
    fn list_beside(
        &mut self,
        (src, dst): (&RawBuffer, &RawBuffer),
        (count, length): (usize, usize),
        (load, kernel): (&Load, Duration),
        (begun, time): (Duration, Duration),
        found: &mut Vec<ListCalibration>,
    ) -> Result<(), Stop> {
        let path = TransferPath::new(src.place(), dst.place());
        self.tell(path, (count * length) as u64);
        let pairs = pairs((src, dst), (count, length))?;
        let single =
            (length >= LONG_PIECE).then(|| self.single_copy(path, (count * length) as u64)).flatten();
        let mut best = Duration::MAX;
        for turn in 0..TURNS {
            let spent = self.now().saturating_sub(begun);
            let is_doubtful = spent <= time && found.iter().any(|list| is_doubtful(list, single));
            if turn > 0 && spent > time / 2 && !is_doubtful {
                break;
            }
            let mut unsupported = Vec::new();
            for list in &mut *found {
                match self.turn(load, (&pairs, list.way), (kernel, best.saturating_mul(BEHIND))) {
                    Err(Stop::Failed(error)) if error.kind() == ErrorKind::Unsupported => {
                        unsupported.push(list.way);
                    }
                    // All ways were measured; if lists are left, they end the path.
                    Err(Stop::Budget) if turn > 0 => break,
                    taken => {
                        let time = taken?.result(length as u64, kernel);
                        best = best.min(time.median);
                        match list.times.last_mut().filter(|_| turn > 0) {
                            Some(first) if first.time.median <= time.median => {}
                            Some(first) => first.time = time,
                            None => list.times.push(MeasuredList { pieces: count as u64, time }),
                        }
                    }
                }
            }
            if !unsupported.is_empty() && self.check().is_ok() {
                // The bytes of a list that failed cannot be read before they are written again.
                self.manager.copy(src, dst).options(own_options()).wait()?;
            }
            found.retain(|list| !unsupported.contains(&list.way));
            if found.len() < 2 {
                break;
            }
        }
        Ok(())
    }

    /// Returns the shortest time of the smallest measured copy of at least so many bytes.
    fn single_copy(&self, path: TransferPath, bytes: u64) -> Option<Duration> {
        let measured = self.calibration.paths.iter().find(|measured| measured.path == path)?;
        let times = measured.methods.iter().flat_map(|curve| &curve.times);
        let fitting = times.filter(|time| time.bytes >= bytes).map(|time| (time.bytes, time.median));
        fitting.min().map(|(_, time)| time)
    }

    /// Copies lists one after another from the end of a kernel until that of another one; one that takes long, and at least as `hopeless`, once.
    fn turn(
        &self,
        load: &Load,
        (pairs, way): (&[(RawBuffer, RawBuffer)], ListWay),
        (kernel, hopeless): (Duration, Duration),
    ) -> Result<Taken, Stop> {
        let list = || {
            self.check()?;
            Ok::<_, Stop>(self.manager.copy_many(pairs).way(way).options(own_options()))
        };
        // As a program waits: that thread takes part in staging.
        let waited = || {
            let (list, begun) = (list()?, self.now());
            list.wait().map_err(Error::from)?;
            Ok::<_, Stop>(self.now().saturating_sub(begun))
        };
        // Until the kernel has ended that lists of another way delayed. The first of this way only by looking at it again and again: work of others
        // may hold it up for ever.
        let before = load.ran()?;
        let (first, begun) = (list()?, self.now());
        let first = first.submit();
        self.poll_until(|| {
            let _feeds = load.ran();
            first.is_complete()
        })?;
        first.wait().map_err(Error::from)?;
        let first = self.now().saturating_sub(begun);
        if first >= LONG * kernel {
            let (before, list) = if first < hopeless { (load.ran()?, waited()?) } else { (before, first) };
            // The one that it delayed may not have ended yet.
            load.mean(self, 1)?;
            return Ok(Taken { lists: vec![list], kernels: load.ran()?.since(before) });
        }
        // From the second one on they begin where such a list ends within a kernel, as in a program that repeats them.
        waited()?;
        while load.ran()?.kernels == before.kernels {
            waited()?;
        }
        let (before, mut lists) = (load.ran()?, Vec::new());
        while load.ran()?.kernels == before.kernels {
            lists.push(waited()?);
        }
        Ok(Taken { lists, kernels: load.ran()?.since(before) })
    }
}

/// Returns whether something else than the kernels may have delayed the last list, of which one copy of all bytes takes `single`.
fn is_doubtful(list: &ListCalibration, single: Option<Duration>) -> bool {
    let last = list.times.last().filter(|_| list.way == ListWay::CopyEngine);
    last.zip(single).is_some_and(|(last, single)| last.time.median > single.saturating_mul(OVER_SINGLE))
}

#[cfg(test)]
mod tests {
    use transload_core::{MemoryKind, Place};

    use super::*;

    #[test]
    fn long_list_by_copy_engines_is_doubtful_where_one_copy_takes_far_less() {
        let place = |device, kind| Place::new(device, kind);
        let path = TransferPath::new(
            place(DeviceId::Cpu, MemoryKind::Pageable),
            place(DeviceId::Cuda(0), MemoryKind::Device),
        );
        let list = |way, micros| {
            let time = MeasuredTime {
                bytes: 1 << 20,
                median: Duration::from_micros(micros),
                noise: Duration::ZERO,
                repetitions: 1,
            };
            ListCalibration { path, way, exclusive: false, times: vec![MeasuredList { pieces: 8, time }] }
        };
        let single = Some(Duration::from_micros(350));
        assert!(is_doubtful(&list(ListWay::CopyEngine, 4_800), single));
        assert!(!is_doubtful(&list(ListWay::CopyEngine, 580), single));
        // A kernel waits for those that run.
        assert!(!is_doubtful(&list(ListWay::CopyKernel, 4_800), single));
        assert!(!is_doubtful(&list(ListWay::CopyEngine, 4_800), None));
        assert!(!is_doubtful(&ListCalibration { times: Vec::new(), ..list(ListWay::CopyEngine, 1) }, single));
    }
}
