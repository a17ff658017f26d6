//! The same of lists: the time of the way that is chosen on an idle device over that of the best, for each path, number of pieces and
//! length. None of these shapes is measured by the calibration.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, TransferPath};
use transload_transfer::{CalibrationOptions, CrossBackendTransferManager};

use super::{
    buffers,
    cell::{self, Cell, Time, confirmed, geometric, has_way, told, worst_at_first},
    finished, manager, unfinished,
};
use crate::{
    comparison::Fixture,
    content::Content,
    many::pieces::STEP,
    memory::Memory,
    row::{Row, Summary},
};

const COUNTS: [usize; 9] = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000];
const LENGTHS: [usize; 8] = [512, 2 << 10, 8 << 10, 24 << 10, 48 << 10, 128 << 10, 512 << 10, 2 << 20];
/// The largest list, in bytes.
const LARGEST: usize = 64 << 20;
/// The longest list of each length up to this size is compared by every way, and the longest of all as it is chosen.
pub(super) const COMPARED: usize = 8 << 20;
/// Fewest repetitions of each way, and the time of a cell beyond these.
const REPETITIONS: usize = 31;
const CELL: Duration = Duration::from_millis(50);
/// Longer lists, which have rows of their own.
const LONG: [(usize, usize); 2] = [(100_000, 256), (100_000, 4 << 10)];
const LONG_REPETITIONS: usize = 11;
/// Time after which no repetition of one begins.
const LONG_CELL: Duration = Duration::from_millis(300);
/// Repetitions after which a way is left that takes so many times as long as the best, and was not chosen.
const FEW: usize = 2;
const BEHIND: f64 = 3.0;
/// Seconds up to which a list is timed right after one by the same way, as in a program that repeats its lists.
pub(super) const SHORT: f64 = 1e-3;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let (built_in, calibrated) = (manager(fixture)?, manager(fixture)?);
    let mut options = CalibrationOptions::new();
    if fixture.is_simulated() {
        options = options.largest(64 << 10);
    }
    let found = calibrated.calibrate(&options)?;
    let mut paths: Vec<TransferPath> = found.lists.iter().map(|list| list.path).collect();
    paths.sort();
    paths.dedup();
    // To copies it is the same as pinned memory.
    paths.retain(|path| [path.src, path.dst].iter().all(|place| place.kind != MemoryKind::Mapped));
    let (mut cells, mut long, mut first) = (Vec::new(), Vec::new(), 1.0);
    for path in &paths {
        cells.extend(path_cells(fixture, (&built_in, &calibrated), *path, &mut first)?);
    }
    for path in paths {
        long.extend(long_cells(fixture, (&built_in, &calibrated), path)?);
    }
    for manager in [built_in, calibrated] {
        finished(&manager)?;
    }
    // Else the means would be those of nothing, and every goal met.
    ensure!(!cells.is_empty(), "the calibration measured no lists: {:?}", found.unfinished);
    let mut rows =
        cell::rows(fixture, ("lists", "an idle device", true), cells.iter().map(|(cell, _)| cell))?;
    rows.push(worst_at_first(fixture, "lists", first));
    rows.extend(cell::rows(fixture, ("long-lists", "an idle device", true), long.iter())?);
    rows.push(unfinished(fixture, "lists/unfinished", &found));
    // How far predictions are from the times, either way.
    let errors = cells.iter().map(|(cell, predicted)| {
        let [_, time] = cell.chosen;
        (predicted / time.median).max(time.median / predicted)
    });
    let errors = Summary::single(geometric(errors));
    rows.push(fixture.row(
        "lists/prediction",
        "predicted over measured, or the inverse",
        "calibrated",
        "x",
        errors,
    ));
    Ok(rows)
}

