//! `transload bench`: a small grid of copies through the manager; the full grid is in `transload-benches`.

use std::time::Instant;

use serde::Serialize;
use transload::{DeviceId, DeviceInfo, MemoryKind, Place, RawBuffer, Runtime, TransferMethod};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    output, text,
};

const QUICK: &[usize] = &[4 << 10, 1 << 20, 16 << 20];
const FULL: &[usize] = &[4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];

#[derive(Serialize)]
struct BenchResult {
    /// How the times were taken.
    clock: &'static str,
    repetitions: usize,
    rows: Vec<Row>,
    /// Sizes skipped for lack of memory, by device.
    left_out: Vec<String>,
    absent: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    from: Place,
    to: Place,
    bytes: usize,
    method: TransferMethod,
    /// 10th, 50th and 90th percentile of the rate, in bytes per second.
    p10: f64,
    p50: f64,
    p90: f64,
    verified: bool,
    simulated: bool,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Bench) -> Result<String, Failure> {
    let (sizes, repetitions) = if wanted.quick { (QUICK, 10) } else { (FULL, 30) };
    let runtime = &invocation.runtime;
    let mut result = BenchResult {
        clock: "host wall clock from submission to completion",
        repetitions,
        rows: Vec::new(),
        left_out: Vec::new(),
        absent: runtime.absent().iter().map(|(family, reason)| format!("{family}: {reason}")).collect(),
    };
    invocation.drain_after(measure(runtime, sizes, repetitions, &mut result))?;
    if result.rows.is_empty() {
        let text = format!("nothing was measured; too little memory for {}", result.left_out.join(", "));
        return Err(Failure::new(Exit::Memory, text));
    }
    invocation.render("bench", &result, || result.human())
}

fn measure(
    runtime: &Runtime,
    sizes: &[usize],
    repetitions: usize,
    result: &mut BenchResult,
) -> Result<(), Failure> {
    let (host, others): (Vec<_>, Vec<_>) = runtime.devices().into_iter().partition(|info| info.id.is_cpu());
    for device in if others.is_empty() { host } else { others } {
        let free =
            runtime.manager().backend(device.id)?.memory_info(device.id).map_or(u64::MAX, |it| it.free);
        for &bytes in sizes {
            if bytes as u64 > free / 2 {
                result.left_out.push(format!(
                    "{} of {free} free bytes on {}",
                    text::bytes(bytes as u64),
                    device.id
                ));
                continue;
            }
            for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
                if device.kinds.contains(&MemoryKind::Pinned) || kind == MemoryKind::Pageable {
                    grid_point(runtime, &device, kind, bytes, repetitions, &mut result.rows)?;
                }
            }
        }
    }
    Ok(())
}

/// Measures one kind of host memory and one size in both directions; within the host, in one.
fn grid_point(
    runtime: &Runtime,
    device: &DeviceInfo,
    kind: MemoryKind,
    bytes: usize,
    repetitions: usize,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    let manager = runtime.manager();
    let maker = if kind == MemoryKind::Pinned { device.id } else { DeviceId::Cpu };
    let host = manager.allocate_for(maker, kind, bytes)?;
    let near = if device.id.is_cpu() { MemoryKind::Pageable } else { MemoryKind::Device };
    let there = manager.allocate(device.id, near, bytes)?;
    let plain = |byte: Option<u8>| -> Result<RawBuffer, Failure> {
        let buffer = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?;
        for (index, target) in buffer.write()?.iter_mut().enumerate() {
            *target = byte.unwrap_or((index * 31 + index / 251) as u8);
        }
        Ok(buffer)
    };
    let (pattern, other) = (plain(None)?, plain(Some(0xA5))?);
    rows.push(row(runtime, (&host, &there), (&pattern, &other), device.simulated, repetitions)?);
    if !device.id.is_cpu() {
        rows.push(row(runtime, (&there, &host), (&pattern, &other), device.simulated, repetitions)?);
    }
    Ok(())
}

/// Times the copies. Overwrites the destination before the last one, and compares every byte after it.
fn row(
    runtime: &Runtime,
    (src, dst): (&RawBuffer, &RawBuffer),
    (pattern, other): (&RawBuffer, &RawBuffer),
    simulated: bool,
    repetitions: usize,
) -> Result<Row, Failure> {
    let manager = runtime.manager();
    manager.copy(pattern, src).wait()?;
    // Not timed: the first use of a path includes one-time costs.
    let mut method = manager.copy(src, dst).wait()?.method;
    let mut rates = Vec::with_capacity(repetitions);
    for repetition in 1..=repetitions {
        if repetition == repetitions {
            manager.copy(other, dst).wait()?;
        }
        let begun = Instant::now();
        method = manager.copy(src, dst).wait()?.method;
        rates.push(src.len() as f64 / begun.elapsed().as_secs_f64().max(1e-9));
    }
    let back = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, dst.len())?;
    manager.copy(dst, &back).wait()?;
    if *back.read()? != *pattern.read()? {
        let text =
            format!("verification failed: {} bytes {} → {} differ", src.len(), src.place(), dst.place());
        return Err(Failure::new(Exit::Differs, text));
    }
    rates.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let index = rates.len().saturating_sub(1) * percent / 100;
        rates.get(index).copied().unwrap_or(0.0)
    };
    Ok(Row {
        from: src.place(),
        to: dst.place(),
        bytes: src.len(),
        method,
        p10: at(10),
        p50: at(50),
        p90: at(90),
        verified: true,
        simulated,
    })
}

impl BenchResult {
    fn human(&self) -> String {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                let compared = if row.simulated { "verified, simulated" } else { "verified" };
                let [p10, p50, p90] = [row.p10, row.p50, row.p90].map(text::rate);
                let [from, to] = [row.from, row.to].map(|place| place.to_string());
                let (method, compared) = (row.method.to_string(), compared.to_owned());
                [from, to, method, compared, text::bytes(row.bytes as u64), p10, p50, p90]
            })
            .collect();
        let headings = ["FROM", "TO", "METHOD", "BYTES COMPARED", "SIZE", "P10", "P50", "P90"];
        let mut text = output::table(headings, 4, &rows);
        text += &format!("\n{} repetitions each; {}\n", self.repetitions, self.clock);
        for left_out in &self.left_out {
            text += &format!("left out: {left_out}\n");
        }
        for absent in &self.absent {
            text += &format!("no {absent}\n");
        }
        text
    }
}
