//! Destinations whose bytes are compared after the last measurement.

use anyhow::{Result, ensure};
use transload_backend_wgpu::wgpu;
use transload_core::{MemoryKind, RawBuffer};

use super::{Adapter, plain::Plain};
use crate::{
    comparison::Verify,
    memory::{Memory, POISON},
};

/// Where the bytes arrive.
#[derive(Clone)]
pub(super) enum Target {
    /// Memory of the host.
    Host(RawBuffer),
    /// Device memory of the backend.
    Ours(RawBuffer),
    /// A buffer of wgpu's device.
    Plain(Plain, wgpu::Buffer),
    /// One that the host reads where it is mapped.
    Read(Plain, wgpu::Buffer),
}

/// A destination, and what it has to hold.
pub(super) struct Checked<'a> {
    pub(super) adapter: &'a Adapter<'a>,
    pub(super) target: Target,
    pub(super) expected: &'a [u8],
}

impl Verify for Checked<'_> {
    fn poison(&self) -> Result<()> {
        let (adapter, bytes) = (self.adapter, self.expected.len());
        match &self.target {
            Target::Host(buffer) => Memory::Ours(buffer.clone()).poison(),
            Target::Ours(buffer) => {
                adapter.copy(&adapter.filled(MemoryKind::Pageable, &vec![POISON; bytes])?, buffer)
            }
            Target::Plain(plain, buffer) | Target::Read(plain, buffer) => {
                plain.write(buffer, &vec![POISON; bytes])
            }
        }
    }

    fn check(&self) -> Result<()> {
        let back = self.adapter.allocate(MemoryKind::Pageable, self.expected.len())?;
        match &self.target {
            Target::Host(buffer) => return Memory::Ours(buffer.clone()).compare(0, self.expected),
            Target::Ours(buffer) => self.adapter.copy(buffer, &back)?,
            Target::Plain(plain, buffer) => {
                let found = plain.download(buffer, self.expected.len())?;
                ensure!(found == self.expected, "the bytes of wgpu's buffer differ");
                return Ok(());
            }
            Target::Read(plain, buffer) => {
                let mut found = vec![0; self.expected.len()];
                plain.read(buffer, &mut found)?;
                ensure!(found == self.expected, "the bytes of wgpu's mapped buffer differ");
                return Ok(());
            }
        }
        Memory::Ours(back).compare(0, self.expected)
    }
}
