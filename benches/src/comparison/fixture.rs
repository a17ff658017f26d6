//! What all rows of a group are made with.

use std::sync::Arc;

use anyhow::{Result, ensure};
use transload_core::DeviceId;
use transload_cuda_sys::Context;
use transload_memory::{CudaDevice, CudaMemoryManager};

use super::cudarc_baseline::CudarcBaseline;
use crate::{
    case::Testbed as _,
    cuda::Session,
    options::Options,
    reference::Spin,
    row::{Row, Summary},
};

/// One device, memory on it, and how thoroughly it is measured.
pub(crate) struct Fixture<'a> {
    /// What the rows' identities begin with.
    pub(crate) group: &'static str,
    session: &'a Session,
    pub(crate) device: CudaDevice,
    pub(crate) memory: Arc<CudaMemoryManager>,
    /// cudarc on the same device.
    pub(crate) cudarc: Option<CudarcBaseline>,
    pub(crate) spin: Spin,
    options: &'a Options,
}

impl<'a> Fixture<'a> {
    pub(crate) fn new(
        group: &'static str,
        options: &'a Options,
        session: &'a Session,
        ordinal: u32,
    ) -> Result<Self> {
        let device = CudaDevice::new(ordinal)?;
        let memory = Arc::new(CudaMemoryManager::new(&device)?);
        let cudarc = if session.is_simulated() { None } else { CudarcBaseline::open(ordinal)? };
        Ok(Self { group, session, device, memory, cudarc, spin: Spin::load()?, options })
    }

    pub(crate) fn context(&self) -> Result<&Context> {
        self.session.context(DeviceId::Cuda(self.device.ordinal()))
    }

    /// Binds the device's context to this thread, as the raw driver needs it.
    pub(crate) fn bind(&self) -> Result<()> {
        self.session.bind()
    }

    /// Leaves this thread without a context.
    pub(crate) fn unbind(&self) -> Result<()> {
        self.session.unbind()
    }

    /// Whether a part of its rows is wanted.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.options.wants_part(part)
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.session.is_simulated()
    }

    /// How often a variant is repeated, given how often would be good on hardware. Never below 30 there; the software driver's
    /// times say nothing, so that its rows only show that they run.
    pub(crate) fn repetitions(&self, good: usize) -> usize {
        match self.options.repetitions {
            Some(given) => given as usize,
            None if self.is_simulated() => 5,
            None if self.options.quick => 30,
            None => good,
        }
    }

    /// How large something is made, given what is good on hardware.
    pub(crate) fn amount(&self, good: usize) -> usize {
        if self.is_simulated() { good.div_ceil(16).max(2) } else { good }
    }

    /// Like [`amount`](Self::amount), of bytes that the software driver would take long over.
    pub(crate) fn bytes(&self, good: usize) -> usize {
        if self.is_simulated() { good >> 8 } else { good }
    }

    /// A row that moves no bytes.
    pub(crate) fn row(&self, id: &str, what: &str, method: &str, unit: &'static str, values: Summary) -> Row {
        let (id, what) = (format!("{}/{id}", self.group), format!("{}: {what}", self.group));
        Row::new(id, what, method, 0, unit, values).obtained(self.is_simulated(), false)
    }

    /// Whether all memory is gone.
    pub(crate) fn finish(self) -> Result<()> {
        self.memory.drain()?;
        let ledger = self.memory.resource_counts();
        ensure!(ledger.is_empty(), "still alive after the rows of {}: {ledger}", self.group);
        Ok(())
    }
}
