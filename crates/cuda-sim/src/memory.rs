//! The driver's allocations and registrations, by address.

use std::{
    alloc::{self, Layout},
    collections::BTreeMap,
    ptr::NonNull,
};

use crate::{
    advice::Advice,
    code::{self, CuResult},
    device::Residency,
    migrations::Migrations,
};

/// Byte that fills fresh memory.
const FRESH: u8 = 0xCD;
/// Byte that fills freed memory.
const DEAD: u8 = 0xDE;
/// Granularity of residency in bytes.
pub(crate) const PAGE: u64 = 65_536;

/// Host memory that backs an allocation.
#[derive(Debug)]
pub(crate) struct Backing {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the backing owns its memory; nothing about it belongs to a thread.
unsafe impl Send for Backing {}

impl Backing {
    pub(crate) fn new(bytes: usize) -> CuResult<Self> {
        // Whole pages, so that no other data of the process shares the last one.
        let whole = bytes.max(1).checked_next_multiple_of(4096).ok_or(code::OUT_OF_MEMORY)?;
        let layout = Layout::from_size_align(whole, 4096).map_err(|_| code::OUT_OF_MEMORY)?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(code::OUT_OF_MEMORY)?;
        let backing = Self { start, layout };
        backing.fill(FRESH);
        Ok(backing)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the backing owns `layout.size()` bytes from `start`.
        unsafe { self.start.as_ptr().write_bytes(byte, self.layout.size()) };
    }

    pub(crate) fn fill_dead(&self) {
        self.fill(DEAD);
    }

    pub(crate) fn fill_fresh(&self) {
        self.fill(FRESH);
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.fill_dead();
        // SAFETY: allocated by `new` with this layout, and not used after this.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Whether queued work may use an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// `cuMemAllocAsync` was called; its stream has not reached it.
    Pending,
    Live,
    /// `cuMemFreeAsync` was called; earlier queued work may still use the memory.
    FreeQueued {
        /// Whether the stream has reached the allocation itself.
        reached: bool,
    },
}

/// Residency, advice and migrations of one managed allocation.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) pages: Vec<Residency>,
    pub(crate) advice: Advice,
    pub(crate) counted: Vec<Migrations>,
}

impl Managed {
    pub(crate) fn new(bytes: usize) -> Self {
        let pages = (bytes as u64).div_ceil(PAGE) as usize;
        Self {
            pages: vec![Residency::Unpopulated; pages],
            advice: Advice::default(),
            counted: vec![Migrations::default(); pages],
        }
    }

    pub(crate) fn at(&self, offset: u64) -> Residency {
        self.pages.get((offset / PAGE) as usize).copied().unwrap_or(Residency::Unpopulated)
    }

    /// Returns the pages that a range of the allocation touches.
    pub(crate) fn pages_of(&self, offset: u64, bytes: u64) -> std::ops::Range<usize> {
        let first = (offset / PAGE) as usize;
        let last = (offset + bytes).div_ceil(PAGE) as usize;
        first.min(self.pages.len())..last.min(self.pages.len())
    }
}

/// The kind of memory of an allocation.
#[derive(Debug)]
pub(crate) enum Kind {
    Device,
    Pool(u64),
    Pinned { flags: u32 },
    Registered { flags: u32 },
    Managed(Managed),
}

/// An allocation or registration.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) id: u64,
    pub(crate) base: u64,
    pub(crate) bytes: usize,
    pub(crate) device: u32,
    pub(crate) context: u64,
    pub(crate) kind: Kind,
    pub(crate) life: Life,
    /// `None` for registered memory, which belongs to the caller, and for imported memory.
    pub(crate) backing: Option<Backing>,
    /// The bytes' address in the host's address space.
    start: NonNull<u8>,
}

// SAFETY: `start` points to memory that is not bound to a thread: the backing's, or registered memory of the process.
unsafe impl Send for Allocation {}

impl Allocation {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes as u64
    }

    /// Returns whether the memory is device memory, which the host cannot access.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::Pool(_))
    }
}

