//! Lists beside a GEMM loop: what the way that is chosen costs over that of the best. The cost of a list is its time, and how much longer the loop
//! takes for it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use transload_core::{DeviceId, ErrorKind, ListWay, MemoryKind, Place, RawBuffer, TransferPath};
use transload_transfer::{CalibrationOptions, CrossBackendTransferManager};

use super::{MEAN, WORST, buffers, finished, lists::pairs, manager};
use crate::{
    beside::load::Load,
    comparison::Fixture,
    grid,
    row::{Goal, Row, Summary},
};

const SHAPES: [(usize, usize); 9] = [
    (30, 4 << 10),
    (300, 2 << 10),
    (2000, 4 << 10),
    (60, 24 << 10),
    (1000, 24 << 10),
    (40, 128 << 10),
    (300, 128 << 10),
    (5, 2 << 20),
    (24, 2 << 20),
];
/// The largest list, in bytes.
const LARGEST: usize = 48 << 20;
/// How long a way copies at a time, and how often.
const TIME: Duration = Duration::from_millis(25);
const REPETITIONS: usize = 2;

/// What a list costs: by each way, as the built-in rule chooses, and as the calibration does.
struct Cell {
    path: TransferPath,
    list: (usize, usize),
    costs: Vec<(String, f64)>,
}

/// Ways that are not chosen come first.
const WAYS: usize = ListWay::ALL.len();

impl Cell {
    fn best(&self) -> f64 {
        self.costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min)
    }

    fn regret(&self, choice: usize) -> f64 {
        self.costs.get(WAYS + choice).map_or(f64::INFINITY, |(_, cost)| cost / self.best())
    }

    fn text(&self) -> String {
        let costs: Vec<_> =
            self.costs.iter().map(|(name, cost)| format!("{name} {:.1}", cost * 1e6)).collect();
        let (pieces, bytes) = self.list;
        format!("{}, {pieces} pieces of {bytes} bytes, us: {}", self.path, costs.join(", "))
    }
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let (built_in, calibrated) = (manager(fixture)?, manager(fixture)?);
    let mut options = CalibrationOptions::new();
    if fixture.is_simulated() {
        options = options.largest(1 << 20);
    }
    let found = calibrated.calibrate(&options)?;
    let load = Load::new(fixture)?;
    let device = DeviceId::Cuda(fixture.device.ordinal());
    let there = Place::new(device, MemoryKind::Device);
    let mut cells = Vec::new();
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let host = Place::new(DeviceId::Cpu, kind);
        for path in [TransferPath::new(host, there), TransferPath::new(there, host)] {
            let largest = fixture.bytes(LARGEST);
            let (src, dst) = buffers(&calibrated, path, largest)?;
            for list in SHAPES.into_iter().filter(|(count, bytes)| count * bytes <= largest) {
                cells.push(cell(fixture, &load, (&built_in, &calibrated), (&src, &dst), list)?);
            }
        }
    }
    drop(load);
    for manager in [built_in, calibrated] {
        finished(&manager)?;
    }
    ensure!(!cells.is_empty(), "no lists: {:?}", found.unfinished);
    let mut rows: Vec<Row> = cells
        .iter()
        .map(|cell| {
            let (pieces, bytes) = cell.list;
            let id = format!("loaded/{}/{pieces}/{bytes}", grid::name(cell.path));
            let regret = |choice| Summary::single(cell.regret(choice));
            fixture.row(&id, &cell.text(), "calibrated", "x", regret(1)).against("built-in rule", regret(0))
        })
        .collect();
    let mean = |choice| {
        let logs = cells.iter().map(|cell| cell.regret(choice).ln()).sum::<f64>();
        Summary::single((logs / cells.len() as f64).exp())
    };
    let worst = |choice| Summary::single(cells.iter().map(|cell| cell.regret(choice)).fold(1.0, f64::max));
    let what = format!("cost over the best of {} cells", cells.len());
    for (id, of, goal) in
        [("loaded/mean", &mean as &dyn Fn(usize) -> Summary, MEAN), ("loaded/worst", &worst, WORST)]
    {
        let row = fixture.row(id, &what, "calibrated", "x", of(1)).against("built-in rule", of(0));
        rows.push(row.with_goal(Some(Goal::AtMost(goal))));
    }
    Ok(rows)
}

fn cell(
    fixture: &Fixture<'_>,
    load: &Load,
    (built_in, calibrated): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    (src, dst): (&RawBuffer, &RawBuffer),
    list: (usize, usize),
) -> Result<Cell> {
    let path = TransferPath::new(src.place(), dst.place());
    let pairs = pairs((src, dst), list)?;
    let mut variants: Vec<(String, &CrossBackendTransferManager, Option<ListWay>)> =
        ListWay::ALL.into_iter().map(|way| (way.to_string(), calibrated, Some(way))).collect();
    let plan = calibrated.plan_many(path.src, path.dst, (list.0 as u64, list.1 as u64), false)?;
    variants.push(("built-in rule".to_owned(), built_in, None));
    let chosen = plan.way.map_or("one by one".to_owned(), |way| way.to_string());
    let predicted: Vec<_> =
        plan.alternatives.iter().map(|other| format!("{:?} {:.0?}", other.way, other.predicted)).collect();
    variants.push((
        format!("calibrated ({chosen} {:.0?}, {})", plan.predicted, predicted.join(" ")),
        calibrated,
        None,
    ));
    let time = if fixture.is_simulated() { Duration::ZERO } else { TIME };
    let mut costs = vec![Vec::new(); variants.len()];
    for repetition in 0..=fixture.repetitions(REPETITIONS).min(REPETITIONS) {
        let ((), alone) = load.beside(fixture, || {
            std::thread::sleep(time);
            Ok(())
        })?;
        for ((_, manager, way), costs) in variants.iter().zip(&mut costs) {
            let run = || -> Result<f64> {
                let (begun, mut lists) = (Instant::now(), 0);
                while lists == 0 || begun.elapsed() < time {
                    let copy = manager.copy_many(&pairs);
                    match if let Some(way) = way { copy.way(*way) } else { copy }.wait() {
                        Err(failed) if failed.error.kind() == ErrorKind::Unsupported => {
                            return Ok(f64::INFINITY);
                        }
                        copied => drop(copied?),
                    }
                    lists += 1;
                }
                Ok(begun.elapsed().as_secs_f64() / f64::from(lists))
            };
            let (list, took) = load.beside(fixture, run)?;
            let delayed = if alone > 0.0 { (1.0 - alone / took).max(0.0) } else { 0.0 };
            if repetition > 0 {
                costs.push(list * (1.0 + delayed));
            }
        }
    }
    let median = |costs: &Vec<f64>| Summary::of(costs).p50;
    let costs = variants.iter().zip(&costs).map(|((name, ..), costs)| (name.clone(), median(costs)));
    Ok(Cell { path, list, costs: costs.collect() })
}
