//! What the CPU backend promises, one module per promise.

// Clippy's allowance for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod at_once;
mod concurrency;
mod content;
mod elements;
mod errors;
mod failures;
mod gate;
mod host_end;
mod lifetime;
mod order;
mod profiling;
mod views;
mod waiting;

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, MemoryKind, QueueLease, RawBuffer, StreamPriority, WorkloadType};

fn backend(workers: usize, parallel_from: usize) -> Arc<CpuBackend> {
    CpuBackend::builder().workers(workers).parallel_from(parallel_from).build().unwrap()
}

fn lease(backend: &CpuBackend) -> QueueLease {
    lease_at(backend, StreamPriority::Normal)
}

fn lease_at(backend: &CpuBackend, priority: StreamPriority) -> QueueLease {
    backend.lease_queue(DeviceId::Cpu, priority, WorkloadType::Memory).unwrap()
}

fn allocate(backend: &CpuBackend, bytes: usize) -> RawBuffer {
    backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap()
}

/// Pseudo-random bytes: xorshift from a seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut noise = vec![0; bytes];
    for chunk in noise.chunks_mut(8) {
        let word = next().to_ne_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    noise
}
