//! One size on one path, with separate memory for the library and the reference.

use anyhow::{Context as _, Result, bail};
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Transfer, TransferPath, TransferReport};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    address::Address,
    content::Content,
    grid::Point,
    memory::{Memory, Pages},
    planted,
    reference::{Memcpy, Reference},
};

/// Guard bytes after a destination, which must not change.
pub(crate) const GUARD: usize = 64;

/// Where managed memory resides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In host memory.
    Host,
    /// In device memory.
    Device,
}

/// The environment in which a family of paths is measured.
pub trait Testbed: Sync {
    /// Returns the device whose backend allocates the library's memory.
    fn device(&self) -> DeviceId;
    /// Returns whether its rows are simulated.
    fn is_simulated(&self) -> bool;
    /// Returns the reference's name.
    fn reference_name(&self) -> &'static str;
    /// Returns whether the device has its own clock.
    fn has_clock(&self) -> bool;
    /// Makes the device's context current on this thread.
    ///
    /// # Errors
    /// If a driver call fails.
    fn bind(&self) -> Result<()>;
    /// Unbinds the context.
    ///
    /// # Errors
    /// If a driver call fails.
    fn unbind(&self) -> Result<()>;
    /// Returns another device of the same family, if present.
    fn peer(&self) -> Option<DeviceId> {
        None
    }
    /// Migrates managed memory and waits. Does nothing if it cannot migrate.
    ///
    /// # Errors
    /// If a driver call fails.
    fn migrate(&self, memory: Address, bytes: usize, to: Location) -> Result<()> {
        let _ = (memory, bytes, to);
        Ok(())
    }
    /// Allocates memory for the reference.
    ///
    /// # Errors
    /// If a driver call fails.
    fn memory(&self, place: Place, bytes: usize) -> Result<Memory>;
    /// Creates the reference copy.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * `bytes` bytes must be readable at `src` and writable at `dst` while the result lives; they do not overlap, and
    ///   are not used otherwise during a copy.
    unsafe fn reference(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn Reference>>;
}

/// The host without a device.
#[derive(Clone, Copy, Debug)]
pub struct HostTestbed;

impl Testbed for HostTestbed {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn reference_name(&self) -> &'static str {
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
            other => bail!("the host has no {other} memory"),
        }
    }

    unsafe fn reference(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn Reference>> {
        match (src, dst) {
            // SAFETY: guaranteed by the caller.
            (Address::Host(src), Address::Host(dst)) => Ok(Box::new(unsafe { Memcpy::new(src, dst, bytes) })),
            _ => bail!("the host cannot address device memory"),
        }
    }
}

/// Source and destination of a copy by the library.
#[derive(Debug)]
pub struct Ends<'a> {
    manager: &'a CrossBackendTransferManager,
    src: RawBuffer,
    dst: RawBuffer,
    point: Point,
}

impl Ends<'_> {
    /// Submits a transfer with default options.
    #[inline]
    pub fn submit(&self) -> Transfer {
        planted::submission();
        let Point { bytes, src_offset, dst_offset } = self.point;
        self.manager.transfer_buffer(&self.src, &self.dst, src_offset, dst_offset, bytes)
    }

    /// Submits a transfer with options.
    ///
    /// # Errors
    /// If the point exceeds the buffers.
    pub fn submit_with(&self, options: &TransferOptions) -> Result<Transfer, transload_core::Error> {
        let Point { bytes, src_offset, dst_offset } = self.point;
        let src = self.src.slice(src_offset..src_offset + bytes)?;
        let dst = self.dst.slice(dst_offset..dst_offset + bytes)?;
        Ok(self.manager.copy(&src, &dst).options(*options).submit())
    }

    /// Copies with default options, and blocks until the bytes are in place.
    ///
    /// # Errors
    /// Those of [`copy_with`](Self::copy_with).
    #[inline]
    pub fn copy(&self) -> Result<TransferReport, transload_core::Error> {
        if self.point.is_small() { self.submit().wait() } else { self.copy_with(&TransferOptions::new()) }
    }

    /// Copies with options, and blocks until the bytes are in place.
    ///
    /// # Errors
    /// If the point exceeds the buffers; the transfer's.
    pub fn copy_with(&self, options: &TransferOptions) -> Result<TransferReport, transload_core::Error> {
        let Point { bytes, src_offset, dst_offset } = self.point;
        let src = self.src.slice(src_offset..src_offset + bytes)?;
        let dst = self.dst.slice(dst_offset..dst_offset + bytes)?;
        planted::submission();
        planted::copy(|| self.manager.copy(&src, &dst).options(*options).wait())
    }
}

/// The side that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The library.
    Ours,
    /// The reference.
    Reference,
}

/// A copy by the library and by a reference.
pub struct Case<'a> {
    /// The library's side.
    pub ends: Ends<'a>,
    /// The reference's side.
    pub reference: Box<dyn Reference + 'a>,
    // After the fields that use them, so that they are dropped later.
    ours: (Memory, Memory),
    theirs: (Memory, Memory),
    point: Point,
    /// Start of each side's contents within `Content`.
    drawn: [usize; 2],
}

