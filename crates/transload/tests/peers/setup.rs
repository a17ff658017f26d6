//! The transfer manager over the host and two CUDA devices.

use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, Place, RawBuffer,
    backend::TransferPath,
    cpu::CpuBackend,
    cuda::{CudaBackend, CudaBackendConfig},
};
use transload_cuda_sim::harness::TestDevice;
pub(crate) use transload_cuda_sim::harness::noise;

pub(crate) struct Setup {
    pub(crate) tests: [TestDevice; 2],
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) devices: [DeviceId; 2],
}

impl Setup {
    pub(crate) fn over(tests: [TestDevice; 2]) -> Self {
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let ordinals = tests.map(|test| test.ordinal());
        let config = CudaBackendConfig::default().with_devices(ordinals);
        manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        Self { tests, manager, devices: ordinals.map(DeviceId::Cuda) }
    }

    /// Allocates device memory on one of the two devices.
    pub(crate) fn on(&self, which: usize, bytes: usize) -> RawBuffer {
        self.manager.allocate_for(self.devices[which], MemoryKind::Device, bytes).unwrap()
    }

    pub(crate) fn pinned(&self, content: &[u8]) -> RawBuffer {
        let buffer = self.manager.allocate_for(self.devices[0], MemoryKind::Pinned, content.len()).unwrap();
        buffer.write().unwrap().copy_from_slice(content);
        buffer
    }

    pub(crate) fn filled(&self, which: usize, content: &[u8]) -> RawBuffer {
        let buffer = self.on(which, content.len());
        self.manager.copy(&self.pinned(content), &buffer).wait().unwrap();
        buffer
    }

    pub(crate) fn content(&self, buffer: &RawBuffer) -> Vec<u8> {
        let host = self.pinned(&vec![0xEE; buffer.len()]);
        self.manager.copy(buffer, &host).wait().unwrap();
        host.read().unwrap().to_vec()
    }

    /// A copy from one device's memory to the other's.
    pub(crate) fn path(&self, from: usize, to: usize) -> TransferPath {
        let place = |which: usize| Place::new(self.devices[which], MemoryKind::Device);
        TransferPath::new(place(from), place(to))
    }

    /// Drains, and checks that nothing is alive and nothing raced.
    pub(crate) fn finish(self) {
        self.manager.drain().unwrap();
        for (name, ledger) in self.manager.resource_counts() {
            assert!(ledger.is_empty(), "{name}: {ledger}");
        }
        let Self { tests, manager, .. } = self;
        drop(manager);
        for test in tests {
            test.assert_no_races();
            test.assert_no_live_objects();
        }
    }
}
