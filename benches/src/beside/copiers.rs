//! Who copies the lists of one direction: the library, or driver calls by hand.

use std::{os::raw::c_void, ptr, slice};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};
use transload_transfer::{CopyManyTransfer, CrossBackendTransferManager};

use crate::{
    comparison::Fixture,
    many::pieces::Pieces,
    reference::{RawEvent, RawKernel, RawQueue},
};

/// The lists of one direction. While one is copied, the next is submitted.
pub(super) type Lists = [Pieces; 2];

/// Copies lists of one direction.
pub(super) trait Copier: Send {
    /// Submits a list, by its index.
    fn submit(&mut self, list: usize) -> Result<()>;
    /// Blocks until the list is copied.
    fn wait(&mut self, list: usize) -> Result<()>;
}

/// The library's `copy_blocks`.
pub(super) struct Blocks<'a> {
    pub(super) manager: &'a CrossBackendTransferManager,
    pub(super) lists: &'a Lists,
    /// Length of a block.
    pub(super) bytes: usize,
    pub(super) exclusive: bool,
    pub(super) running: [Option<CopyManyTransfer>; 2],
}

impl Copier for Blocks<'_> {
    fn submit(&mut self, list: usize) -> Result<()> {
        let Pieces { from, to, .. } = self.lists.get(list).context("no such list")?;
        let ((source, from), (destination, to)) = (from, to);
        let (source, destination) = (slice::from_ref(source), slice::from_ref(destination));
        let copy = self.manager.copy_blocks((source, from), (destination, to), self.bytes)?;
        let copy = if self.exclusive { copy.exclusive() } else { copy };
        *self.running.get_mut(list).context("no such list")? = Some(copy.submit());
        Ok(())
    }

    fn wait(&mut self, list: usize) -> Result<()> {
        if let Some(transfer) = self.running.get_mut(list).and_then(Option::take) {
            transfer.wait()?;
        }
        Ok(())
    }
}

/// The raw batch call.
pub(super) struct Batch<'a> {
    lists: &'a Lists,
    queue: RawQueue,
    ends: [RawEvent; 2],
}

impl<'a> Batch<'a> {
    pub(super) fn new(lists: &'a Lists) -> Result<Self> {
        Ok(Self { lists, queue: RawQueue::new(0)?, ends: [RawEvent::ordering()?, RawEvent::ordering()?] })
    }
}

impl Copier for Batch<'_> {
    fn submit(&mut self, list: usize) -> Result<()> {
        let Pieces { destinations, sources, sizes, .. } = self.lists.get(list).context("no such list")?;
        // SAFETY: the pools live on, and only this direction uses these ones now.
        unsafe { self.queue.copy_batch(destinations, sources, sizes) }?;
        self.queue.record(self.ends.get(list).context("no such list")?)
    }

    fn wait(&mut self, list: usize) -> Result<()> {
        self.ends.get(list).context("no such list")?.finish()
    }
}

/// The library's kernel over a list, a warp for each piece.
const KERNEL: &str = concat!(
    include_str!("../../../crates/streams/src/submit/kernels/copy.ptx"),
    include_str!("../../../crates/streams/src/submit/kernels/copy_list.ptx")
);
const THREADS: u32 = 256;
/// Destination, source and length in bytes.
type Entry = [u64; 3];

/// How a kernel over a list takes part.
#[derive(Clone, Copy)]
pub(super) struct Launches {
    /// Blocks of a launch.
    pub(super) blocks: u32,
    /// Number and bytes of the scratch buffers on the device; without them the kernel reads or writes the host's memory.
    pub(super) scratch: Option<(usize, usize)>,
}

/// A kernel over a list, on a stream of the highest priority; and copy engines between the host and scratch buffers, if there are any.
pub(super) struct Listed<'a> {
    lists: &'a Lists,
    up: bool,
    kernel: RawKernel,
    blocks: u32,
    /// Pieces of a launch.
    chunk: usize,
    /// In mapped memory, for each list.
    entries: [RawBuffer; 2],
    scratch: Vec<Scratch>,
    /// Number of chunks so far.
    turn: usize,
    engine: RawQueue,
    launches: RawQueue,
    ends: [RawEvent; 2],
}

/// Room for a chunk.
struct Scratch {
    buffer: RawBuffer,
    /// After the first of its two copies, and after the second.
    filled: RawEvent,
    free: RawEvent,
}

