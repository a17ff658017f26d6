//! Pinned host memory: allocated and registered.

use std::{ffi::c_void, ptr::NonNull};

use super::{Pointer, context::wait_to_free, on_current};
use crate::{
    code,
    memory::{Backing, Kind},
};

driver! {
    fn cuMemHostAlloc(pointer: Pointer<*mut c_void>, bytes: usize, flags: u32) {
        /// Portable, device-mapped, write-combined.
        const KNOWN: u32 = 1 | 2 | 4;
        let (mut state, scope) = on_current(NAME)?;
        if pointer.is_null() || bytes == 0 || flags & !KNOWN != 0 {
            return Err(code::INVALID_VALUE);
        }
        let backing = Backing::new(bytes)?;
        let start = backing.start().as_ptr();
        // With unified addressing all of it is mapped and portable. Keep the requested flags for queries.
        state.memory.insert(None, backing, scope.entry(bytes, Kind::Pinned { flags }));
        pointer.set(start.cast())
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        let (mut state, scope) = on_current(NAME)?;
        let base = pointer.addr() as u64;
        let owner = state.memory.at(base).filter(|found| matches!(found.kind, Kind::Pinned { .. }));
        let owner = owner.map(|found| found.device).ok_or(code::INVALID_VALUE)?;
        let waited = wait_to_free(&mut state, scope.device, owner);
        state.release(base);
        waited
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) {
        /// Portable, device-mapped; I/O memory is not simulated.
        const KNOWN: u32 = 1 | 2;
        const READ_ONLY: u32 = 8;
        let (mut state, scope) = on_current(NAME)?;
        let start = NonNull::new(pointer.cast::<u8>()).ok_or(code::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let options = &state.device(scope.device).options;
        let known = if options.read_only_register { KNOWN | READ_ONLY } else { KNOWN };
        if !options.host_register || flags & !known != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let address = start.addr().get() as u64;
        // By bytes, not by pages: two ranges in one page can be registered separately.
        if state.memory.overlaps(address, bytes) {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.memory.insert_foreign(start, scope.entry(bytes, Kind::Registered { flags }));
        Ok(())
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        let (mut state, scope) = on_current(NAME)?;
        let base = pointer.addr() as u64;
        // Memory allocated by the driver, and an address inside a registration, give another error than unknown memory,
        // as reported for driver 590.
        let found = state.memory.find(base).ok_or(code::HOST_MEMORY_NOT_REGISTERED)?;
        if found.base != base || !matches!(found.kind, Kind::Registered { .. }) {
            return Err(code::INVALID_VALUE);
        }
        // CUDA does not document whether it waits. If it does not, pending work on the range fails with an illegal
        // address.
        let owner = found.device;
        let waits = state.device_mut(owner).rng.chance(75);
        let waited = if waits { wait_to_free(&mut state, scope.device, owner) } else { Ok(()) };
        state.release(base);
        waited
    }

    fn cuMemHostGetDevicePointer_v2(device: Pointer<u64>, pointer: *mut c_void, flags: u32) {
        let (state, _) = on_current(NAME)?;
        let address = pointer.addr() as u64;
        if flags != 0 || device.is_null() {
            return Err(code::INVALID_VALUE);
        }
        match state.memory.find(address).map(|found| &found.kind) {
            Some(Kind::Pinned { .. } | Kind::Registered { .. }) => device.set(address),
            _ => Err(code::INVALID_VALUE),
        }
    }

    fn cuMemHostGetFlags(flags: Pointer<u32>, pointer: *mut c_void) {
        let (state, _) = on_current(NAME)?;
        match state.memory.find(pointer.addr() as u64).map(|found| &found.kind) {
            // With unified addressing the memory is mapped even if not requested.
            Some(Kind::Pinned { flags: asked }) => flags.set(asked | 2),
            Some(Kind::Registered { flags: asked }) => flags.set(asked | 2),
            _ => Err(code::INVALID_VALUE),
        }
    }
}
