//! Stream-ordered allocation and memory pools.

use super::{
    Handle, Pointer, Scope, count_call, device_of, lock_driver, memory::insert_device_allocation,
    on_current_stream, on_device,
};
use crate::{
    code::{self, CuResult},
    memory::{Entry, Kind, Life},
    op::Work,
    scheduler,
    state::{Device, Guard, Pool, State, charged_bytes},
};

fn find(state: &State, pool: Handle) -> CuResult<u64> {
    let pool = pool.addr() as u64;
    state.pools.get(&pool).filter(|found| !found.destroyed).map(|_| pool).ok_or(code::INVALID_VALUE)
}

fn allocate(
    state: &mut Guard,
    name: &'static str,
    scope: Scope,
    pointer: Pointer<u64>,
    bytes: usize,
    pool: u64,
    stream: u64,
) -> CuResult {
    let device = state.pool(pool)?.device;
    if !state.device(device).options.pools {
        return Err(code::NOT_SUPPORTED);
    }
    if pointer.is_null() || bytes == 0 {
        return Err(code::INVALID_VALUE);
    }
    if reserve(state, pool, bytes).is_err() {
        // Pending frees and memory cached in idle pools may make room.
        let contexts: Vec<u64> = state
            .contexts
            .iter()
            .filter(|(_, context)| context.device == device)
            .map(|(id, _)| *id)
            .collect();
        for context in contexts {
            scheduler::synchronize_context(state, context);
        }
        trim_to_thresholds(state, device);
        reserve(state, pool, bytes)?;
    }
    let entry = Scope { device, ..scope }.entry(bytes, Kind::Pool(pool));
    let base = insert_device_allocation(state, Entry { life: Life::Pending, ..entry })?;
    let id = state.memory.at(base).map_or(0, |found| found.id);
    scheduler::enqueue(state, stream, name, Work::Allocate { base, id, bytes });
    pointer.set(base)
}

/// Takes memory from a pool, growing the pool if necessary.
fn reserve(state: &mut State, pool: u64, bytes: usize) -> CuResult {
    let State { pools, devices, .. } = state;
    let pool = pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
    let device = devices.get_mut(pool.device as usize).ok_or(code::INVALID_DEVICE)?;
    let total = device.options.total_memory as u64;
    if bytes as u64 > total {
        return Err(code::OUT_OF_MEMORY);
    }
    let used = pool.used + charged_bytes(bytes);
    let more = used.saturating_sub(pool.reserved);
    if device.used + more > total {
        return Err(code::OUT_OF_MEMORY);
    }
    device.used += more;
    pool.reserved += more;
    pool.reserved_high = pool.reserved_high.max(pool.reserved);
    pool.used = used;
    pool.used_high = pool.used_high.max(used);
    Ok(())
}

/// Trims the pools of a device to their release thresholds, as a synchronisation does.
pub(crate) fn trim_to_thresholds(state: &mut State, device: u32) {
    let State { pools, devices, .. } = state;
    pools.retain(|_, pool| {
        if pool.device == device {
            let keep = if pool.destroyed { 0 } else { pool.threshold };
            trim(pool, devices, keep);
        }
        !(pool.destroyed && pool.used == 0)
    });
}

fn trim(pool: &mut Pool, devices: &mut [Device], keep: u64) {
    let target = pool.used.max(keep).min(pool.reserved);
    let back = pool.reserved - target;
    pool.reserved = target;
    if let Some(device) = devices.get_mut(pool.device as usize) {
        device.used = device.used.saturating_sub(back);
    }
}

/// The start of `CUmemPoolProps`; the rest is reserved.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    allocation_type: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    security: usize,
    rest: [u8; 64],
}

/// Starts a call on a pool.
fn on_pool(name: &str, pool: Handle) -> CuResult<(Guard, u64)> {
    let mut state = lock_driver()?;
    let pool = find(&state, pool)?;
    let device = state.pool(pool)?.device;
    count_call(&mut state, name, device)?;
    Ok((state, pool))
}

/// `CUmemAccessDesc`. Flags: 0 no access, 1 read, 3 read and write.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessDescription {
    location_type: u32,
    location_id: i32,
    flags: u32,
}

