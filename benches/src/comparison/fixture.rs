//! Shared state of a group's rows.

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

/// A device, its memory manager, and the options.
pub(crate) struct Fixture<'a> {
    /// Prefix of the rows' ids.
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

    /// Returns the context of a device that takes part in this run.
    #[cfg(target_os = "linux")]
    pub(crate) fn context_of(&self, device: DeviceId) -> Result<&Context> {
        self.session.context(device)
    }

    /// Binds the device's context to this thread, for raw driver calls.
    pub(crate) fn bind(&self) -> Result<()> {
        self.session.bind()
    }

    /// Unbinds the context from this thread.
    pub(crate) fn unbind(&self) -> Result<()> {
        self.session.unbind()
    }

    /// Returns whether a part of the group is selected.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.options.wants_part(part)
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.session.is_simulated()
    }

    /// Returns whether amounts on hardware are small, too.
    pub(crate) fn is_quick(&self) -> bool {
        self.options.quick
    }

    /// Returns to how many processors the process is kept, if it is.
    pub(crate) fn processors(&self) -> Option<usize> {
        self.options.processors.map(usize::from)
    }

    /// Returns the repetitions, given those of a full run on hardware: at least 30 there, few on the software driver, whose
    /// times mean nothing.
    pub(crate) fn repetitions(&self, good: usize) -> usize {
        match self.options.repetitions {
            Some(given) => given as usize,
            None if self.is_simulated() => 5,
            None if self.options.quick => 30,
            None => good,
        }
    }

    /// Like [`repetitions`](Self::repetitions), but of what takes long: more than the given ones only if an option asks for them.
    pub(crate) fn few_repetitions(&self, good: usize) -> usize {
        if self.options.repetitions.is_some() {
            self.repetitions(good)
        } else {
            self.repetitions(good).min(good)
        }
    }

    /// Returns a count, given that of hardware; smaller on the software driver.
    pub(crate) fn amount(&self, good: usize) -> usize {
        if self.is_simulated() { good.div_ceil(16).max(2) } else { good }
    }

    /// Like [`amount`](Self::amount), but for bytes, which the software driver copies slowly.
    pub(crate) fn bytes(&self, good: usize) -> usize {
        if self.is_simulated() { good >> 8 } else { good }
    }

    /// Creates a row that moves no bytes.
    pub(crate) fn row(&self, id: &str, what: &str, method: &str, unit: &'static str, values: Summary) -> Row {
        let (id, what) = (format!("{}/{id}", self.group), format!("{}: {what}", self.group));
        Row::new(id, what, method, 0, unit, values).obtained(self.is_simulated(), false)
    }

    /// Fails if memory is still allocated.
    pub(crate) fn finish(self) -> Result<()> {
        self.memory.drain()?;
        let counts = self.memory.resource_counts();
        ensure!(counts.is_empty(), "still allocated after the rows of {}: {counts}", self.group);
        Ok(())
    }
}
