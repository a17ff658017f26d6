//! Rows of what choices cost: after a calibration, the time of the chosen method over that of the best, for each path and size.
//!
//! A cell counts if its best two methods differ by more than a tenth, or the chosen one from the best. Methods take turns within a cell. Times are the host's, of copies
//! that are waited for one after another. What is chosen is what the plan says, and has that method's time. A choice that seems wrong by more than a tenth is measured a second
//! time, which replaces the first also in the mean; one that seems right is not.

mod busy;
mod cell;
mod lists;
mod loaded;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, TransferMethod, TransferPath};
use transload_transfer::{
    Calibration, CalibrationOptions, CrossBackendTransferManager, PathCalibration, TransferOptions,
};

use crate::{
    comparison::{Fixture, Parts},
    content::Content,
    cuda, grid,
    memory::Memory,
    row::{Goal, Row, Summary},
};

/// Prefix of the rows' ids.
const GROUP: &str = "choice";
/// Every part, in order.
pub(crate) const PARTS: Parts =
    (GROUP, &[("regret", regret), ("lists", lists::rows), ("loaded", loaded::rows)]);

const SMALLEST: usize = 256;
const LARGEST: usize = 1 << 30;
/// Cells up to this size are compared byte by byte, and the largest of each path.
const COMPARED: usize = 16 << 20;
/// Ratio of the best two times from which a cell counts.
const DIFFERENT: f64 = 1.1;
/// Goals: the geometric mean of all counted cells, and each of them.
const MEAN: f64 = 1.03;
const WORST: f64 = 1.10;
/// Time of a cell, beyond its fewest repetitions.
const CELL: Duration = Duration::from_millis(40);

/// A path and a size with the time of each method, in seconds.
struct Cell {
    path: TransferPath,
    bytes: usize,
    /// Fastest first.
    times: Vec<(TransferMethod, f64)>,
    /// The choices by the built-in table and by the calibration.
    chosen: [TransferMethod; 2],
}

impl Cell {
    /// Returns whether the choice matters: the best two methods differ, or the calibration's choice is not the best.
    fn counts(&self) -> bool {
        matches!(self.times.as_slice(), [(_, best), (_, second), ..] if second / best > DIFFERENT)
            || self.regret(1) > DIFFERENT
    }

    /// Returns the time of a choice over the best.
    fn regret(&self, choice: usize) -> f64 {
        let best = self.times.first().map_or(1.0, |(_, time)| *time);
        let chosen = self.chosen.get(choice);
        let time = self.times.iter().find(|(method, _)| Some(method) == chosen);
        time.map_or(f64::INFINITY, |(_, time)| time / best)
    }

    fn text(&self) -> String {
        let [_, chosen] = self.chosen;
        let best = self.times.first().map_or("none", |(method, _)| method.name());
        format!("{}, {} bytes: {chosen} chosen, best {best}", self.path, self.bytes)
    }
}

pub(crate) fn manager(fixture: &Fixture<'_>) -> Result<CrossBackendTransferManager> {
    // The measured copies would correct what they are compared with.
    manager_with(fixture, false)
}

fn manager_with(fixture: &Fixture<'_>, refinement: bool) -> Result<CrossBackendTransferManager> {
    let ordinals = cuda::pair(fixture.device.ordinal())?;
    let builder = CrossBackendTransferManager::builder().registration(false);
    let manager = builder.refinement(refinement).build();
    manager.register_backend(CpuBackend::new()?)?;
    manager.register_backend(CudaBackend::open(&CudaBackendConfig::default().with_devices(ordinals))?)?;
    Ok(manager)
}

