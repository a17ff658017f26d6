//! Single copies beside a GEMM loop: what the method that is chosen costs over that of the best. The cost of a copy is that of a list there. Copy kernels
//! take part, of which only such a loop shows what they cost. Where the choice by times of an idle device is wrong, it is also told what a program chooses
//! whose copies have corrected these times for a while.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use transload_core::{DeviceId, MemoryKind, Place, TransferMethod, TransferPath};
use transload_transfer::{Calibration, CrossBackendTransferManager, PathCalibration, TransferOptions};

use super::{
    WORST, buffers,
    cell::{self, Cell, Time, confirmed, worst_at_first},
    finished,
    loaded::costs,
    manager_with,
};
use crate::{
    beside::load::Load,
    comparison::Fixture,
    content::Content,
    memory::Memory,
    row::{Goal, Row, Summary},
};

const SIZES: [usize; 3] = [64 << 10, 2 << 20, 32 << 20];
/// How often a method copies for as long as a list does.
const REPETITIONS: usize = 5;
/// How long a program copies before it is asked what it chooses.
const LEARNING: Duration = Duration::from_secs(3);

pub(super) fn rows(
    fixture: &Fixture<'_>,
    load: &Load,
    managers: (&CrossBackendTransferManager, &CrossBackendTransferManager),
    found: &Calibration,
) -> Result<Vec<Row>> {
    let largest = fixture.bytes(SIZES.into_iter().fold(0, usize::max));
    let content = Content::new(largest, 0xB5).part(0, largest).to_vec();
    // To copies mapped memory is the same as pinned memory.
    let there = Place::new(DeviceId::Cuda(fixture.device.ordinal()), MemoryKind::Device);
    let is_host = |place: &Place| matches!(place.kind, MemoryKind::Pinned | MemoryKind::Pageable);
    let is_measured = |path: &&PathCalibration| {
        let ends = [path.path.src, path.path.dst];
        path.methods.len() > 1 && ends.contains(&there) && ends.iter().any(is_host)
    };
    let (mut cells, mut first) = (Vec::new(), 1.0);
    for path in found.paths.iter().filter(is_measured) {
        let measure = |bytes: usize| {
            let content = content.get(..bytes).context("the content is as long as the largest")?;
            cell(fixture, load, managers, path, content)
        };
        let of_path = SIZES.into_iter().map(|bytes| measure(fixture.bytes(bytes))).collect::<Result<_>>()?;
        cells.extend(confirmed(of_path, &mut first, Cell::regret, |cell| measure(cell.list.1))?);
    }
    let mut rows =
        cell::rows(fixture, ("busy", &format!("beside {}", load.name()), load.is_gemm()), cells.iter())?;
    rows.push(worst_at_first(fixture, "busy", first));
    rows.push(learned(fixture, load, found, &cells)?);
    Ok(rows)
}

/// The worst choice of programs that have copied beside the load for a while. Right choices are taken to stay.
fn learned(
    fixture: &Fixture<'_>,
    load: &Load,
    found: &Calibration,
    cells: &[Cell<TransferMethod>],
) -> Result<Row> {
    let (mut worst, mut texts) = (1.0_f64, Vec::new());
    for cell in cells {
        let by_calibration = cell.regret(1);
        if by_calibration <= WORST {
            worst = worst.max(by_calibration);
            continue;
        }
        let (path, (_, bytes)) = (cell.path, cell.list);
        let manager = manager_with(fixture, true)?;
        manager.use_calibration(found)?;
        let (src, dst) = buffers(&manager, path, bytes)?;
        let learn = || -> Result<u32> {
            let (begun, mut copies) = (Instant::now(), 0);
            while begun.elapsed() < LEARNING {
                manager.copy(&src, &dst).wait()?;
                copies += 1;
            }
            Ok(copies)
        };
        let (copies, _) = load.beside(fixture, learn)?;
        let chosen = manager.plan(path.src, path.dst, bytes as u64, &TransferOptions::new())?.method;
        drop((src, dst));
        finished(&manager)?;
        let regret = cell.regret_of(&chosen);
        worst = worst.max(regret);
        texts.push(format!("{path}, {bytes} bytes, {copies} copies: {chosen}, {regret:.2} of the best"));
    }
    let what = format!("wrong choices after {LEARNING:?} of copies beside the load; {}", texts.join("; "));
    let row = fixture.row("busy/learned/worst", &what, "corrected by transfers", "x", Summary::single(worst));
    Ok(row.with_goal(load.is_gemm().then_some(Goal::AtMost(WORST))))
}

fn cell(
    fixture: &Fixture<'_>,
    load: &Load,
    (built_in, calibrated): (&CrossBackendTransferManager, &CrossBackendTransferManager),
    of: &PathCalibration,
    content: &[u8],
) -> Result<Cell<TransferMethod>> {
    let (path, bytes): (TransferPath, usize) = (of.path, content.len());
    let (src, dst) = buffers(calibrated, path, bytes)?;
    Memory::Ours(src.clone()).write(0, content)?;
    let plan = |manager: &CrossBackendTransferManager| {
        manager.plan(path.src, path.dst, bytes as u64, &TransferOptions::new())
    };
    let chosen = [plan(built_in)?.method, plan(calibrated)?.method];
    let mut methods: Vec<TransferMethod> = of.methods.iter().map(|curve| curve.method).collect();
    for chosen in chosen {
        methods.extend(Some(chosen).filter(|chosen| !methods.contains(chosen)));
    }
    let copy = |method: &TransferMethod| {
        calibrated.copy(&src, &dst).method(*method).wait()?;
        Ok(true)
    };
    let costs = costs(fixture, load, REPETITIONS, &methods, copy)?;
    for method in &methods {
        Memory::Ours(dst.clone()).poison()?;
        copy(method)?;
        let wrong = || format!("WRONG BYTES: {path} by {method}, {bytes} bytes beside a load");
        Memory::Ours(dst.clone()).compare(0, content).with_context(wrong)?;
    }
    let ways: Vec<_> = methods.into_iter().zip(costs.iter().map(|costs| Time::of(costs))).collect();
    let time = |chosen: TransferMethod| {
        let found = ways.iter().find(|(method, _)| *method == chosen);
        found.map(|(_, time)| *time).context("the chosen method is measured")
    };
    let [first, second] = chosen;
    let (times, plan) = ([time(first)?, time(second)?], second.to_string());
    Ok(Cell { path, list: (1, bytes), ways, chosen: times, plan })
}