impl<'a> Listed<'a> {
    pub(super) fn new(
        fixture: &Fixture<'_>,
        lists: &'a Lists,
        up: bool,
        Launches { blocks, scratch }: Launches,
    ) -> Result<Self> {
        let [first, _] = lists;
        let (count, bytes) = (first.sizes.len(), first.sizes.first().copied().unwrap_or(1));
        let (_, highest) = fixture.context()?.stream_priority_range()?;
        let entries = || fixture.memory.allocate(MemoryKind::Mapped, count * size_of::<Entry>());
        let (buffers, room) = scratch.unwrap_or_default();
        let room_for = || -> Result<Scratch> {
            Ok(Scratch {
                buffer: fixture.memory.allocate(MemoryKind::Device, room)?,
                filled: RawEvent::ordering()?,
                free: RawEvent::ordering()?,
            })
        };
        Ok(Self {
            lists,
            up,
            kernel: RawKernel::load(KERNEL, c"transload_copy_list")?,
            blocks,
            chunk: if buffers == 0 { count } else { (room / bytes).max(1) },
            entries: [entries()?, entries()?],
            scratch: (0..buffers).map(|_| room_for()).collect::<Result<_>>()?,
            turn: 0,
            engine: RawQueue::new(0)?,
            launches: RawQueue::new(highest)?,
            ends: [RawEvent::ordering()?, RawEvent::ordering()?],
        })
    }

    fn launch(&self, list: u64, count: usize) -> Result<()> {
        let (count, more) = (count as u64, 0_u32);
        let mut parameters: [*mut c_void; 3] = [
            (&raw const list).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
            (&raw const more).cast_mut().cast(),
        ];
        // SAFETY: the kernel takes these parameters; list and pieces live on, and nothing else uses them.
        unsafe { self.kernel.launch(self.launches.raw(), (self.blocks, THREADS), &mut parameters) }
    }
}

impl Copier for Listed<'_> {
    fn submit(&mut self, list: usize) -> Result<()> {
        let Pieces { destinations, sources, sizes, .. } = self.lists.get(list).context("no such list")?;
        let entries = self.entries.get(list).context("no such list")?;
        let written = entries.host_address().context("mapped memory without a host address")?.cast::<Entry>();
        let entries = entries.device_address().context("mapped memory without a device address")?;
        for first in (0..sizes.len()).step_by(self.chunk) {
            let last = sizes.len().min(first + self.chunk);
            let scratch = self.scratch.get(self.turn % self.scratch.len().max(1));
            self.turn += 1;
            // The pieces of the host follow each other, so they are one copy.
            let (host, mut bytes) = (if self.up { sources } else { destinations }.get(first).copied(), 0);
            let staged = scratch.and_then(|scratch| scratch.buffer.device_address());
            for index in first..last {
                let (Some(to), Some(from), Some(size)) =
                    (destinations.get(index), sources.get(index), sizes.get(index))
                else {
                    continue;
                };
                let (mut to, mut from) = (*to, *from);
                if let Some(staged) = staged {
                    *if self.up { &mut from } else { &mut to } = staged + bytes as u64;
                }
                // SAFETY: there is room for all entries, aligned, and no kernel reads the list: it was waited for.
                unsafe { written.add(index).write([to, from, *size as u64]) };
                bytes += size;
            }
            let part = entries + (first * size_of::<Entry>()) as u64;
            let (Some(scratch), Some(staged)) = (scratch, staged) else {
                self.launch(part, last - first)?;
                continue;
            };
            let host: *mut c_void = ptr::with_exposed_provenance_mut(host.unwrap_or_default() as usize);
            let (before, behind) =
                if self.up { (&self.engine, &self.launches) } else { (&self.launches, &self.engine) };
            before.wait(&scratch.free)?;
            if self.up {
                // SAFETY: both ranges live on, and nothing else uses them until the events are complete.
                unsafe { self.engine.copy_up(staged, host, bytes) }?;
            } else {
                self.launch(part, last - first)?;
            }
            before.record(&scratch.filled)?;
            behind.wait(&scratch.filled)?;
            if self.up {
                self.launch(part, last - first)?;
            } else {
                // SAFETY: as above.
                unsafe { self.engine.copy_down(host, staged, bytes) }?;
            }
            behind.record(&scratch.free)?;
        }
        let is_last_by_engine = !self.up && !self.scratch.is_empty();
        let last = if is_last_by_engine { &self.engine } else { &self.launches };
        last.record(self.ends.get(list).context("no such list")?)
    }

    fn wait(&mut self, list: usize) -> Result<()> {
        self.ends.get(list).context("no such list")?.finish()
    }
}