fn regret(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    // Not the software driver's: its times mean nothing.
    let largest = if fixture.is_simulated() { 64 << 10 } else { LARGEST };
    let (built_in, calibrated) = (manager(fixture)?, manager(fixture)?);
    let mut options = CalibrationOptions::new();
    if fixture.is_simulated() {
        options = options.largest(largest as u64);
    }
    let found = calibrated.calibrate(&options)?;
    let time = Summary::single(found.elapsed.as_secs_f64());
    let mut rows = vec![
        fixture.row("calibration", "all pairs of devices", "calibrate", "s", time),
        unfinished(fixture, "unfinished", &found),
    ];
    let mut content = Content::new(largest, 0xC401CE);
    let start = content.draw();
    let (mut cells, mut first) = (Vec::new(), 1.0);
    for path in found.paths.iter().filter(|path| path.methods.len() > 1) {
        rows.extend(crossings(fixture, path));
        let expected = content.part(start, largest);
        cells.extend(path_cells(fixture, (&built_in, &calibrated), (path, expected), &mut first)?);
    }
    for manager in [built_in, calibrated] {
        finished(&manager)?;
    }
    let counted: Vec<&Cell> = cells.iter().filter(|cell| cell.counts()).collect();
    // Else the means would be those of nothing, and every goal met.
    ensure!(fixture.is_simulated() || !counted.is_empty(), "none of {} cells counts", cells.len());
    for path in found.paths.iter().map(|path| path.path) {
        let of_path: Vec<&Cell> = counted.iter().copied().filter(|cell| cell.path == path).collect();
        if !of_path.is_empty() {
            let id = format!("regret/{}/worst", grid::name(path));
            rows.push(worst(fixture, &id, &of_path));
            rows.extend(of_path.iter().filter(|cell| cell.regret(1) > MEAN).map(|cell| wrong(fixture, cell)));
        }
    }
    let what = format!("geometric mean of {} cells of {}", counted.len(), cells.len());
    let mean = |choice| Summary::single(mean(&counted, choice));
    rows.push(
        fixture
            .row("regret/mean", &what, "calibrated", "x", mean(1))
            .against_library("built-in table", mean(0))
            .with_goal(Some(Goal::AtMost(MEAN))),
    );
    rows.push(worst(fixture, "regret/worst", &counted).with_goal(Some(Goal::AtMost(WORST))));
    rows.push(cell::worst_at_first(fixture, "regret", first));
    Ok(rows)
}

/// The paths of which a calibration has no costs: they have no cells.
fn unfinished(fixture: &Fixture<'_>, id: &str, found: &Calibration) -> Row {
    let unfinished = found.unfinished.iter().map(|it| format!("{}: {}", it.path, it.reason));
    let unfinished: Vec<_> = unfinished.collect();
    let count = Summary::single(unfinished.len() as f64);
    fixture.row(id, &unfinished.join("; "), "calibrate", "paths", count).with_goal(Some(Goal::AtMost(0.0)))
}

/// Fails if memory is still allocated.
pub(crate) fn finished(manager: &CrossBackendTransferManager) -> Result<()> {
    manager.drain()?;
    for (name, counts) in manager.resource_counts() {
        ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
    }
    Ok(())
}

fn crossings(fixture: &Fixture<'_>, path: &PathCalibration) -> Vec<Row> {
    let row = |(number, crossing): (usize, transload_transfer::Crossing)| {
        let id = format!("crossing/{}/{number}", grid::name(path.path));
        let what = format!("{}, {} before", path.path, crossing.from);
        fixture.row(&id, &what, crossing.to.name(), "B", Summary::single(crossing.bytes as f64))
    };
    path.crossings().into_iter().enumerate().map(row).collect()
}

fn mean(cells: &[&Cell], choice: usize) -> f64 {
    let sum: f64 = cells.iter().map(|cell| cell.regret(choice).ln()).sum();
    (sum / cells.len().max(1) as f64).exp()
}

fn worst(fixture: &Fixture<'_>, id: &str, cells: &[&Cell]) -> Row {
    let of = |choice: usize| cells.iter().map(|cell| cell.regret(choice)).fold(1.0, f64::max);
    let worst = cells.iter().max_by(|a, b| a.regret(1).total_cmp(&b.regret(1)));
    let what = worst.map_or_else(|| "no cell counts".to_owned(), |cell| cell.text());
    fixture
        .row(id, &what, "calibrated", "x", Summary::single(of(1)))
        .against_library("built-in table", Summary::single(of(0)))
}

/// The time of a wrong choice next to that of the best method.
fn wrong(fixture: &Fixture<'_>, cell: &Cell) -> Row {
    let [_, chosen] = cell.chosen;
    let time =
        |of: TransferMethod| cell.times.iter().find(|(method, _)| *method == of).map(|(_, time)| *time);
    let micros = |seconds: f64| Summary::single(seconds * 1e6);
    let (best, fastest) = cell.times.first().copied().unwrap_or((chosen, f64::INFINITY));
    let id = format!("wrong/{}/{}/{chosen}", grid::name(cell.path), cell.bytes);
    fixture
        .row(&id, &cell.text(), chosen.name(), "us", micros(time(chosen).unwrap_or(f64::INFINITY)))
        .against_library(best.name(), micros(fastest))
}

/// Allocates both ends of a path.
fn buffers(
    manager: &CrossBackendTransferManager,
    TransferPath { src, dst }: TransferPath,
    len: usize,
) -> Result<(RawBuffer, RawBuffer)> {
    let allocate = |place: Place, other: Place| -> Result<RawBuffer> {
        let is_pinned = matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped);
        let device: DeviceId = if is_pinned { other.device } else { place.device };
        Ok(manager.allocate_for(device, place.kind, len)?)
    };
    Ok((allocate(src, dst)?, allocate(dst, src)?))
}

