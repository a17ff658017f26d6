//! A device with its memory and an importer.

use transload_core::{MemoryKind, RawBuffer};
use transload_cuda_sim::harness::{self, EndCheck, TestDevice};
use transload_dlpack::Importer;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

pub(crate) struct Setup {
    pub(crate) test: TestDevice,
    pub(crate) device: CudaDevice,
    pub(crate) memory: CudaMemoryManager,
    pub(crate) importer: Importer,
    /// Dropped last. Tests that race or leak on purpose remove it.
    pub(crate) _end: Option<EndCheck>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::on(harness::device())
    }

    pub(crate) fn on(test: TestDevice) -> Self {
        let device = CudaDevice::new(test.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let importer = Importer::new().with_device(&device);
        Self { test, device, memory, importer, _end: Some(test.end_check()) }
    }

    pub(crate) fn pinned(&self, content: &[u8]) -> RawBuffer {
        let buffer = self.memory.allocate(MemoryKind::Pinned, content.len()).unwrap();
        buffer.write().unwrap().copy_from_slice(content);
        buffer
    }

    pub(crate) fn device(&self, bytes: usize) -> RawBuffer {
        self.memory.allocate(MemoryKind::Device, bytes).unwrap()
    }

    /// Returns the bytes of any buffer of the device.
    pub(crate) fn read(&self, buffer: &RawBuffer) -> Vec<u8> {
        let back = self.pinned(&vec![0; buffer.len()]);
        CudaStream::new(&self.device).unwrap().copy_to_host_async(buffer, &back).wait().unwrap();
        back.read().unwrap().to_vec()
    }

    /// Releases everything and checks that nothing is alive and no drop failed.
    pub(crate) fn finish(self) {
        let Self { memory, importer, .. } = &self;
        importer.drain().unwrap();
        assert!(importer.resource_counts().is_empty(), "{}", importer.resource_counts());
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    }
}
