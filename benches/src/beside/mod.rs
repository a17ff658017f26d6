//! Rows of blocks that go up and down at the same time, alone and while the device computes: `copy_blocks`, next to the raw batch call,
//! a raw kernel over a list that reads the host's memory, and raw copies staged on the device.

mod copiers;
mod cublas;
pub(crate) mod load;

use std::{
    mem,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::MemoryKind;
use transload_cuda_sys::Driver;
use transload_transfer::CrossBackendTransferManager;

use self::{
    copiers::{Batch, Blocks, Copier, Launches, Listed, Lists},
    load::Load,
};
use crate::{
    comparison::{Fixture, Parts, Verify},
    content::Content,
    many::pieces::Pieces,
    row::{Goal, Row, Summary},
    rows::is_verified,
};

/// Every part, in order, by the length of a block.
pub(crate) const PARTS: Parts = (
    "beside",
    &[
        ("4-KiB", |fixture| rows_of(fixture, 4 << 10, Goals { rate: 60.0, slowdown: 1.15, alone: 85.0 })),
        ("24-KiB", |fixture| rows_of(fixture, 24 << 10, Goals { rate: 85.0, slowdown: 1.08, alone: 96.0 })),
        ("128-KiB", |fixture| rows_of(fixture, 128 << 10, Goals { rate: 90.0, slowdown: 1.03, alone: 98.0 })),
        ("2-MiB", |fixture| rows_of(fixture, 2 << 20, Goals { rate: 96.0, slowdown: 1.01, alone: 96.0 })),
    ],
);

/// Bytes of a list; there are two for each direction.
const LIST: usize = 128 << 20;
/// How long each way copies. The load runs alone half as long before and after it: the longer a device computes, the slower it may become.
const TIME: Duration = Duration::from_millis(50);
const REPETITIONS: usize = 30;
/// Length from which blocks are not staged on the device.
const LONG: usize = 1 << 20;

/// Goals of `copy_blocks`.
struct Goals {
    /// GB/s up and down, while the device computes.
    rate: f64,
    /// How much longer the load takes meanwhile.
    slowdown: f64,
    /// GB/s up and down of an idle device.
    alone: f64,
}

/// A way to copy both directions.
struct Way<'a> {
    /// Its place among the rows.
    index: usize,
    name: String,
    method: String,
    /// Whether the goals are its own beside the load, and alone.
    goals: [bool; 2],
    copiers: [Box<dyn Copier + 'a>; 2],
    rates: [Vec<f64>; 2],
    slowdowns: Vec<f64>,
}

impl<'a> Way<'a> {
    fn new(
        name: &str,
        method: &str,
        goals: [bool; 2],
        copier: impl Fn(bool) -> Result<Box<dyn Copier + 'a>>,
    ) -> Result<Self> {
        let copiers = [copier(true)?, copier(false)?];
        let (rates, slowdowns) = (<[Vec<f64>; 2]>::default(), Vec::new());
        Ok(Self {
            index: 0,
            name: name.to_owned(),
            method: method.to_owned(),
            goals,
            copiers,
            rates,
            slowdowns,
        })
    }
}

fn rows_of(fixture: &Fixture<'_>, bytes: usize, goals: Goals) -> Result<Vec<Row>> {
    let manager = CrossBackendTransferManager::builder().registration(false).build();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([fixture.device.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    let count = (fixture.bytes(LIST) / bytes).max(2);
    let list = |up| {
        Pieces::new(fixture, fixture.memory.allocate(MemoryKind::Pinned, count * bytes)?, (count, bytes), up)
    };
    let lists = [[list(true)?, list(true)?], [list(false)?, list(false)?]];
    let load = Load::new(fixture)?;
    let mut ways = ways(fixture, &manager, &lists, bytes)?;
    let time = if fixture.is_simulated() { Duration::ZERO } else { TIME };
    let moved = (2 * count * bytes) as f64;
    let alone = || -> Result<f64> {
        let ((), took) = load.beside(fixture, || {
            thread::sleep(time / 2);
            Ok(())
        })?;
        Ok(took)
    };
    let mut random = Content::new(0, 0xBE51);
    for repetition in 0..=fixture.few_repetitions(REPETITIONS) {
        let mut before = alone()?;
        // What a device did before decides how fast it computes for a while, so no way always follows the same other one.
        ways.sort_by_cached_key(|_| random.draw());
        for way in &mut ways {
            let (rate, took) = load.beside(fixture, || both(fixture, &mut way.copiers, moved, time))?;
            // A device that computed little meanwhile is faster for a while than one that did nothing else.
            alone()?;
            let after = alone()?;
            let expected = f64::midpoint(mem::replace(&mut before, after), after);
            if repetition > 0 {
                way.rates[0].push(rate);
                way.slowdowns.push(if expected > 0.0 { took / expected } else { 1.0 });
            }
        }
        for way in &mut ways {
            let idle = both(fixture, &mut way.copiers, moved, time)?;
            if repetition > 0 {
                way.rates[1].push(idle);
            }
        }
    }
    ways.sort_by_key(|way| way.index);
    let mut rows = Vec::new();
    for way in &mut ways {
        lists.iter().flatten().try_for_each(Verify::poison)?;
        both(fixture, &mut way.copiers, moved, Duration::ZERO)?;
        let verified = lists.iter().flatten().all(|list| is_verified(list.check()));
        rows.extend(rows_of_way(fixture, way, (bytes, verified), &goals, &load));
    }
    drop(ways);
    drop(load);
    manager.drain()?;
    Ok(rows)
}

/// Every way; the first one is the reference.
fn ways<'a>(
    fixture: &'a Fixture<'_>,
    manager: &'a CrossBackendTransferManager,
    lists: &'a [Lists; 2],
    bytes: usize,
) -> Result<Vec<Way<'a>>> {
    let [up_lists, down_lists] = lists;
    let of = |up| if up { up_lists } else { down_lists };
    let blocks = |exclusive| {
        move |up| -> Result<Box<dyn Copier + 'a>> {
            Ok(Box::new(Blocks { manager, lists: of(up), bytes, exclusive, running: [None, None] }))
        }
    };
    let listed = |launches| {
        move |up| -> Result<Box<dyn Copier + 'a>> {
            Ok(Box::new(Listed::new(fixture, of(up), up, launches)?))
        }
    };
    let mut ways = Vec::new();
    if Driver::get()?.has(c"cuMemcpyBatchAsync_v2") {
        let batch = |up| -> Result<Box<dyn Copier + 'a>> { Ok(Box::new(Batch::new(of(up))?)) };
        ways.push(Way::new("raw-batch", "the raw batch call", [false; 2], batch)?);
    }
    let in_place = Launches { blocks: 32, scratch: None };
    ways.push(Way::new(
        "raw-list",
        "a raw kernel on the host's memory, 32 blocks",
        [false; 2],
        listed(in_place),
    )?);
    if bytes < LONG {
        for (blocks, buffers, mebibytes) in [(8, 3, 32), (32, 2, 64), (32, 3, 64)] {
            let name = format!("raw-staged-{blocks}x{buffers}x{mebibytes}");
            let method =
                format!("raw copies staged on the device, {blocks} blocks, {buffers} x {mebibytes} MiB");
            let launches = Launches { blocks, scratch: Some((buffers, fixture.bytes(mebibytes << 20))) };
            ways.push(Way::new(&name, &method, [false; 2], listed(launches))?);
        }
    }
    ways.push(Way::new("copy-blocks", "copy_blocks", [true, false], blocks(false))?);
    ways.push(Way::new("exclusive", "copy_blocks, exclusive()", [false, true], blocks(true))?);
    ways.iter_mut().enumerate().for_each(|(index, way)| way.index = index);
    Ok(ways)
}

