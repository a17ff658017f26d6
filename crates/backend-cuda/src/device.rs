//! One device of the backend: its memory and its streams, made on first use.

use std::sync::OnceLock;

use transload_core::{DeviceInfo, MemoryKind, Result};
use transload_cuda_sys::Driver;
use transload_memory::{CudaDevice, CudaFeature, CudaMemoryManager, lift};
use transload_streams::AdvancedStreamPool;

use crate::CudaBackendConfig;

pub(crate) struct Member {
    pub(crate) device: CudaDevice,
    info: DeviceInfo,
    memory: OnceLock<CudaMemoryManager>,
    pub(crate) pool: AdvancedStreamPool,
}

impl Member {
    pub(crate) fn new(driver: Driver, device: CudaDevice, config: &CudaBackendConfig) -> Result<Self> {
        let handle = device.driver();
        let mut info = DeviceInfo::new(device.id(), handle.name().map_err(lift)?);
        info.total_memory = Some(handle.total_memory().map_err(lift)? as u64);
        info.uuid = handle.uuid().ok();
        info.driver = format!("CUDA {} ({})", driver.version(), driver.origin());
        info.simulated = driver.is_simulated();
        info.kinds = vec![MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped];
        if device.supports_feature(CudaFeature::ManagedMemory)? {
            info.kinds.push(MemoryKind::Unified);
            info.unified_beside_host = device.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
        }
        let pool = config.pool(&device)?;
        Ok(Self { device, info, memory: OnceLock::new(), pool })
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) fn memory(&self) -> Result<&CudaMemoryManager> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let made = CudaMemoryManager::new(&self.device)?;
        Ok(self.memory.get_or_init(|| made))
    }

    /// The memory manager, if anything was allocated yet.
    pub(crate) fn memory_if_used(&self) -> Option<&CudaMemoryManager> {
        self.memory.get()
    }
}
