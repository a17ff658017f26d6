//! Verifies peer copies: some IOMMU settings corrupt them silently.

use std::hash::{BuildHasher, Hasher, RandomState};

use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, RawBuffer, Result, StreamPriority, Timing, WorkloadType, submit,
};

/// Large enough to be copied like large transfers, and odd.
const BYTES: usize = (1 << 20) + 37;

/// Copies a random pattern from each device to the other and back to the host, and returns whether it arrived
/// unchanged.
///
/// # Errors
/// The backend's, if a copy failed.
pub(super) fn verify_copies(backend: &dyn Backend, a: DeviceId, b: DeviceId) -> Result<bool> {
    let allocate = |device, kind| backend.allocate(device, kind, BYTES);
    let sent = allocate(a, MemoryKind::Pinned)?;
    let came = allocate(b, MemoryKind::Pinned)?;
    let (on_a, on_b) = (allocate(a, MemoryKind::Device)?, allocate(b, MemoryKind::Device)?);
    for ((from, near), (to, far)) in [((a, &on_a), (b, &on_b)), ((b, &on_b), (a, &on_a))] {
        fill_at_random(&mut sent.write()?);
        // So that stale bytes never match: every byte differs.
        for (before, after) in came.write()?.iter_mut().zip(sent.read()?.iter()) {
            *before = !*after;
        }
        put(backend, from, Operation::Copy { src: &sent, dst: near })?;
        put(backend, to, Operation::Copy { src: &came, dst: far })?;
        put(backend, from, Operation::CopyPeer { src: near, dst: far })?;
        put(backend, to, Operation::Copy { src: far, dst: &came })?;
        if !same(&sent, &came)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn put(backend: &dyn Backend, device: DeviceId, operation: Operation<'_>) -> Result<()> {
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
    submit(&*queue, &operation, Timing::Off)?.wait()
}

fn same(a: &RawBuffer, b: &RawBuffer) -> Result<bool> {
    let (a, b) = (a.read()?, b.read()?);
    Ok(*a == *b)
}

fn fill_at_random(bytes: &mut [u8]) {
    // The standard library keys its hashers randomly.
    let mut state = RandomState::new().build_hasher().finish() | 1;
    for piece in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece.copy_from_slice(&state.to_ne_bytes()[..piece.len()]);
    }
}
