//! Managed memory: allocation, prefetch, advice, and what is known of a range.

use super::{Handle, Pointer, device_of, finish, on_current, on_current_stream};
use crate::{
    code::{self, Answer},
    memory::{Allocation, Block, Entry, HOST, Kind, Life, Managed, NO_PLACE},
    op::Work,
    scheduler,
    state::State,
};

/// `CUmemLocation` as newer drivers define it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: u32,
    id: i32,
}

impl Location {
    /// The place in the older encoding: a device's number, or -1 for the host.
    fn place(self) -> Answer<i32> {
        match self.kind {
            1 => Ok(self.id),
            // The host, one of its NUMA nodes, the current node.
            2..=4 => Ok(HOST),
            _ => Err(code::INVALID_VALUE),
        }
    }
}

pub(crate) extern "C" fn cuMemAllocManaged(pointer: Pointer<u64>, bytes: usize, flags: u32) -> u32 {
    finish(|| {
        let (mut state, scope) = on_current("cuMemAllocManaged")?;
        // Attached to all, or to the host.
        if pointer.is_null() || bytes == 0 || !matches!(flags, 1 | 2) {
            return Err(code::INVALID_VALUE);
        }
        if !state.device(scope.device).options.managed {
            return Err(code::NOT_SUPPORTED);
        }
        let block = Block::new(bytes)?;
        let kind = Kind::Managed(Managed::new(bytes));
        let entry = Entry { bytes, device: scope.device, context: scope.context, kind, life: Life::Live };
        pointer.set(state.memory.insert(None, block, entry))
    })
}

/// The managed allocation that a whole range lies in.
fn managed(state: &mut State, address: u64, bytes: usize) -> Answer<(&mut Managed, u64)> {
    let found = state.memory.find_mut(address).ok_or(code::INVALID_VALUE)?;
    let inside = address.checked_add(bytes as u64).is_some_and(|end| end <= found.end());
    if bytes == 0 || !inside {
        return Err(code::INVALID_VALUE);
    }
    let offset = address - found.base;
    match &mut found.kind {
        Kind::Managed(managed) => Ok((managed, offset)),
        _ => Err(code::INVALID_VALUE),
    }
}

pub(crate) extern "C" fn cuMemPrefetchAsync(pointer: u64, bytes: usize, device: i32, stream: Handle) -> u32 {
    finish(|| prefetch("cuMemPrefetchAsync", pointer, bytes, Ok(device), stream))
}

pub(crate) extern "C" fn cuMemPrefetchAsync_v2(
    pointer: u64,
    bytes: usize,
    location: Location,
    flags: u32,
    stream: Handle,
) -> u32 {
    finish(|| {
        let place = if flags == 0 { location.place() } else { Err(code::INVALID_VALUE) };
        prefetch("cuMemPrefetchAsync_v2", pointer, bytes, place, stream)
    })
}

fn prefetch(name: &'static str, pointer: u64, bytes: usize, place: Answer<i32>, stream: Handle) -> Answer {
    let (mut state, _, stream) = on_current_stream(name, stream)?;
    let place = place?;
    managed(&mut state, pointer, bytes)?;
    if place != HOST {
        let device = device_of(&state, place)?;
        if !state.device(device).options.concurrent_managed {
            return Err(code::INVALID_DEVICE);
        }
    }
    let owner = state.streams.get(&stream).map(|own| own.device).ok_or(code::INVALID_HANDLE)?;
    if !state.device(owner).options.concurrent_managed {
        return Err(code::INVALID_DEVICE);
    }
    let (found, offset) = managed(&mut state, pointer, bytes)?;
    let pages = found.pages_of(offset, bytes as u64);
    found.last_prefetch[pages].fill(place);
    scheduler::enqueue(
        &mut state,
        stream,
        name,
        Work::Prefetch { address: pointer, bytes, place },
        Vec::new(),
        None,
    );
    Ok(())
}

pub(crate) extern "C" fn cuMemAdvise(pointer: u64, bytes: usize, advice: u32, device: i32) -> u32 {
    finish(|| advise("cuMemAdvise", pointer, bytes, advice, Ok(device)))
}

pub(crate) extern "C" fn cuMemAdvise_v2(pointer: u64, bytes: usize, advice: u32, location: Location) -> u32 {
    finish(|| advise("cuMemAdvise_v2", pointer, bytes, advice, location.place()))
}

fn advise(name: &str, pointer: u64, bytes: usize, advice: u32, place: Answer<i32>) -> Answer {
    let (mut state, _) = on_current(name)?;
    // Marking a range as mostly read, and taking back a preferred place, look at no place.
    let places = matches!(advice, 3 | 5 | 6);
    let place = if places { place? } else { HOST };
    if place != HOST {
        let device = device_of(&state, place)?;
        if !state.device(device).options.concurrent_managed {
            return Err(code::INVALID_DEVICE);
        }
    }
    let (found, offset) = managed(&mut state, pointer, bytes)?;
    for page in found.pages_of(offset, bytes as u64) {
        match advice {
            1 | 2 => found.read_mostly[page] = advice == 1,
            3 => found.preferred[page] = place,
            4 => found.preferred[page] = NO_PLACE,
            5 if !found.accessed_by[page].contains(&place) => found.accessed_by[page].push(place),
            5 => {}
            6 => found.accessed_by[page].retain(|other| *other != place),
            _ => return Err(code::INVALID_VALUE),
        }
    }
    Ok(())
}

pub(crate) extern "C" fn cuMemRangeGetAttribute(
    data: Pointer<i32>,
    size: usize,
    attribute: u32,
    pointer: u64,
    bytes: usize,
) -> u32 {
    finish(|| {
        let (mut state, _) = on_current("cuMemRangeGetAttribute")?;
        let (found, offset) = managed(&mut state, pointer, bytes)?;
        let pages = found.pages_of(offset, bytes as u64);
        let slots = size / 4;
        if slots == 0 || !size.is_multiple_of(4) || (attribute != 3 && slots != 1) {
            return Err(code::INVALID_VALUE);
        }
        let preferred = common(&found.preferred[pages.clone()]);
        let prefetched = common(&found.last_prefetch[pages.clone()]);
        match attribute {
            1 => data.set(i32::from(found.read_mostly[pages].iter().all(|page| *page))),
            2 => data.set(preferred),
            3 => {
                let lists = &found.accessed_by[pages];
                let first = lists.first().map_or(&[][..], Vec::as_slice);
                let mut everywhere =
                    first.iter().filter(|place| lists.iter().all(|list| list.contains(place)));
                for slot in 0..slots {
                    data.set_at(slot, everywhere.next().copied().unwrap_or(NO_PLACE))?;
                }
                Ok(())
            }
            4 => data.set(prefetched),
            // The newer pairs of a place's type and number.
            5 => data.set(location_type(preferred)),
            6 => data.set(preferred.max(0)),
            7 => data.set(location_type(prefetched)),
            8 => data.set(prefetched.max(0)),
            _ => Err(code::INVALID_VALUE),
        }
    })
}

/// What all pages of a range agree on.
fn common(places: &[i32]) -> i32 {
    let first = places.first().copied().unwrap_or(NO_PLACE);
    if places.iter().all(|place| *place == first) { first } else { NO_PLACE }
}

fn location_type(place: i32) -> i32 {
    match place {
        HOST => 2,
        NO_PLACE => 0,
        _ => 1,
    }
}

/// Whether an allocation is managed memory.
pub(crate) fn is_managed(allocation: &Allocation) -> bool {
    matches!(allocation.kind, Kind::Managed(_))
}