driver! {
    fn cuMemAllocAsync(pointer: Pointer<u64>, bytes: usize, stream: Handle) {
        let (mut state, scope, stream) = on_current_stream(NAME, stream)?;
        let device = state.stream(stream)?.device;
        let pool = state.device(device).default_pool;
        allocate(&mut state, NAME, scope, pointer, bytes, pool, stream)
    }

    fn cuMemAllocFromPoolAsync(pointer: Pointer<u64>, bytes: usize, pool: Handle, stream: Handle) {
        let (mut state, scope, stream) = on_current_stream(NAME, stream)?;
        let pool = find(&state, pool)?;
        allocate(&mut state, NAME, scope, pointer, bytes, pool, stream)
    }

    fn cuMemFreeAsync(pointer: u64, stream: Handle) {
        let (mut state, _, stream) = on_current_stream(NAME, stream)?;
        let allocation = state.memory.at_mut(pointer).ok_or(code::INVALID_VALUE)?;
        if !matches!(allocation.kind, Kind::Pool(_)) {
            return Err(code::INVALID_VALUE);
        }
        allocation.life = match allocation.life {
            Life::Pending => Life::FreeQueued { reached: false },
            Life::Live => Life::FreeQueued { reached: true },
            Life::FreeQueued { .. } => return Err(code::INVALID_VALUE),
        };
        let (id, bytes) = (allocation.id, allocation.bytes);
        let work = Work::Free { base: pointer, id, bytes };
        scheduler::enqueue(&mut state, stream, NAME, work);
        Ok(())
    }

    fn cuMemPoolCreate(pool: Pointer<usize>, properties: Pointer<Properties>) {
        let mut state = lock_driver()?;
        let wanted = properties.get()?;
        // Pinned (the only allocation type), on a device.
        if pool.is_null() || wanted.allocation_type != 1 || wanted.location_type != 1 {
            return Err(code::INVALID_VALUE);
        }
        let device = device_of(&state, wanted.location_id)?;
        count_call(&mut state, NAME, device)?;
        if !state.device(device).options.pools || wanted.handle_types != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let handle = state.new_handle();
        state.pools.insert(handle, Pool::new(device, true));
        pool.set(handle as usize)
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let (mut state, pool) = on_pool(NAME, pool)?;
        let State { pools, devices, .. } = &mut *state;
        let found = pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        if !found.created {
            return Err(code::INVALID_VALUE);
        }
        // Live allocations keep the pool alive.
        found.destroyed = true;
        if found.used == 0 {
            trim(found, devices, 0);
            pools.remove(&pool);
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle, keep: usize) {
        let (mut state, pool) = on_pool(NAME, pool)?;
        let State { pools, devices, .. } = &mut *state;
        if let Some(pool) = pools.get_mut(&pool) {
            trim(pool, devices, keep as u64);
        }
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: Pointer<u64>) {
        let (mut state, pool) = on_pool(NAME, pool)?;
        let found = state.pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        match attribute {
            1..=3 => found.reuse[attribute as usize - 1] = value.cast::<i32>().get()?,
            4 => found.threshold = value.get()?,
            // High-water marks can only be reset.
            6 if value.get()? == 0 => found.reserved_high = found.reserved,
            8 if value.get()? == 0 => found.used_high = found.used,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: Pointer<u64>) {
        let (state, pool) = on_pool(NAME, pool)?;
        let found = state.pool(pool)?;
        match attribute {
            1..=3 => value.cast::<i32>().set(found.reuse[attribute as usize - 1]),
            4 => value.set(found.threshold),
            5 => value.set(found.reserved),
            6 => value.set(found.reserved_high),
            7 => value.set(found.used),
            8 => value.set(found.used_high),
            _ => Err(code::INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(pool: Handle, map: Pointer<AccessDescription>, count: usize) {
        let (mut state, pool) = on_pool(NAME, pool)?;
        let owner = state.pool(pool)?.device;
        for index in 0..count {
            let wanted = map.get_at(index)?;
            let device = device_of(&state, wanted.location_id)?;
            let reaches = device == owner || state.are_peers(device, owner);
            if wanted.location_type != 1 || !matches!(wanted.flags, 0 | 1 | 3) {
                return Err(code::INVALID_VALUE);
            }
            // The owner's own access cannot be revoked.
            if !reaches || (device == owner && wanted.flags != 3) {
                return Err(if reaches { code::INVALID_VALUE } else { code::INVALID_DEVICE });
            }
            if let Some(found) = state.pools.get_mut(&pool) {
                found.access.insert(device, wanted.flags);
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Pointer<u32>, pool: Handle, location: Pointer<[u32; 2]>) {
        let (state, pool) = on_pool(NAME, pool)?;
        let [1, device] = location.get()? else { return Err(code::INVALID_VALUE) };
        let device = device_of(&state, device.cast_signed())?;
        let found = state.pool(pool)?;
        let own = if device == found.device { 3 } else { 0 };
        flags.set(found.access.get(&device).copied().unwrap_or(own))
    }

    /// Tells of mappings that the caller made, which this driver does not have; of other memory it says that there is no access, as driver 580 does.
    fn cuMemGetAccess(flags: Pointer<u64>, location: Pointer<[u32; 2]>, pointer: u64) {
        let _unused = (location, pointer);
        flags.set(0)
    }

    /// Of mappings that the caller made.
    fn cuMemRetainAllocationHandle(handle: Pointer<u64>, pointer: u64) {
        let _unused = (handle, pointer);
        Err(code::INVALID_VALUE)
    }

    fn cuDeviceGetDefaultMemPool(pool: Pointer<usize>, device: i32) {
        let (state, device) = on_device(NAME, device)?;
        let device = state.device(device);
        if !device.options.pools {
            return Err(code::NOT_SUPPORTED);
        }
        pool.set(device.default_pool as usize)
    }
}