/// A new entry of [`Memory`].
pub(crate) struct Entry {
    pub(crate) bytes: usize,
    pub(crate) device: u32,
    pub(crate) context: u64,
    pub(crate) kind: Kind,
    pub(crate) life: Life,
}

/// All allocations, by base address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    by_base: BTreeMap<u64, Allocation>,
    last_id: u64,
}

impl Memory {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.by_base.values()
    }

    /// Returns the allocation that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Allocation> {
        let (_, found) = self.by_base.range(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    pub(crate) fn find_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        let (_, found) = self.by_base.range_mut(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    /// Returns the allocation that begins at `base`.
    pub(crate) fn at(&self, base: u64) -> Option<&Allocation> {
        self.by_base.get(&base)
    }

    pub(crate) fn at_mut(&mut self, base: u64) -> Option<&mut Allocation> {
        self.by_base.get_mut(&base)
    }

    /// Returns whether any allocation overlaps a range.
    pub(crate) fn overlaps(&self, address: u64, bytes: usize) -> bool {
        let end = address.saturating_add(bytes as u64);
        self.by_base.range(..end).next_back().is_some_and(|(_, last)| last.end() > address)
    }

    /// Returns the first allocation that ends after `address`, as (start, end).
    pub(crate) fn next_taken(&self, address: u64) -> Option<(u64, u64)> {
        if let Some(inside) = self.find(address) {
            return Some((inside.base, inside.end()));
        }
        self.by_base.range(address..).next().map(|(_, next)| (next.base, next.end()))
    }

    /// Adds an allocation backed by `backing`, at `base` or else at the backing's own address. Returns its base
    /// address.
    pub(crate) fn insert(&mut self, base: Option<u64>, backing: Backing, entry: Entry) -> u64 {
        let start = backing.start();
        let base = base.unwrap_or(start.as_ptr().addr() as u64);
        self.enter(base, start, Some(backing), entry);
        base
    }

    /// Adds memory of another API at `base`.
    pub(crate) fn insert_external(&mut self, base: u64, start: NonNull<u8>, entry: Entry) {
        self.enter(base, start, None, entry);
    }

    /// Adds memory that belongs to the caller.
    pub(crate) fn insert_foreign(&mut self, start: NonNull<u8>, entry: Entry) {
        self.enter(start.as_ptr().addr() as u64, start, None, entry);
    }

    fn enter(&mut self, base: u64, start: NonNull<u8>, backing: Option<Backing>, entry: Entry) {
        let Entry { bytes, device, context, kind, life } = entry;
        self.last_id += 1;
        let id = self.last_id;
        self.by_base
            .insert(base, Allocation { id, base, bytes, device, context, kind, life, backing, start });
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<Allocation> {
        self.by_base.remove(&base)
    }

    /// Returns the host address of a range for executing work; `ILLEGAL_ADDRESS` unless all of it is live.
    pub(crate) fn touch(&self, address: u64, bytes: usize) -> CuResult<NonNull<u8>> {
        let allocation = self.find(address).ok_or(code::ILLEGAL_ADDRESS)?;
        let fits = address.checked_add(bytes as u64).is_some_and(|end| end <= allocation.end());
        let live = matches!(allocation.life, Life::Live | Life::FreeQueued { reached: true });
        if !fits || !live {
            return Err(code::ILLEGAL_ADDRESS);
        }
        // SAFETY: the offset lies within the allocation, whose bytes begin at `start`.
        Ok(unsafe { allocation.start.add((address - allocation.base) as usize) })
    }

    /// Returns the allocation that contains a range, or `None` for unknown memory. Fails if the range is only partly
    /// within an allocation.
    pub(crate) fn resolve(&self, address: u64, bytes: usize) -> CuResult<Option<&Allocation>> {
        let end = address.checked_add(bytes as u64).ok_or(code::INVALID_VALUE)?;
        match self.find(address) {
            Some(found) if end <= found.end() => Ok(Some(found)),
            Some(_) => Err(code::INVALID_VALUE),
            None if bytes > 0 && self.overlaps(address, bytes) => Err(code::INVALID_VALUE),
            None => Ok(None),
        }
    }
}