/// Measures all sizes of a path up to that of the content: steps of 2, and one between each two.
fn path_cells(
    fixture: &Fixture<'_>,
    (built_in, manager): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    (calibrated, content): (&PathCalibration, &[u8]),
    first: &mut f64,
) -> Result<Vec<Cell>> {
    let (path, largest) = (calibrated.path, content.len());
    let (src, dst) = buffers(manager, path, largest)?;
    Memory::Ours(src.clone()).write(0, content)?;
    let methods = calibrated.methods.iter().map(|curve| curve.method);
    // An idle device does not show what a copy kernel costs, so it is not chosen by its time.
    let methods: Vec<_> = methods.filter(|method| *method != TransferMethod::ZeroCopy).collect();
    let choice = |manager: &CrossBackendTransferManager, bytes: usize| -> Result<TransferMethod> {
        Ok(manager.plan(path.src, path.dst, bytes as u64, &TransferOptions::new())?.method)
    };
    let measure = |bytes: usize| -> Result<Cell> {
        let (src, dst) = (src.slice(..bytes)?, dst.slice(..bytes)?);
        let copy = |method| -> Result<f64> {
            let begun = Instant::now();
            manager.copy(&src, &dst).method(method).wait()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let chosen = [choice(built_in, bytes)?, choice(manager, bytes)?];
        // What the calibration chooses is measured, whatever it is.
        let mut methods = methods.clone();
        methods.extend(Some(chosen[1]).filter(|chosen| !methods.contains(chosen)));
        let mut times = vec![Vec::new(); methods.len()];
        for method in &methods {
            copy(*method)?;
        }
        let fewest = fixture.repetitions(31);
        let begun = Instant::now();
        while times.iter().any(|times: &Vec<f64>| times.len() < fewest)
            || begun.elapsed() < CELL && times.iter().any(|times| times.len() < 10 * fewest)
        {
            for (method, times) in methods.iter().zip(&mut times) {
                // As in a program that repeats them.
                if times.last().is_none_or(|last| *last < lists::SHORT) {
                    copy(*method)?;
                }
                times.push(copy(*method)?);
            }
        }
        if bytes <= COMPARED || bytes * 3 / 2 > largest {
            for method in &methods {
                Memory::Ours(dst.clone()).poison()?;
                copy(*method)?;
                let expected = content.get(..bytes).context("the content is as long as the buffers")?;
                let wrong = || format!("WRONG BYTES: {path} by {method}, {bytes} bytes");
                Memory::Ours(dst.clone()).compare(0, expected).with_context(wrong)?;
            }
        }
        let mut times: Vec<_> =
            methods.iter().zip(&times).map(|(method, times)| (*method, Summary::of(times).p50)).collect();
        times.sort_by(|a, b| a.1.total_cmp(&b.1));
        Ok(Cell { path, bytes, times, chosen })
    };
    let sizes =
        std::iter::successors(Some(SMALLEST), |size| Some(size * 2)).flat_map(|size| [size, size / 2 * 3]);
    let cells = sizes.take_while(|bytes| *bytes <= largest).map(measure).collect::<Result<_>>()?;
    cell::confirmed(cells, first, Cell::regret, |cell| measure(cell.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        let rows = tested_on_the_software_driver(PARTS);
        for (kind, cells) in [("long-lists", 8), ("busy", 6)] {
            let row = rows.iter().find(|row| row.id == format!("choice/{kind}/worst")).unwrap();
            let (_, of) = row.path.split_once(" cells of ").unwrap();
            let of: usize = of.split(',').next().unwrap().parse().unwrap();
            assert!(of >= cells, "{}", row.path);
        }
    }

    #[test]
    fn regret_is_the_chosen_time_over_the_best() {
        let place = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
        let times = vec![(TransferMethod::HostStaged, 2.0), (TransferMethod::DirectCopy, 3.0)];
        let chosen = [TransferMethod::DirectCopy, TransferMethod::HostStaged];
        let cell = Cell { path: TransferPath::new(place, place), bytes: 1, times, chosen };
        assert!(cell.counts());
        assert_eq!((cell.regret(0), cell.regret(1)), (1.5, 1.0));
        assert!((mean(&[&cell, &cell], 0) - 1.5).abs() < 1e-9);
        let close = Cell {
            times: vec![(TransferMethod::HostStaged, 2.0), (TransferMethod::DirectCopy, 2.1)],
            ..cell
        };
        assert!(!close.counts());
        let times = [(TransferMethod::HostStaged, 10.0), (TransferMethod::ZeroCopy, 10.5)];
        let third_chosen =
            Cell { times: times.into_iter().chain([(TransferMethod::DirectCopy, 40.0)]).collect(), ..close };
        assert!(!third_chosen.counts(), "HostStaged is chosen");
        let third_chosen = Cell { chosen: [TransferMethod::DirectCopy; 2], ..third_chosen };
        assert!(third_chosen.counts());
        assert_eq!(third_chosen.regret(1), 4.0);
    }
}