fn path_cells(
    fixture: &Fixture<'_>,
    (built_in, manager): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    path: TransferPath,
    first: &mut f64,
) -> Result<Vec<(Cell, f64)>> {
    let largest = fixture.bytes(LARGEST);
    let ends = Ends::new(manager, path, largest)?;
    let effort = Effort { warm_up: true, fewest: fixture.repetitions(REPETITIONS), most: Duration::MAX };
    let mut cells = Vec::new();
    for length in LENGTHS {
        let counts = || COUNTS.into_iter().filter(|count| count * length <= largest);
        let compared = counts().rfind(|count| count * length <= COMPARED);
        for count in counts() {
            let is_compared = Some(count) == compared;
            cells.push(cell((built_in, manager), &ends, (count, length), (effort, is_compared))?);
            if Some(count) == counts().next_back() {
                let pairs = ends.pairs((count, length))?;
                let what = format!("{path}, {count} pieces of {length} bytes");
                ends.check((count, length), &what, || {
                    Ok(manager.copy_many(&pairs).exclusive().wait().map(drop)?)
                })?;
            }
        }
    }
    let again = |(one, _): &(Cell, f64)| cell((built_in, manager), &ends, one.list, (effort, false));
    confirmed(cells, first, |(cell, _), choice| cell.regret(choice), again)
}

/// Cells of lists so long that a way takes up to a second: each way is measured at least twice, and the chosen one is compared.
fn long_cells(
    fixture: &Fixture<'_>,
    (built_in, manager): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    path: TransferPath,
) -> Result<Vec<Cell>> {
    let shapes = LONG.map(|(count, length)| (fixture.amount(count), length));
    // The software driver has fewer pieces of each.
    let largest = fixture.bytes(LONG.into_iter().map(|(count, length)| count * length).fold(0, usize::max));
    let shapes = shapes.map(|(count, length)| (count.min(largest / length), length));
    let ends = Ends::new(manager, path, largest)?;
    let mut cells = Vec::new();
    for list in shapes {
        let effort =
            Effort { warm_up: false, fewest: fixture.few_repetitions(LONG_REPETITIONS), most: LONG_CELL };
        cells.push(cell((built_in, manager), &ends, list, (effort, false))?.0);
        let pairs = ends.pairs(list)?;
        ends.check(list, &format!("{path}, {list:?}"), || {
            Ok(manager.copy_many(&pairs).exclusive().wait().map(drop)?)
        })?;
    }
    Ok(cells)
}

/// Both ends of lists, with random bytes at the source.
pub(super) struct Ends {
    pub(super) src: RawBuffer,
    pub(super) dst: RawBuffer,
    content: Vec<u8>,
}

impl Ends {
    pub(super) fn new(
        manager: &CrossBackendTransferManager,
        path: TransferPath,
        largest: usize,
    ) -> Result<Self> {
        let (src, dst) = buffers(manager, path, largest)?;
        let content = Content::new(largest, 0x11575).part(0, largest).to_vec();
        Memory::Ours(src.clone()).write(0, &content)?;
        Ok(Self { src, dst, content })
    }

    /// Pieces in order on the host and scattered on the device, or at the destination within one.
    pub(super) fn pairs(&self, (count, length): (usize, usize)) -> Result<Vec<(RawBuffer, RawBuffer)>> {
        let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length);
        let both = |(from, to)| Ok((part(&self.src, from)?, part(&self.dst, to)?));
        self.order(count).map(both).collect()
    }

    /// Returns where each piece is at the source and at the destination.
    fn order(&self, count: usize) -> impl Iterator<Item = (usize, usize)> {
        let is_down = self.dst.place().device.is_cpu() && !self.src.place().device.is_cpu();
        let both = move |(at, there)| if is_down { (there, at) } else { (at, there) };
        (0..count).map(move |at| (at, at * STEP % count)).map(both)
    }

    /// Copies a list to a poisoned destination and compares every byte.
    pub(super) fn check(
        &self,
        (count, length): (usize, usize),
        what: &str,
        copy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let pieces = self.content.get(..count * length).context("as long as the buffers")?;
        let mut expected = vec![0; pieces.len()];
        for (from, to) in self.order(count) {
            let piece = pieces.get(from * length..(from + 1) * length).context("a piece of the source")?;
            let there =
                expected.get_mut(to * length..(to + 1) * length).context("a piece of the destination")?;
            there.copy_from_slice(piece);
        }
        let dst = Memory::Ours(self.dst.slice(..count * length)?);
        dst.poison()?;
        copy()?;
        dst.compare(0, &expected).with_context(|| format!("WRONG BYTES: {what}"))
    }
}

