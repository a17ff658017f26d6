//! A device with its memory manager, and distinguishable test data.

use transload_core::{MemoryKind, RawBuffer};
pub(crate) use transload_cuda_sim::harness::noise;
use transload_cuda_sim::harness::{self, EndCheck, TestDevice};
use transload_memory::{CudaDevice, CudaFeature, CudaMemoryManager};

pub(crate) struct Setup {
    pub(crate) test: TestDevice,
    pub(crate) device: CudaDevice,
    pub(crate) memory: CudaMemoryManager,
    /// Dropped last.
    _end: EndCheck,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::on(harness::device())
    }

    /// A device with prefetchable unified memory, or `None` with a printed reason.
    pub(crate) fn sharing() -> Option<Self> {
        let setup = Self::new();
        if setup.device.supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap() {
            return Some(setup);
        }
        println!("skipped: host and device cannot use unified memory at the same time");
        None
    }

    pub(crate) fn on(test: TestDevice) -> Self {
        let device = CudaDevice::new(test.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        Self { test, device, memory, _end: test.end_check() }
    }

    pub(crate) fn pinned(&self, content: &[u8]) -> RawBuffer {
        let buffer = self.memory.allocate(MemoryKind::Pinned, content.len()).unwrap();
        buffer.write().unwrap().copy_from_slice(content);
        buffer
    }

    pub(crate) fn device(&self, bytes: usize) -> RawBuffer {
        self.memory.allocate(MemoryKind::Device, bytes).unwrap()
    }

    /// Frees everything, and checks that nothing leaked, as every drop does, and that nothing was lost.
    pub(crate) fn finish(self) {
        self.memory.drain().unwrap();
        assert!(self.memory.resource_counts().is_empty(), "{}", self.memory.resource_counts());
    }
}

/// Seeds 0 to `usual`; `TRANSLOAD_TEST_ROUNDS` multiplies their number, `TRANSLOAD_SIM_SEED` sets the first.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let first = std::env::var("TRANSLOAD_SIM_SEED").map_or(0, |_| transload_cuda_sim::seed());
    first..first.saturating_add(usual * u64::from(harness::rounds()))
}
