//! Pieces of one pool in order, each with one of another in a scattered order.

use anyhow::Result;
use transload_core::{MemoryKind, RawBuffer};

use crate::{
    address::Address,
    comparison::{Fixture, Verify},
    content::Content,
    memory::{Memory, POISON},
};

/// A prime, which no number of pieces divides: one piece of the device's pool is so many after the one before.
pub(crate) const STEP: usize = 7_919;

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
        shape: (usize, usize),
        up: bool,
    ) -> Result<Self> {
        let device = fixture.memory.allocate(MemoryKind::Device, host.len())?;
        Self::between((host, device), shape, up)
    }

    /// Pieces of two pools, each as long as all of them: in order in the first, which is the source if `up`, scattered in the second.
    pub(super) fn between(
        (host, device): (RawBuffer, RawBuffer),
        (count, bytes): (usize, usize),
        up: bool,
    ) -> Result<Self> {
        let total = count * bytes;
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
        let (host_address, device_address) = (address(&host)?, address(&device)?);
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

impl Pieces {
    /// Pieces of memory of two kinds: at source and destination each lies so many bytes after the one before, from an offset on. At the
    /// destination they lie in the opposite order, so that none are joined.
    pub(super) fn placed(
        fixture: &Fixture<'_>,
        kinds: [MemoryKind; 2],
        (count, bytes): (usize, usize),
        [source, destination]: [(usize, usize); 2],
    ) -> Result<Self> {
        let [src_len, dst_len] = [source, destination].map(|(step, first)| first + count * step);
        let [src, dst] = kinds;
        let (src, dst) = (fixture.memory.allocate(src, src_len)?, fixture.memory.allocate(dst, dst_len)?);
        let content = Content::new(src_len, 0x0DD + count as u64).part(0, src_len).to_vec();
        Memory::Ours(src.clone()).write(0, &content)?;
        let mut pieces = Self {
            pairs: Vec::with_capacity(count),
            sources: Vec::with_capacity(count),
            destinations: Vec::with_capacity(count),
            sizes: vec![bytes; count],
            from: (src.clone(), Vec::new()),
            to: (dst.clone(), Vec::new()),
            target: Memory::Ours(dst.clone()),
            // Nothing may be written between the pieces.
            expected: vec![POISON; dst_len],
        };
        let (from_address, to_address) = (address(&src)?, address(&dst)?);
        for index in 0..count {
            let (from, to) = placed(index, count, [source, destination]);
            pieces.pairs.push((src.slice(from..from + bytes)?, dst.slice(to..to + bytes)?));
            pieces.sources.push(from_address + from as u64);
            pieces.destinations.push(to_address + to as u64);
            if let (Some(expected), Some(content)) =
                (pieces.expected.get_mut(to..to + bytes), content.get(from..from + bytes))
            {
                expected.copy_from_slice(content);
            }
        }
        Ok(pieces)
    }
}

/// Returns the offsets of a piece at source and destination, of as many pieces with such steps and first offsets.
pub(super) fn placed(index: usize, count: usize, [from, to]: [(usize, usize); 2]) -> (usize, usize) {
    (from.1 + index * from.0, to.1 + (count - 1 - index) * to.0)
}

/// Returns the address of memory for the driver's calls and kernels, which for pinned memory is that of the host.
fn address(buffer: &RawBuffer) -> Result<u64> {
    Ok(match Memory::Ours(buffer.clone()).address()? {
        Address::Host(address) => address.as_ptr().expose_provenance() as u64,
        Address::Device(address) => address,
    })
}

impl Verify for Pieces {
    fn poison(&self) -> Result<()> {
        self.target.poison()
    }

    fn check(&self) -> Result<()> {
        self.target.compare(0, &self.expected)
    }
}
