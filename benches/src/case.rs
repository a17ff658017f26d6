//! One point of one path, with memory of its own for the library and for the reference.

use anyhow::{Context as _, Result, bail};
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Transfer, TransferPath};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    content::Content,
    grid::Point,
    memory::{Address, Memory, Pages},
    reference::{Memcpy, Reference},
};

/// Bytes behind a destination that must stay as they were.
pub(crate) const GUARD: usize = 64;

/// Where memory that migrates is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the host's memory.
    Host,
    /// In the device's.
    Device,
}

/// What a family of paths is measured with.
pub trait Testbed: Sync {
    /// The device whose backend makes our memory.
    fn device(&self) -> DeviceId;
    /// Whether its rows must be called simulated.
    fn is_simulated(&self) -> bool;
    /// What the reference is called.
    fn reference_name(&self) -> &'static str;
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
    /// Another device of the same family, where there is one.
    fn peer(&self) -> Option<DeviceId> {
        None
    }
    /// Brings memory that migrates to the host or to the device, and waits. Nothing is done where it cannot migrate.
    ///
    /// # Errors
    /// The driver's.
    fn migrate(&self, memory: Address, bytes: usize, to: Location) -> Result<()> {
        let _ = (memory, bytes, to);
        Ok(())
    }
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
    unsafe fn reference(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn Reference>>;
}

/// The host alone.
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
            other => bail!("the host alone has no {other} memory"),
        }
    }

    unsafe fn reference(&self, src: Address, dst: Address, bytes: usize) -> Result<Box<dyn Reference>> {
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
    Reference,
}

/// Both sides of a comparison.
pub struct Case<'a> {
    /// The library's side.
    pub ends: Ends<'a>,
    /// The reference's.
    pub reference: Box<dyn Reference + 'a>,
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
        testbed: &dyn Testbed,
        path: TransferPath,
        point: Point,
    ) -> Result<Self> {
        // SAFETY: the memory is used as `with` promises.
        Self::with(manager, testbed, path, point, |src, dst| unsafe {
            testbed.reference(src, dst, point.bytes)
        })
    }

    /// With a reference made from the addresses of source and destination. They have the point's bytes, live as long as the
    /// case, do not overlap, and are used by one thread at a time.
    ///
    /// # Errors
    /// Those of the library and of the driver.
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
        // `theirs` has the bytes, lives in the same value and goes after it; two allocations do not overlap, and the case
        // is used by one thread at a time.
        let reference = reference(from, to)?;
        let ours = (Memory::Ours(src.clone()), Memory::Ours(dst.clone()));
        Ok(Self { ends: Ends { manager, src, dst, point }, reference, ours, theirs, point, drawn: [0; 2] })
    }

    /// Against the library itself, with options of its own in the reference's place.
    ///
    /// # Errors
    /// Those of the library.
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

    /// Where a side's source begins.
    ///
    /// # Errors
    /// For memory without an address.
    pub fn source(&self, side: Side) -> Result<Address> {
        Ok(shifted(self.memory(side).0.address()?, self.point.src_offset))
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
            Side::Reference => &self.theirs,
        };
        (src, dst)
    }
}

/// The library itself with certain options, in the place of a reference.
struct OtherOptions<'a> {
    ends: Ends<'a>,
    options: TransferOptions,
    transfer: Option<Transfer>,
}

impl Reference for OtherOptions<'_> {
    fn submit(&mut self) -> Result<()> {
        self.transfer = Some(self.ends.submit_with(&self.options));
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

/// The library's memory at a place of a testbed's paths.
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