/// Copies both directions at once, each on a thread of its own, its lists by turns for so long and at least twice. Returns GB/s up and
/// down together.
fn both(
    fixture: &Fixture<'_>,
    copiers: &mut [Box<dyn Copier + '_>; 2],
    moved: f64,
    time: Duration,
) -> Result<f64> {
    let gate = Barrier::new(copiers.len());
    let one = |copier: &mut dyn Copier| -> Result<f64> {
        let bound = fixture.context().and_then(|context| Ok(context.enter()?));
        gate.wait();
        let _bound = bound?;
        let begun = Instant::now();
        copier.submit(0)?;
        let mut copied = 0;
        while copied == 0 || begun.elapsed() < time {
            copier.submit((copied + 1) % 2)?;
            copier.wait(copied % 2)?;
            copied += 1;
        }
        copier.wait(copied % 2)?;
        Ok((copied + 1) as f64 * moved / 2.0 / begun.elapsed().as_secs_f64() / 1e9)
    };
    let rates: Vec<Result<f64>> = thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            copiers.iter_mut().map(|copier| scope.spawn(move || one(&mut **copier))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    rates.into_iter().sum()
}

/// The rows of one way.
fn rows_of_way(
    fixture: &Fixture<'_>,
    way: &Way<'_>,
    (bytes, verified): (usize, bool),
    goals: &Goals,
    load: &Load,
) -> Vec<Row> {
    let (is_simulated, group) = (fixture.is_simulated(), fixture.group);
    let what = |where_: &str| format!("{group}: blocks of {bytes} bytes up and down at once, {where_}");
    let [busy_goal, idle_goal] = way.goals;
    let (busy_goal, load) = (busy_goal && load.is_gemm(), load.name());
    let beside = format!("beside {load}");
    let rate = |id: &str, where_: &str, values: &[f64], goal: Option<f64>| {
        let id = format!("{group}/{bytes}/{id}/{}", way.name);
        Row::new(id, what(where_), &way.method, bytes as u64, "GB/s", Summary::of(values))
            .obtained(is_simulated, verified)
            .with_goal(goal.map(Goal::AtLeast))
    };
    let [busy, idle] = &way.rates;
    let slowdown = fixture
        .row(
            &format!("{bytes}/slowdown/{}", way.name),
            &format!("time of {load} over alone, beside blocks of {bytes} bytes"),
            &way.method,
            "x",
            Summary::of(&way.slowdowns),
        )
        .with_goal(Some(Goal::AtMost(goals.slowdown)).filter(|_| busy_goal));
    vec![
        rate("busy", &beside, busy, Some(goals.rate).filter(|_| busy_goal)),
        slowdown,
        rate("idle", "of an idle device", idle, Some(goals.alone).filter(|_| idle_goal)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver(PARTS);
    }
}
