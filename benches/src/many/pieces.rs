//! Pieces of a pool of the host in order, each with one of a device pool in a scattered order.

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};

use crate::{
    comparison::{Fixture, Verify},
    content::Content,
    memory::Memory,
};

/// A prime, which no number of pieces divides: one piece of the device's pool is so many after the one before.
const STEP: usize = 7_919;

pub(crate) struct Pieces {
    /// Sources and destinations.
    pub(crate) pairs: Vec<(RawBuffer, RawBuffer)>,
    /// The same as addresses.
    pub(crate) sources: Vec<u64>,
    pub(crate) destinations: Vec<u64>,
    pub(crate) sizes: Vec<usize>,
    /// The same as pools of blocks, and the index of each block.
    pub(crate) from: (RawBuffer, Vec<usize>),
    pub(crate) to: (RawBuffer, Vec<usize>),
    target: Memory,
    expected: Vec<u8>,
}

impl Pieces {
    /// `host` is as long as all pieces.
    pub(crate) fn new(
        fixture: &Fixture<'_>,
        host: RawBuffer,
        (count, bytes): (usize, usize),
        up: bool,
    ) -> Result<Self> {
        let total = count * bytes;
        let device = fixture.memory.allocate(MemoryKind::Device, total)?;
        let mut random = Content::new(total, 0x9A11 + count as u64);
        let start = random.draw();
        let in_order = random.part(start, total).to_vec();
        let mut scattered = vec![0; total];
        let near = (host.clone(), (0..count).collect());
        let far = (device.clone(), (0..count).map(|index| index * STEP % count).collect());
        let (from, to) = if up { (near, far) } else { (far, near) };
        let mut pieces = Self {
            from,
            to,
            pairs: Vec::with_capacity(count),
            sources: Vec::with_capacity(count),
            destinations: Vec::with_capacity(count),
            sizes: vec![bytes; count],
            target: Memory::Ours(if up { device.clone() } else { host.clone() }),
            expected: Vec::new(),
        };
        let host_address = host.host_address().context("host memory without an address")?;
        let host_address = host_address.as_ptr().expose_provenance() as u64;
        let device_address = device.device_address().context("device memory without an address")?;
        for index in 0..count {
            let (here, there) = (index * bytes, index * STEP % count * bytes);
            let (near, far) = (host.slice(here..here + bytes)?, device.slice(there..there + bytes)?);
            let (near_address, far_address) = (host_address + here as u64, device_address + there as u64);
            if let (Some(to), Some(from)) =
                (scattered.get_mut(there..there + bytes), in_order.get(here..here + bytes))
            {
                to.copy_from_slice(from);
            }
            pieces.pairs.push(if up { (near, far) } else { (far, near) });
            let (from, to) = if up { (near_address, far_address) } else { (far_address, near_address) };
            pieces.sources.push(from);
            pieces.destinations.push(to);
        }
        let (source, content) = if up { (host, &in_order) } else { (device, &scattered) };
        Memory::Ours(source).write(0, content)?;
        pieces.expected = if up { scattered } else { in_order };
        Ok(pieces)
    }
}

impl Verify for Pieces {
    fn poison(&self) -> Result<()> {
        self.target.poison()
    }

    fn check(&self) -> Result<()> {
        self.target.compare(0, &self.expected)
    }
}
