//! Managed memory: allocation, prefetch, advice and range queries.

use std::ops::Range;

use super::{Handle, Pointer, device_of, on_current, on_current_stream};
use crate::{
    advice::{MemLocation, accessors, common_location},
    code::{self, CuResult},
    device::Residency,
    install,
    memory::{Backing, Kind, Managed},
    op::Work,
    scheduler,
    state::State,
};

/// The first CUDA version with `CUmemLocation` attributes.
const LOCATION_VERSION: i32 = 12_020;
/// Number of NUMA nodes of the host.
const NUMA_NODES: i32 = 1;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CuMemLocation {
    kind: u32,
    id: i32,
}

impl CuMemLocation {
    fn resolve(self, state: &State) -> CuResult<MemLocation> {
        match self.kind {
            1 => device_of(state, self.id).map(MemLocation::Device),
            2 => Ok(MemLocation::Host),
            3 if (0..NUMA_NODES).contains(&self.id) => Ok(MemLocation::Node(self.id.cast_unsigned())),
            // The calling thread's node.
            4 => Ok(MemLocation::Node(0)),
            _ => Err(code::INVALID_VALUE),
        }
    }
}

/// Returns the location of an `int`: a device ordinal, or `CU_DEVICE_CPU`.
fn legacy_location(state: &State, location: i32) -> CuResult<MemLocation> {
    if location == -1 { Ok(MemLocation::Host) } else { device_of(state, location).map(MemLocation::Device) }
}

/// Refuses a device without concurrent managed access.
fn admit(state: &State, location: MemLocation) -> CuResult<MemLocation> {
    match location {
        MemLocation::Device(device) if !state.device(device).options.concurrent_managed => {
            Err(code::INVALID_DEVICE)
        }
        other => Ok(other),
    }
}

/// Returns the managed allocation that contains a range, its length, and the range's offsets in it.
fn managed(state: &mut State, address: u64, bytes: usize) -> CuResult<(&mut Managed, usize, Range<u64>)> {
    let found = state.memory.find_mut(address).ok_or(code::INVALID_VALUE)?;
    let end = address.checked_add(bytes as u64).filter(|end| bytes > 0 && *end <= found.end());
    let range = address - found.base..end.ok_or(code::INVALID_VALUE)? - found.base;
    match &mut found.kind {
        Kind::Managed(managed) => Ok((managed, found.bytes, range)),
        _ => Err(code::INVALID_VALUE),
    }
}

fn prefetch(
    name: &'static str,
    address: u64,
    bytes: usize,
    stream: Handle,
    to: impl FnOnce(&State) -> CuResult<MemLocation>,
) -> CuResult {
    let (mut state, _, stream) = on_current_stream(name, stream)?;
    let to = to(&state)?;
    let location = admit(&state, to)?;
    managed(&mut state, address, bytes)?;
    let owner = state.stream(stream)?.device;
    admit(&state, MemLocation::Device(owner))?;
    let (found, whole, range) = managed(&mut state, address, bytes)?;
    for page in found.advice.pages_mut(whole, range) {
        page.last_prefetch = location;
    }
    let to = match location {
        MemLocation::Device(ordinal) => Residency::Device(ordinal),
        _ => Residency::Host,
    };
    scheduler::enqueue(&mut state, stream, name, Work::Prefetch { address, bytes, to });
    Ok(())
}

fn advise(
    name: &str,
    address: u64,
    bytes: usize,
    advice: u32,
    location: impl FnOnce(&State) -> CuResult<MemLocation>,
) -> CuResult {
    let (mut state, _) = on_current(name)?;
    // These kinds of advice ignore the location.
    let location = match advice {
        1 | 2 | 4 => MemLocation::None,
        3 | 5 | 6 => {
            let asked = location(&state)?;
            admit(&state, asked)?
        }
        _ => return Err(code::INVALID_VALUE),
    };
    let (found, whole, range) = managed(&mut state, address, bytes)?;
    for page in found.advice.pages_mut(whole, range) {
        match advice {
            1 | 2 => page.read_mostly = advice == 1,
            3 | 4 => page.preferred = location,
            5 if page.accessed_by.contains(&location) => {}
            5 => page.accessed_by.push(location),
            _ => page.accessed_by.retain(|other| *other != location),
        }
    }
    Ok(())
}

driver! {
    fn cuMemAllocManaged(pointer: Pointer<u64>, bytes: usize, flags: u32) {
        let (mut state, scope) = on_current(NAME)?;
        // Attached globally, or to the host.
        if pointer.is_null() || bytes == 0 || !matches!(flags, 1 | 2) {
            return Err(code::INVALID_VALUE);
        }
        if !state.device(scope.device).options.managed {
            return Err(code::NOT_SUPPORTED);
        }
        let backing = Backing::new(bytes)?;
        let kind = Kind::Managed(Managed::new(bytes));
        pointer.set(state.memory.insert(None, backing, scope.entry(bytes, kind)))
    }

    fn cuMemPrefetchAsync(pointer: u64, bytes: usize, device: i32, stream: Handle) {
        prefetch(NAME, pointer, bytes, stream, |state| legacy_location(state, device))
    }

    fn cuMemPrefetchAsync_v2(pointer: u64, bytes: usize, location: CuMemLocation, flags: u32, stream: Handle) {
        prefetch(NAME, pointer, bytes, stream, |state| match flags {
            0 => location.resolve(state),
            _ => Err(code::INVALID_VALUE),
        })
    }

    fn cuMemAdvise(pointer: u64, bytes: usize, advice: u32, device: i32) {
        advise(NAME, pointer, bytes, advice, |state| legacy_location(state, device))
    }

    fn cuMemAdvise_v2(pointer: u64, bytes: usize, advice: u32, location: CuMemLocation) {
        advise(NAME, pointer, bytes, advice, |state| match (advice, location.kind) {
            // An accessor is a device or the host, not a NUMA node.
            (5 | 6, 3 | 4) => Err(code::INVALID_VALUE),
            _ => location.resolve(state),
        })
    }

    fn cuMemRangeGetAttribute(data: Pointer<i32>, size: usize, attribute: u32, pointer: u64, bytes: usize) {
        let (mut state, _) = on_current(NAME)?;
        let slots = size / 4;
        if slots == 0 || !size.is_multiple_of(4) || (attribute != 3 && slots != 1) {
            return Err(code::INVALID_VALUE);
        }
        if attribute > 4 && install::options().version < LOCATION_VERSION {
            return Err(code::INVALID_VALUE);
        }
        let (found, _, range) = managed(&mut state, pointer, bytes)?;
        let pages = found.advice.pages(range);
        let preferred = common_location(pages, |page| page.preferred);
        let prefetched = common_location(pages, |page| page.last_prefetch);
        match attribute {
            1 => data.set(i32::from(!pages.is_empty() && pages.iter().all(|page| page.read_mostly))),
            2 => data.set(preferred.legacy_id()),
            3 => {
                let mut everywhere = accessors(pages).into_iter();
                (0..slots)
                    .try_for_each(|slot| data.set_at(slot, everywhere.next().unwrap_or_default().legacy_id()))
            }
            4 => data.set(prefetched.legacy_id()),
            5 => data.set(preferred.kind()),
            6 => data.set(preferred.number()),
            7 => data.set(prefetched.kind()),
            8 => data.set(prefetched.number()),
            _ => Err(code::INVALID_VALUE),
        }
    }
}
