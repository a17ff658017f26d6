//! Executes operations.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{
    code,
    device::Residency,
    host_kernel::KernelMemory,
    memory::{Allocation, Kind, Life, Memory},
    migrations::Cause,
    op::{Copy, Fill, HostCall, KernelRun, Op, Operand, Work},
    rng::Rng,
    state::State,
};

/// Copies up to this size, in bytes, run in one step.
const WHOLE: usize = 256 << 10;

/// Progress of an operation after a step.
pub(crate) enum Progress {
    Done,
    /// Not complete; other work may run in between.
    Partly,
    /// Failed with an asynchronous error.
    Failed(u32),
    /// A host function must be called, without the lock.
    Call(HostCall),
}

pub(crate) fn execute(state: &mut State, stream: u64, op: &mut Op) -> Progress {
    let Some(own) = state.streams.get(&stream) else { return Progress::Done };
    let (device, context) = (own.device, own.context);
    let result = match &mut op.work {
        Work::Wait | Work::Record { .. } => Ok(()),
        Work::Host(call) => return Progress::Call(*call),
        Work::Word { address, .. } => state.memory.touch(*address, 4).map(|_| ()),
        Work::WriteWord { address, value } => state.memory.touch(*address, 4).map(|word| {
            // SAFETY: the four bytes are live, and aligned, as was checked when the operation was enqueued.
            let word = unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) };
            word.store(*value, Ordering::Release);
            if let Some(clock) = &op.clock {
                state.written_words.insert(*address, clock.clone());
            }
        }),
        Work::Copies(copies) => {
            let State { memory, devices, .. } = state;
            let Some(device) = devices.get_mut(device as usize) else { return Progress::Done };
            match copy_some(memory, copies, &mut device.rng) {
                Ok(false) => return Progress::Partly,
                Ok(true) => Ok(()),
                Err(code) => Err(code),
            }
        }
        Work::Fill(fill) => fill_now(&state.memory, fill),
        Work::Kernel(run) => run_kernel(state, device, context, run),
        Work::Allocate { base, id, .. } => {
            if let Some(allocation) = state.memory.at_mut(*base).filter(|found| found.id == *id) {
                allocation.life = match allocation.life {
                    Life::FreeQueued { .. } => Life::FreeQueued { reached: true },
                    Life::Pending | Life::Live => Life::Live,
                };
                if let Some(backing) = &allocation.backing {
                    backing.fill_fresh();
                }
            }
            Ok(())
        }
        Work::Free { base, id, .. } => {
            if state.memory.at(*base).is_some_and(|found| found.id == *id) {
                state.release(*base);
            }
            Ok(())
        }
        Work::Prefetch { address, bytes, to } => {
            let (address, bytes, to) = (*address, *bytes, *to);
            if let Some(allocation) = state.memory.find_mut(address) {
                let offset = address - allocation.base;
                if let Kind::Managed(managed) = &mut allocation.kind {
                    managed.migrate(allocation.base, offset, bytes as u64, to, Cause::Prefetch);
                }
            }
            Ok(())
        }
    };
    match result {
        Ok(()) => Progress::Done,
        Err(code) => Progress::Failed(code),
    }
}

/// Copies some of the bytes. Returns whether all copies are complete.
fn copy_some(memory: &Memory, copies: &mut Vec<Copy>, rng: &mut Rng) -> Result<bool, u32> {
    let drawn = rng.below(copies.len());
    let Some(copy) = copies.get_mut(drawn) else { return Ok(true) };
    let linear = copy.height == 1;
    let total = if linear { copy.width } else { copy.height };
    let left = total.saturating_sub(copy.done);
    let piece = if copy.bytes() <= WHOLE {
        left
    } else {
        // A piece is between a sixteenth and about half of the copy, and starts at any byte.
        (total / 16 + rng.below(total / 2 + 1)).clamp(1, left.max(1)).min(left)
    };
    if linear {
        move_row(memory, copy, (copy.done, copy.done), piece)?;
    } else {
        for row in copy.done..copy.done + piece {
            move_row(memory, copy, (row * copy.from_pitch, row * copy.to_pitch), copy.width)?;
        }
    }
    if copy.corrupts && copy.done == 0 {
        flip_a_byte(memory, &copy.to)?;
    }
    copy.done += piece;
    if copy.done >= total {
        copies.swap_remove(drawn);
    }
    Ok(copies.is_empty())
}

