//! The same of lists: the time of the way that is chosen on an idle device over that of the best, for each path, number of pieces and
//! length. None of these shapes is measured by the calibration.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use transload_core::{ErrorKind, ListWay, MemoryKind, RawBuffer, TransferPath};
use transload_transfer::{CalibrationOptions, CrossBackendTransferManager};

use super::{DIFFERENT, MEAN, WORST, buffers, finished, manager};
use crate::{
    comparison::Fixture,
    content::Content,
    grid,
    memory::Memory,
    row::{Goal, Row, Summary},
};

const COUNTS: [usize; 9] = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000];
const LENGTHS: [usize; 8] = [512, 2 << 10, 8 << 10, 24 << 10, 48 << 10, 128 << 10, 512 << 10, 2 << 20];
/// The largest list, in bytes.
const LARGEST: usize = 64 << 20;
/// Time of a cell, beyond its fewest repetitions.
const CELL: Duration = Duration::from_millis(25);

struct Cell {
    path: TransferPath,
    list: (usize, usize),
    /// Seconds by each way; infinite by one that the path does not have.
    ways: [f64; ListWay::ALL.len()],
    /// The choices by the built-in table and by the calibration, with their times.
    chosen: [(Option<ListWay>, f64); 2],
    predicted: f64,
}

impl Cell {
    fn best(&self) -> f64 {
        self.ways.into_iter().chain(self.chosen.map(|(_, time)| time)).fold(f64::INFINITY, f64::min)
    }

    fn counts(&self) -> bool {
        let mut ways = self.ways;
        ways.sort_by(f64::total_cmp);
        let [best, second, _] = ways;
        second / best > DIFFERENT
    }

    fn regret(&self, choice: usize) -> f64 {
        self.chosen.get(choice).map_or(f64::INFINITY, |(_, time)| time / self.best())
    }

    fn text(&self) -> String {
        let [engine, through, kernel] = self.ways.map(|time| time * 1e6);
        let (pieces, bytes) = self.list;
        let [_, (way, time)] = self.chosen;
        let way = way.map_or("one by one".to_owned(), |way| way.to_string());
        format!(
            "{}, {pieces} pieces of {bytes} bytes: {way} takes {:.1} us, engine {engine:.1}, through device memory {through:.1}, kernel {kernel:.1}",
            self.path,
            time * 1e6
        )
    }
}

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
    let mut cells = Vec::new();
    for path in paths {
        cells.extend(path_cells(fixture, (&built_in, &calibrated), path)?);
    }
    for manager in [built_in, calibrated] {
        finished(&manager)?;
    }
    // Else the means would be those of nothing, and every goal met.
    ensure!(!cells.is_empty(), "the calibration measured no lists: {:?}", found.unfinished);
    let counted: Vec<&Cell> = cells.iter().filter(|cell| cell.counts()).collect();
    let mut rows = Vec::new();
    for path in found.paths.iter().map(|path| path.path) {
        let of_path: Vec<&Cell> = counted.iter().copied().filter(|cell| cell.path == path).collect();
        if !of_path.is_empty() {
            rows.push(worst(fixture, &format!("lists/{}/worst", grid::name(path)), &of_path));
            rows.extend(
                of_path.iter().filter(|cell| cell.regret(1) > WORST).map(|cell| wrong(fixture, cell)),
            );
        }
    }
    let what = format!("geometric mean of {} cells of {}", counted.len(), cells.len());
    let mean = |choice| Summary::single(geometric(counted.iter().map(|cell| cell.regret(choice))));
    rows.push(
        fixture
            .row("lists/mean", &what, "calibrated", "x", mean(1))
            .against("built-in table", mean(0))
            .with_goal(Some(Goal::AtMost(MEAN))),
    );
    rows.push(worst(fixture, "lists/worst", &counted).with_goal(Some(Goal::AtMost(WORST))));
    // How far predictions are from the times, either way.
    let error = |cell: &Cell| {
        let [_, (_, time)] = cell.chosen;
        (cell.predicted / time).max(time / cell.predicted)
    };
    let errors = Summary::single(geometric(cells.iter().map(error)));
    rows.push(fixture.row(
        "lists/prediction",
        "predicted over measured, or the inverse",
        "calibrated",
        "x",
        errors,
    ));
    Ok(rows)
}

