//! A copy kernel over a list of pieces, written and launched by hand, a block for each piece.

use std::os::raw::c_void;

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};

use super::{Fixture, pieces::Pieces};
use crate::reference::{RawKernel, RawQueue};

/// Destination, source and length in bytes.
type Piece = [u64; 3];

const BLOCKS: u32 = 264;
const THREADS: u32 = 256;

pub(super) struct RawList {
    kernel: RawKernel,
    list: RawBuffer,
}

impl RawList {
    pub(super) fn new(fixture: &Fixture<'_>, count: usize) -> Result<Self> {
        let kernel = RawKernel::load(include_str!("../ptx/copy_list.ptx"), c"transload_copy_list")?;
        let list = fixture.memory.allocate(MemoryKind::Mapped, count * size_of::<Piece>())?;
        Ok(Self { kernel, list })
    }

    /// Writes the list, copies, and waits.
    pub(super) fn run(&self, pieces: &Pieces, queue: &RawQueue) -> Result<()> {
        let start = self.list.host_address().context("mapped memory without a host address")?.cast::<Piece>();
        let of = pieces.destinations.iter().zip(&pieces.sources).zip(&pieces.sizes);
        for (index, ((to, from), bytes)) in of.enumerate() {
            // SAFETY: the list has room for all pieces, is aligned, and no kernel reads it now.
            unsafe { start.add(index).write([*to, *from, *bytes as u64]) };
        }
        let list = self.list.device_address().context("mapped memory without a device address")?;
        let (count, more) = (pieces.sizes.len() as u64, 0_u32);
        let mut parameters: [*mut c_void; 3] = [
            (&raw const list).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
            (&raw const more).cast_mut().cast(),
        ];
        // SAFETY: the kernel takes these parameters; list and pieces live on, and nothing else uses them.
        unsafe { self.kernel.launch(queue.raw(), (BLOCKS, THREADS), &mut parameters) }?;
        queue.finish()
    }
}
