//! Pinned sources with random contents and device destinations, shared by all variants.

use std::os::raw::c_void;

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};

use super::{Fixture, Verify};
use crate::{content::Content, memory::Memory};

/// Source and destination of a copy.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) host: RawBuffer,
    pub(crate) device: RawBuffer,
    /// The source's address; `dst` is the destination's.
    pub(crate) src: *const c_void,
    pub(crate) dst: u64,
}

// SAFETY: the address is that of the buffer, which may be used from any thread.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// Pairs of one size.
pub(crate) struct Pairs {
    pub(crate) list: Vec<Pair>,
    contents: Vec<Vec<u8>>,
}

impl Pairs {
    /// Creates `count` destinations that share `sources` sources.
    pub(crate) fn new(fixture: &Fixture<'_>, count: usize, sources: usize, bytes: usize) -> Result<Self> {
        let mut content = Content::new(bytes, 0x5EED + count as u64);
        let mut hosts = Vec::new();
        for _ in 0..sources.min(count) {
            let host = fixture.memory.allocate(MemoryKind::Pinned, bytes)?;
            let start = content.draw();
            let bytes = content.part(start, bytes).to_vec();
            Memory::Ours(host.clone()).write(0, &bytes)?;
            hosts.push((host, bytes));
        }
        let mut pairs = Self { list: Vec::with_capacity(count), contents: Vec::with_capacity(count) };
        for (host, content) in hosts.iter().cycle().take(count) {
            let device = fixture.memory.allocate(MemoryKind::Device, bytes)?;
            let src = host.host_address().context("pinned memory without a host address")?;
            let dst = device.device_address().context("device memory without an address")?;
            let (host, src) = (host.clone(), src.as_ptr().cast_const().cast());
            pairs.list.push(Pair { host, device, src, dst });
            pairs.contents.push(content.clone());
        }
        Ok(pairs)
    }
}

impl Verify for Pairs {
    fn poison(&self) -> Result<()> {
        self.list.iter().try_for_each(|pair| Memory::Ours(pair.device.clone()).poison())
    }

    fn check(&self) -> Result<()> {
        for (index, (pair, content)) in self.list.iter().zip(&self.contents).enumerate() {
            let what = || format!("destination {index} of {}", self.list.len());
            Memory::Ours(pair.device.clone()).compare(0, content).with_context(what)?;
        }
        Ok(())
    }
}
