//! Device memory.

use std::ptr::NonNull;

use super::{Pointer, context::wait_to_free, on_current};
use crate::{
    code::{self, CuResult},
    memory::{Backing, Entry, Kind, Life},
    state::{State, charged_bytes},
};

/// Returns the device memory that an allocation of `bytes` would occupy; fails if there is not enough.
pub(crate) fn charge(state: &State, device: u32, bytes: usize) -> CuResult<u64> {
    let device = state.device(device);
    let total = device.options.total_memory as u64;
    let fits = (bytes as u64) <= total && device.used + charged_bytes(bytes) <= total;
    if fits { Ok(charged_bytes(bytes)) } else { Err(code::OUT_OF_MEMORY) }
}

/// Allocates addresses and backing memory, and inserts the allocation.
pub(crate) fn insert_device_allocation(state: &mut State, entry: Entry) -> CuResult<u64> {
    let State { devices, memory, .. } = state;
    let device = devices.get_mut(entry.device as usize).ok_or(code::INVALID_DEVICE)?;
    let backing = Backing::new(entry.bytes)?;
    let base =
        device.space.take(entry.bytes as u64, |from| memory.next_taken(from)).ok_or(code::OUT_OF_MEMORY)?;
    Ok(memory.insert(Some(base), backing, entry))
}

/// Gives memory of another API an address on the device.
pub(crate) fn insert_external(state: &mut State, start: NonNull<u8>, entry: Entry) -> CuResult<u64> {
    let State { devices, memory, .. } = state;
    let device = devices.get_mut(entry.device as usize).ok_or(code::INVALID_DEVICE)?;
    let taken = device.space.take(entry.bytes as u64, |from| memory.next_taken(from));
    let base = taken.ok_or(code::OUT_OF_MEMORY)?;
    memory.insert_external(base, start, entry);
    Ok(base)
}

driver! {
    fn cuMemAlloc_v2(pointer: Pointer<u64>, bytes: usize) {
        let (mut state, scope) = on_current(NAME)?;
        if pointer.is_null() || bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let charge = charge(&state, scope.device, bytes)?;
        let base = insert_device_allocation(&mut state, scope.entry(bytes, Kind::Device))?;
        state.device_mut(scope.device).used += charge;
        pointer.set(base)
    }

    fn cuMemFree_v2(pointer: u64) {
        let (mut state, scope) = on_current(NAME)?;
        let allocation = state.memory.at(pointer).ok_or(code::INVALID_VALUE)?;
        match allocation.kind {
            Kind::Pinned { .. } | Kind::Registered { .. } => return Err(code::INVALID_VALUE),
            Kind::Device | Kind::Pool(_) | Kind::Managed(_) => {}
        }
        if matches!(allocation.life, Life::FreeQueued { .. }) {
            return Err(code::INVALID_VALUE);
        }
        let owner = allocation.device;
        let waited = wait_to_free(&mut state, scope.device, owner);
        state.release(pointer);
        waited
    }
}