/// Inverts the first byte of a copy's destination.
fn flip_a_byte(memory: &Memory, to: &Operand) -> Result<(), u32> {
    let Operand::Address(address) = to else { return Ok(()) };
    let byte = memory.touch(*address, 1)?.as_ptr();
    // SAFETY: the byte was just found live, and the copy that runs now may write it.
    unsafe { byte.write(!byte.read()) };
    Ok(())
}

fn move_row(memory: &Memory, copy: &Copy, (from, to): (usize, usize), bytes: usize) -> Result<(), u32> {
    if bytes == 0 {
        return Ok(());
    }
    let source: *const u8 = match &copy.from {
        Operand::Address(address) => memory.touch(address + from as u64, bytes)?.as_ptr(),
        Operand::Pageable(address) => std::ptr::with_exposed_provenance(address + from),
        Operand::Staged(held) => held.get(from..from + bytes).ok_or(code::UNKNOWN)?.as_ptr(),
    };
    let target: *mut u8 = match &copy.to {
        Operand::Address(address) => memory.touch(address + to as u64, bytes)?.as_ptr(),
        Operand::Pageable(address) => std::ptr::with_exposed_provenance_mut(address + to),
        Operand::Staged(_) => return Err(code::UNKNOWN),
    };
    // SAFETY: known ranges were just found live; ordinary memory is the caller's, who promised it for the call, and the
    // call does not return before the bytes moved. `copy` allows overlap.
    unsafe { std::ptr::copy(source, target, bytes) };
    Ok(())
}

fn fill_now(memory: &Memory, fill: &Fill) -> Result<(), u32> {
    let bytes = fill.width * fill.element;
    let start = memory.touch(fill.address, bytes)?.as_ptr();
    let mut done = fill.element.min(fill.pattern.len());
    // SAFETY: the range of `bytes`, at least one element, was just found live; the pattern is not part of it.
    unsafe { std::ptr::copy_nonoverlapping(fill.pattern.as_ptr(), start, done) };
    while done < bytes {
        let more = done.min(bytes - done);
        // SAFETY: `done + more` lies within `bytes`, and the halves do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(start, start.add(done), more) };
        done += more;
    }
    Ok(())
}

/// Returns whether kernels in a context of `device` may access an allocation: the device's own, host memory, or peer
/// memory with access enabled.
pub(crate) fn reaches(state: &State, device: u32, context: u64, allocation: &Allocation) -> bool {
    if !allocation.is_device() || allocation.device == device {
        return true;
    }
    match allocation.kind {
        Kind::Pool(pool) => {
            state.pools.get(&pool).is_some_and(|pool| pool.access.get(&device).is_some_and(|to| *to != 0))
        }
        _ => state.contexts.get(&context).is_some_and(|own| own.peers.contains(&allocation.device)),
    }
}

fn run_kernel(state: &mut State, device: u32, context: u64, run: &KernelRun) -> Result<(), u32> {
    let mut declared = run.accesses(&state.memory);
    declared.sort_by_key(|access| access.address);
    let options = &state.device(device).options;
    let pageable = options.pageable_access;
    // Without concurrent access, the driver migrates everything before the launch and nothing faults.
    let cause = if options.concurrent_managed { Cause::Access } else { Cause::Prefetch };
    for access in &declared {
        let Some(allocation) = state.memory.find(access.address) else { continue };
        if !reaches(state, device, context, allocation) {
            return Err(code::ILLEGAL_ADDRESS);
        }
        let (base, address, bytes) = (allocation.base, access.address, access.bytes);
        if let Some(allocation) = state.memory.at_mut(base)
            && let Kind::Managed(managed) = &mut allocation.kind
        {
            managed.migrate(base, address - base, bytes as u64, Residency::Device(device), cause);
        }
    }
    let mut view = KernelMemory { memory: &state.memory, declared, pageable };
    (run.host_kernel.run)(&run.launch, &mut view).map_err(|_| code::ILLEGAL_ADDRESS)
}
