//! Measures the overhead of a manager's call over the queue's own work: `cargo run --release --example overhead
//! [bytes]`.

use std::time::{Duration, Instant};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, Result, StreamPriority, Timing, WorkloadType, submit,
};
use transload_transfer::{CrossBackendTransferManager, Sampling, TransferOptions};

const ROUNDS: u32 = 2000;
const REPETITIONS: usize = 60;

fn timed(mut call: impl FnMut() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        call()?;
    }
    Ok(begun.elapsed() / ROUNDS)
}

fn main() -> Result<()> {
    let bytes: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4096);
    let backend = CpuBackend::new()?;
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory)?;
    let managers = [Sampling::Every(64), Sampling::Off, Sampling::Every(1)]
        .map(|sampling| CrossBackendTransferManager::builder().sampling(sampling).build());
    for manager in &managers {
        manager.register_backend(backend.clone())?;
    }
    let src = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes + 64)?;
    let dst = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes + 64)?;
    let (from, to) = (src.slice(64..)?, dst.slice(64..)?);
    let operation = Operation::Copy { src: &from, dst: &to };
    let options = TransferOptions::new();

    let mut times: [Vec<Duration>; 7] = Default::default();
    for _ in 0..REPETITIONS {
        let [sampled, unsampled, all] = &managers;
        let measured = [
            // SAFETY: the buffers have no other user, and live until the wait returns.
            timed(|| unsafe { queue.enqueue(&operation, &[], Timing::Off) }?.wait())?,
            timed(|| submit(&*queue, &operation, Timing::Off)?.wait())?,
            timed(|| {
                backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).map(drop)
            })?,
            timed(|| sampled.transfer_buffer(&src, &dst, 64, 64, bytes).wait().map(drop))?,
            timed(|| unsampled.transfer_buffer(&src, &dst, 64, 64, bytes).wait().map(drop))?,
            timed(|| all.transfer_buffer(&src, &dst, 64, 64, bytes).wait().map(drop))?,
            timed(|| sampled.plan(src.place(), dst.place(), bytes as u64, &options).map(drop))?,
        ];
        times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
    }
    let names = [
        "Queue::enqueue + wait",
        "core::submit + wait",
        "lease a queue and give it back",
        "transfer_buffer + wait, 1 in 64 measured",
        "transfer_buffer + wait, none measured",
        "transfer_buffer + wait, all measured",
        "plan",
    ];
    println!("{bytes} bytes, {REPETITIONS} repetitions of {ROUNDS}: p10 / p50 / p90");
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
        println!("{name:44} {:>8.0?} {:>8.0?} {:>8.0?}", at(10), at(50), at(90));
    }
    Ok(())
}
