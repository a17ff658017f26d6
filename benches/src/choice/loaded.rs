//! Lists, and single copies (`busy`), beside a GEMM loop: what the way that is chosen costs over that of the best. The cost of a list is its
//! time, and how much longer the loop takes for it.

use std::{
    mem,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use transload_core::{DeviceId, ErrorKind, ListWay, MemoryKind, Place, TransferPath};
use transload_transfer::{CalibrationOptions, CrossBackendTransferManager};

use super::{
    busy,
    cell::{self, Cell, Time, confirmed, has_way, told, worst_at_first},
    finished,
    lists::{COMPARED, Ends},
    manager, unfinished,
};
use crate::{beside::load::Load, comparison::Fixture, row::Row};

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
const REPETITIONS: usize = 9;

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
    let (mut cells, mut first) = (Vec::new(), 1.0);
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let host = Place::new(DeviceId::Cpu, kind);
        for path in [TransferPath::new(host, there), TransferPath::new(there, host)] {
            let largest = fixture.bytes(LARGEST);
            let ends = Ends::new(&calibrated, path, largest)?;
            let measure = |list| cell(fixture, &load, (&built_in, &calibrated), &ends, list);
            let shapes = SHAPES.into_iter().filter(|(count, bytes)| count * bytes <= largest);
            let of_path = shapes.map(measure).collect::<Result<_>>()?;
            cells.extend(confirmed(of_path, &mut first, Cell::regret, |cell| measure(cell.list))?);
        }
    }
    let mut rows = busy::rows(fixture, &load, (&built_in, &calibrated), &found)?;
    let (is_gemm, beside) = (load.is_gemm(), format!("beside {}", load.name()));
    drop(load);
    for manager in [built_in, calibrated] {
        finished(&manager)?;
    }
    ensure!(!cells.is_empty(), "no lists: {:?}", found.unfinished);
    rows.extend(cell::rows(fixture, ("loaded", &beside, is_gemm), cells.iter())?);
    rows.push(worst_at_first(fixture, "loaded", first));
    rows.push(unfinished(fixture, "loaded/unfinished", &found));
    Ok(rows)
}

fn cell(
    fixture: &Fixture<'_>,
    load: &Load,
    (built_in, calibrated): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    ends: &Ends,
    list: (usize, usize),
) -> Result<Cell> {
    let path = TransferPath::new(ends.src.place(), ends.dst.place());
    let pairs = ends.pairs(list)?;
    let shape = (list.0 as u64, list.1 as u64);
    let plan = |manager: &CrossBackendTransferManager| manager.plan_many(path.src, path.dst, shape, false);
    let plans = [plan(built_in)?, plan(calibrated)?];
    let chosen = plans.each_ref().map(|plan| plan.way.unwrap_or(ListWay::OneByOne));
    let ways = ListWay::ALL.into_iter().filter(|way| has_way(list.0, *way) || chosen.contains(way));
    let ways: Vec<ListWay> = ways.collect();
    // Returns whether the path has the way. Without a way, as it is chosen.
    let copy = |way: Option<ListWay>| {
        let copy = calibrated.copy_many(&pairs);
        match if let Some(way) = way { copy.way(way) } else { copy }.wait() {
            Err(failed) if failed.error.kind() == ErrorKind::Unsupported => Ok(false),
            copied => Ok(copied.map(|_report| true)?),
        }
    };
    let costs = costs(fixture, load, REPETITIONS, &ways, |way| copy(Some(*way)))?;
    let has_path = |costs: &Vec<f64>| costs.first().is_some_and(|cost| cost.is_finite());
    let is_short = list.0 * list.1 <= COMPARED;
    let compared = ways.iter().zip(&costs).filter(|(_, costs)| is_short && has_path(costs));
    for way in compared.map(|(way, _)| Some(*way)).chain([None]) {
        let what = format!("{path}, {list:?} by {way:?}, not exclusive");
        ends.check(list, &what, || copy(way).map(drop))?;
    }
    let ways: Vec<_> = ways.into_iter().zip(costs.iter().map(|costs| Time::of(costs))).collect();
    let time = |way: ListWay| {
        let found = ways.iter().find(|(of, _)| *of == way);
        found.map(|(_, time)| *time).context("the chosen way is measured")
    };
    let [_, plan] = &plans;
    let chosen = [time(chosen[0])?, time(chosen[1])?];
    Ok(Cell { path, list, ways, chosen, plan: told(plan) })
}

/// Returns what a copy by each variant costs, several times: its seconds, and how much longer the load takes for it. `copy` returns whether it
/// can be done that way; else the costs are infinite.
pub(super) fn costs<V>(
    fixture: &Fixture<'_>,
    load: &Load,
    repetitions: usize,
    variants: &[V],
    copy: impl Fn(&V) -> Result<bool>,
) -> Result<Vec<Vec<f64>>> {
    let time = if fixture.is_simulated() { Duration::ZERO } else { TIME };
    let mut costs = vec![Vec::new(); variants.len()];
    let alone = || {
        let ((), alone) = load.beside(fixture, || {
            std::thread::sleep(time / 2);
            Ok(())
        })?;
        Ok::<_, anyhow::Error>(alone)
    };
    // What the load takes changes with the device's clocks: it is measured before and after each variant, of which another is the first each
    // time.
    let mut before = alone()?;
    for repetition in 0..=fixture.few_repetitions(repetitions) {
        for index in 0..variants.len() {
            let index = (index + repetition) % variants.len();
            let (Some(variant), Some(costs)) = (variants.get(index), costs.get_mut(index)) else { continue };
            let run = || -> Result<f64> {
                let (begun, mut copies) = (Instant::now(), 0);
                while copies == 0 || begun.elapsed() < time {
                    if !copy(variant)? {
                        return Ok(f64::INFINITY);
                    }
                    copies += 1;
                }
                Ok(begun.elapsed().as_secs_f64() / f64::from(copies))
            };
            let (each, took) = load.beside(fixture, run)?;
            let after = alone()?;
            let alone = f64::midpoint(mem::replace(&mut before, after), after);
            let delayed = if alone > 0.0 { (1.0 - alone / took).max(0.0) } else { 0.0 };
            if repetition > 0 {
                costs.push(each * (1.0 + delayed));
            }
        }
    }
    Ok(costs)
}
