//! One point of one path, with memory of its own for the library and for the reference.

use anyhow::{Result, bail};
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Transfer, TransferPath};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    content::Content,
    grid::Point,
    memory::{Address, Memory, Pages},
    reference::{ByHand, Memcpy},
};

/// Bytes behind a destination that must stay as they were.
const GUARD: usize = 64;

/// What a family of paths is measured with.
pub trait Kit: Sync {
    /// The device whose backend makes our memory.
    fn device(&self) -> DeviceId;
    /// Whether its rows must be called simulated.
    fn is_simulated(&self) -> bool;
    /// What the reference is called.
    fn reference(&self) -> &'static str;
    /// Whether the device has a clock of its own.
    fn has_clock(&self) -> bool;
    /// Makes the device's context current on this thread.
    ///
    /// # Errors
    /// The driver's.
    fn bind(&self) -> Result<()>;
    /// Takes it away again.
    ///
    /// # Errors
    /// The driver's.
    fn unbind(&self) -> Result<()>;
    /// Memory for the reference.
    ///
    /// # Errors
    /// The driver's.
    fn memory(&self, place: Place, bytes: usize) -> Result<Memory>;
    /// The reference's movement.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// * `bytes` bytes must be readable at `src` and writable at `dst` while the answer lives; they do not overlap, and
    ///   nobody else uses them while it moves them.
    unsafe fn by_hand(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn ByHand>>;
}

/// The host alone.
#[derive(Clone, Copy, Debug)]
pub struct HostKit;

impl Kit for HostKit {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn reference(&self) -> &'static str {
        "memcpy, 1 thread"
    }

    fn has_clock(&self) -> bool {
        false
    }

    fn bind(&self) -> Result<()> {
        Ok(())
    }

    fn unbind(&self) -> Result<()> {
        Ok(())
    }

    fn memory(&self, place: Place, bytes: usize) -> Result<Memory> {
        match place.kind {
            MemoryKind::Pageable => Ok(Memory::Pageable(Pages::new(bytes)?)),
            other => bail!("the host alone has no {other} memory"),
        }
    }

    unsafe fn by_hand(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn ByHand>> {
        match (src, dst) {
            // SAFETY: the caller's promise.
            (Address::Host(src), Address::Host(dst)) => Ok(Box::new(unsafe { Memcpy::new(src, dst, bytes) })),
            _ => bail!("the host cannot address device memory"),
        }
    }
}

/// The library's two ends of a movement.
#[derive(Debug)]
pub struct Ends<'a> {
    manager: &'a CrossBackendTransferManager,
    src: RawBuffer,
    dst: RawBuffer,
    point: Point,
}

impl Ends<'_> {
    /// Submits a transfer as a user would who leaves all choices to the manager.
    #[inline]
    pub fn submit(&self) -> Transfer {
        let Point { bytes, src_offset, dst_offset } = self.point;
        self.manager.transfer_buffer(&self.src, &self.dst, src_offset, dst_offset, bytes)
    }

    /// Submits a transfer with options.
    pub fn submit_with(&self, options: &TransferOptions) -> Transfer {
        let Point { bytes, src_offset, dst_offset } = self.point;
        self.manager.transfer_with(&self.src, &self.dst, src_offset, dst_offset, bytes, options)
    }
}

/// Which of the two is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The library.
    Ours,
    /// The reference.
    ByHand,
}

/// Both sides of a comparison.
pub struct Case<'a> {
    /// The library's side.
    pub ends: Ends<'a>,
    /// The reference's.
    pub by_hand: Box<dyn ByHand>,
    // Behind what uses them, so that they go later.
    ours: (Memory, Memory),
    theirs: (Memory, Memory),
    point: Point,
    /// Where the contents of each side were drawn from.
    drawn: [usize; 2],
}

impl<'a> Case<'a> {
    /// Allocates everything.
    ///
    /// # Errors
    /// Those of the library and of the driver.
    pub fn new(
        manager: &'a CrossBackendTransferManager,
        kit: &dyn Kit,
        path: TransferPath,
        point: Point,
    ) -> Result<Self> {
        let (src_bytes, dst_bytes) = (point.src_offset + point.bytes, point.dst_offset + point.bytes + GUARD);
        let ours = |place: Place, bytes| match place.kind {
            MemoryKind::Pageable => manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes),
            kind => manager.allocate_for(kit.device(), kind, bytes),
        };
        let (src, dst) = (ours(path.src, src_bytes)?, ours(path.dst, dst_bytes)?);
        let theirs = (kit.memory(path.src, src_bytes)?, kit.memory(path.dst, dst_bytes)?);
        let from = shifted(theirs.0.address()?, point.src_offset);
        let to = shifted(theirs.1.address()?, point.dst_offset);
        // SAFETY: `theirs` has the bytes, lives in the same value and goes after it; two allocations do not overlap, and
        // the case is used by one thread at a time.
        let by_hand = unsafe { kit.by_hand(from, to, point.bytes) }?;
        let ours = (Memory::Ours(src.clone()), Memory::Ours(dst.clone()));
        Ok(Self { ends: Ends { manager, src, dst, point }, by_hand, ours, theirs, point, drawn: [0; 2] })
    }

    /// Fresh random bytes into the source, poison into the destination.
    ///
    /// # Errors
    /// The driver's.
    pub fn prepare(&mut self, side: Side, content: &Content, start: usize) -> Result<()> {
        if let Some(drawn) = self.drawn.get_mut(side as usize) {
            *drawn = start;
        }
        let (src, dst) = self.memory(side);
        src.write(self.point.src_offset, content.part(start, self.point.bytes))?;
        dst.poison()
    }

    /// Compares every byte of the destination.
    ///
    /// # Errors
    /// The first byte that differs; the driver's.
    pub fn check(&self, side: Side, content: &Content) -> Result<()> {
        let start = self.drawn.get(side as usize).copied().unwrap_or_default();
        self.memory(side).1.compare(self.point.dst_offset, content.part(start, self.point.bytes))
    }

    fn memory(&self, side: Side) -> (&Memory, &Memory) {
        let (src, dst) = match side {
            Side::Ours => &self.ours,
            Side::ByHand => &self.theirs,
        };
        (src, dst)
    }
}

fn shifted(address: Address, bytes: usize) -> Address {
    match address {
        // SAFETY: the offset lies within the allocation.
        Address::Host(address) => Address::Host(unsafe { address.add(bytes) }),
        Address::Device(address) => Address::Device(address + bytes as u64),
    }
}