impl<'a> Case<'a> {
    /// Allocates the memory of both sides.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn new(
        manager: &'a CrossBackendTransferManager,
        testbed: &dyn Testbed,
        path: TransferPath,
        point: Point,
    ) -> Result<Self> {
        // SAFETY: `with` guarantees this use of the memory.
        Self::with(manager, testbed, path, point, |src, dst| unsafe {
            testbed.reference(src, dst, point.bytes)
        })
    }

    /// Like `new`, with a reference created from the addresses of source and destination. These have the point's bytes, live
    /// as long as the case, do not overlap, and are used by one thread at a time.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn with(
        manager: &'a CrossBackendTransferManager,
        testbed: &dyn Testbed,
        path: TransferPath,
        point: Point,
        reference: impl FnOnce(Address, Address) -> Result<Box<dyn Reference>>,
    ) -> Result<Self> {
        let (src_bytes, dst_bytes) = (point.src_offset + point.bytes, point.dst_offset + point.bytes + GUARD);
        let (src, dst) = (
            allocate(manager, testbed, path.src, src_bytes)?,
            allocate(manager, testbed, path.dst, dst_bytes)?,
        );
        let theirs = (testbed.memory(path.src, src_bytes)?, testbed.memory(path.dst, dst_bytes)?);
        let from = shifted(theirs.0.address()?, point.src_offset);
        let to = shifted(theirs.1.address()?, point.dst_offset);
        // `theirs` has the bytes and is dropped after the reference; two allocations do not overlap, and the case is used by
        // one thread at a time.
        let reference = reference(from, to)?;
        let ours = (Memory::Ours(src.clone()), Memory::Ours(dst.clone()));
        Ok(Self { ends: Ends { manager, src, dst, point }, reference, ours, theirs, point, drawn: [0; 2] })
    }

    /// Like `new`, with the library itself under other options as the reference.
    ///
    /// # Errors
    /// If the library fails.
    pub fn with_options(
        manager: &'a CrossBackendTransferManager,
        testbed: &dyn Testbed,
        path: TransferPath,
        point: Point,
        options: TransferOptions,
    ) -> Result<Self> {
        let (src_bytes, dst_bytes) = (point.src_offset + point.bytes, point.dst_offset + point.bytes + GUARD);
        let ends = || -> Result<Ends<'a>> {
            let src = allocate(manager, testbed, path.src, src_bytes)?;
            Ok(Ends { manager, src, dst: allocate(manager, testbed, path.dst, dst_bytes)?, point })
        };
        let (ends, others) = (ends()?, ends()?);
        let memory = |ends: &Ends<'_>| (Memory::Ours(ends.src.clone()), Memory::Ours(ends.dst.clone()));
        let (ours, theirs) = (memory(&ends), memory(&others));
        let reference = Box::new(OtherOptions { ends: others, options, transfer: None });
        Ok(Self { ends, reference, ours, theirs, point, drawn: [0; 2] })
    }

    /// Returns the address of a side's source.
    ///
    /// # Errors
    /// If the memory has no address.
    pub fn source(&self, side: Side) -> Result<Address> {
        Ok(shifted(self.memory(side).0.address()?, self.point.src_offset))
    }

    /// Writes new random bytes to the source and poisons the destination.
    ///
    /// # Errors
    /// If a driver call fails.
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
    /// If a byte differs or the driver fails.
    pub fn check(&self, side: Side, content: &Content) -> Result<()> {
        let start = self.drawn.get(side as usize).copied().unwrap_or_default();
        self.memory(side).1.compare(self.point.dst_offset, content.part(start, self.point.bytes))
    }

    fn memory(&self, side: Side) -> (&Memory, &Memory) {
        let (src, dst) = match side {
            Side::Ours => &self.ours,
            Side::Reference => &self.theirs,
        };
        (src, dst)
    }
}

/// The library with given options, as a reference.
struct OtherOptions<'a> {
    ends: Ends<'a>,
    options: TransferOptions,
    transfer: Option<Transfer>,
}

impl Reference for OtherOptions<'_> {
    fn submit(&mut self) -> Result<()> {
        self.transfer = Some(self.ends.submit_with(&self.options)?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let transfer = self.transfer.take().context("nothing was submitted")?;
        Ok(transfer.wait().map(|_report| ())?)
    }

    fn timed(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// Allocates the library's memory at a place.
pub(crate) fn allocate(
    manager: &CrossBackendTransferManager,
    testbed: &dyn Testbed,
    place: Place,
    bytes: usize,
) -> Result<RawBuffer, transload_core::Error> {
    match (place.device, place.kind) {
        (DeviceId::Cpu, MemoryKind::Pageable) => manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes),
        (DeviceId::Cpu, kind) => manager.allocate_for(testbed.device(), kind, bytes),
        (device, kind) => manager.allocate_for(device, kind, bytes),
    }
}

fn shifted(address: Address, bytes: usize) -> Address {
    match address {
        // SAFETY: the offset lies within the allocation.
        Address::Host(address) => Address::Host(unsafe { address.add(bytes) }),
        Address::Device(address) => Address::Device(address + bytes as u64),
    }
}