fn geometric(ratios: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = ratios.clone().count().max(1) as f64;
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

fn worst(fixture: &Fixture<'_>, id: &str, cells: &[&Cell]) -> Row {
    let of = |choice: usize| cells.iter().map(|cell| cell.regret(choice)).fold(1.0, f64::max);
    let worst = cells.iter().max_by(|a, b| a.regret(1).total_cmp(&b.regret(1)));
    let what = worst.map_or_else(|| "no cell counts".to_owned(), |cell| cell.text());
    fixture
        .row(id, &what, "calibrated", "x", Summary::single(of(1)))
        .against("built-in table", Summary::single(of(0)))
}

/// The time of a wrong choice next to that of the best way.
fn wrong(fixture: &Fixture<'_>, cell: &Cell) -> Row {
    let ([_, (_, time)], (pieces, bytes)) = (cell.chosen, cell.list);
    let id = format!("lists/wrong/{}/{pieces}/{bytes}", grid::name(cell.path));
    let micros = |seconds: f64| Summary::single(seconds * 1e6);
    fixture.row(&id, &cell.text(), "calibrated", "us", micros(time)).against("the best", micros(cell.best()))
}

fn path_cells(
    fixture: &Fixture<'_>,
    (built_in, manager): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    path: TransferPath,
) -> Result<Vec<Cell>> {
    let largest = fixture.bytes(LARGEST);
    let (src, dst) = buffers(manager, path, largest)?;
    let mut random = Content::new(largest, 0x11575);
    let start = random.draw();
    let content = random.part(start, largest);
    Memory::Ours(src.clone()).write(0, content)?;
    let mut cells = Vec::new();
    for length in LENGTHS {
        let counts = COUNTS.into_iter().filter(|count| count * length <= largest);
        for count in counts {
            cells.push(cell(fixture, (built_in, manager), (&src, &dst), (count, length))?);
            // The last is checked: each piece is where its opposite was.
            if count * length * 4 > largest || Some(&count) == COUNTS.last() {
                let pieces = content.get(..count * length).context("as long as the buffers")?;
                let expected: Vec<u8> = pieces.chunks(length).rev().flatten().copied().collect();
                Memory::Ours(dst.clone()).poison()?;
                manager.copy_many(pairs((&src, &dst), (count, length))?).exclusive().wait()?;
                let wrong = || format!("WRONG BYTES: {path}, {count} pieces of {length} bytes");
                Memory::Ours(dst.clone()).compare(0, &expected).with_context(wrong)?;
            }
        }
    }
    Ok(cells)
}

/// Pieces in the opposite order at the destination, so that none are joined.
pub(super) fn pairs(
    (src, dst): (&RawBuffer, &RawBuffer),
    (count, length): (usize, usize),
) -> Result<Vec<(RawBuffer, RawBuffer)>> {
    let part = |of: &RawBuffer, at: usize| of.slice(at * length..(at + 1) * length);
    let pairs = (0..count).map(|at| Ok((part(src, at)?, part(dst, count - 1 - at)?)));
    pairs.collect()
}

fn cell(
    fixture: &Fixture<'_>,
    (built_in, manager): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    (src, dst): (&RawBuffer, &RawBuffer),
    list: (usize, usize),
) -> Result<Cell> {
    let pairs = pairs((src, dst), list)?;
    let path = TransferPath::new(src.place(), dst.place());
    let shape = (list.0 as u64, list.1 as u64);
    let plan = |manager: &CrossBackendTransferManager| manager.plan_many(path.src, path.dst, shape, true);
    let plans = [plan(built_in)?, plan(manager)?];
    // One by one only where that is chosen.
    let mut variants: Vec<Option<ListWay>> = ListWay::ALL.map(Some).to_vec();
    if plans.iter().any(|plan| plan.way.is_none()) {
        variants.push(None);
    }
    let run = |way: Option<ListWay>| -> Result<f64> {
        let begun = Instant::now();
        match way {
            Some(way) => match manager.copy_many(&pairs).way(way).wait() {
                Err(failed) if failed.error.kind() == ErrorKind::Unsupported => return Ok(f64::INFINITY),
                copied => drop(copied?),
            },
            None => {
                let copies: Vec<_> = pairs.iter().map(|(src, dst)| manager.copy(src, dst).submit()).collect();
                copies.into_iter().try_for_each(|copy| copy.wait().map(drop))?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    let mut times = vec![Vec::new(); variants.len()];
    for way in &variants {
        run(*way)?;
    }
    let (fewest, begun) = (fixture.repetitions(9), Instant::now());
    while times.iter().any(|times: &Vec<f64>| times.len() < fewest)
        || begun.elapsed() < CELL && times.iter().any(|times| times.len() < 10 * fewest)
    {
        for (way, times) in variants.iter().zip(&mut times) {
            times.push(run(*way)?);
        }
    }
    let medians: Vec<f64> = times.iter().map(|times| Summary::of(times).p50).collect();
    let time = |way: Option<ListWay>| {
        let found = variants.iter().zip(&medians).find(|(variant, _)| **variant == way);
        found.map_or(f64::INFINITY, |(_, time)| *time)
    };
    let predicted = plans.last().map_or(0.0, |plan| plan.predicted.as_secs_f64());
    let ways = ListWay::ALL.map(|way| time(Some(way)));
    Ok(Cell { path, list, ways, chosen: plans.map(|plan| (plan.way, time(plan.way))), predicted })
}