/// How each way of a list is measured.
#[derive(Clone, Copy)]
struct Effort {
    warm_up: bool,
    fewest: usize,
    /// Time after which no repetition begins, but for the first two.
    most: Duration,
}

/// Returns a cell, and the predicted seconds of the way that is chosen.
fn cell(
    (built_in, manager): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    ends: &Ends,
    list: (usize, usize),
    (Effort { warm_up, fewest, most }, is_compared): (Effort, bool),
) -> Result<(Cell, f64)> {
    let pairs = ends.pairs(list)?;
    let path = TransferPath::new(ends.src.place(), ends.dst.place());
    let shape = (list.0 as u64, list.1 as u64);
    let plan = |manager: &CrossBackendTransferManager| manager.plan_many(path.src, path.dst, shape, true);
    let plans = [plan(built_in)?, plan(manager)?];
    let chosen = plans.each_ref().map(|plan| plan.way.unwrap_or(ListWay::OneByOne));
    let ways = ListWay::ALL.into_iter().filter(|way| has_way(list.0, *way) || chosen.contains(way));
    let variants: Vec<ListWay> = ways.collect();
    let run = |way: ListWay| -> Result<f64> {
        let begun = Instant::now();
        match manager.copy_many(&pairs).way(way).wait() {
            Err(failed) if failed.error.kind() == ErrorKind::Unsupported => return Ok(f64::INFINITY),
            copied => drop(copied?),
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    let mut times = vec![Vec::new(); variants.len()];
    for way in variants.iter().filter(|_| warm_up) {
        run(*way)?;
    }
    let begun = Instant::now();
    while times.iter().any(|times: &Vec<f64>| times.len() < FEW) {
        for (way, times) in variants.iter().zip(&mut times) {
            times.push(run(*way)?);
        }
    }
    // The others would slow down what comes after them.
    let least = |times: &Vec<f64>| times.iter().copied().fold(f64::INFINITY, f64::min);
    let best = times.iter().map(least).fold(f64::INFINITY, f64::min);
    let is_behind = |way: ListWay, times: &Vec<f64>| least(times) > BEHIND * best && !chosen.contains(&way);
    let (mut measured, _): (Vec<_>, Vec<_>) =
        variants.iter().zip(&mut times).partition(|(way, times)| !is_behind(**way, times));
    let few = Instant::now();
    while few.elapsed() < most
        && (measured.iter().any(|(_, times)| times.len() < fewest)
            || begun.elapsed() < CELL && measured.iter().any(|(_, times)| times.len() < 10 * fewest))
    {
        for (way, times) in &mut measured {
            if least(times) < SHORT {
                run(**way)?;
            }
            times.push(run(**way)?);
        }
    }
    let has_path = |times: &&Vec<f64>| times.first().is_some_and(|time| time.is_finite());
    for (way, _) in variants.iter().zip(&times).filter(|(_, times)| is_compared && has_path(times)) {
        ends.check(list, &format!("{path}, {list:?} by {way}"), || run(*way).map(drop))?;
    }
    let ways: Vec<_> = variants.into_iter().zip(times.iter().map(|times| Time::of(times))).collect();
    let time = |way: ListWay| {
        let found = ways.iter().find(|(of, _)| *of == way);
        found.map(|(_, time)| *time).context("the chosen way is measured")
    };
    let [_, calibrated] = &plans;
    let chosen = [time(chosen[0])?, time(chosen[1])?];
    let predicted = calibrated.predicted.as_secs_f64();
    Ok((Cell { path, list, ways, chosen, plan: told(calibrated) }, predicted))
}
