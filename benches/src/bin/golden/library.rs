//! The library on two simulated devices, new for each group of operations, as is the thread, so that none changes what another
//! one does.

use std::thread;

use anyhow::{Result, bail};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_benches::grid;
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, TransferPath};
use transload_cuda_sim::SimDevice;
use transload_profiler::StreamProfiler;
use transload_transfer::{CrossBackendTransferManager, Sampling};

pub(crate) struct Library {
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) devices: [SimDevice; 2],
}

impl Library {
    /// No transfer is measured unless it says so, since one in some would do more than the others.
    fn new(profiler: Option<&StreamProfiler>) -> Result<Self> {
        let devices = [1, 2].map(|seed| SimDevice::builder().seed(seed).build());
        let mut builder = CrossBackendTransferManager::builder().sampling(Sampling::Off);
        if let Some(profiler) = profiler {
            builder = builder.observer(profiler.observer());
        }
        let manager = builder.build();
        manager.register_backend(CpuBackend::new()?)?;
        let config = CudaBackendConfig::default().with_devices(devices.map(|device| device.ordinal()));
        manager.register_backend(CudaBackend::open(&config)?)?;
        Ok(Self { manager, devices })
    }

    /// Runs `work` with a new library on a new thread, and ends what that leaves behind.
    pub(crate) fn with(
        profiler: Option<&StreamProfiler>,
        work: impl FnOnce(&Self) -> Result<()> + Send,
    ) -> Result<()> {
        let run = || {
            let library = Self::new(profiler)?;
            work(&library)?;
            Ok(library.manager.drain()?)
        };
        let ended = thread::scope(|scope| scope.spawn(run).join());
        ended.unwrap_or_else(|_| bail!("the thread panicked"))
    }

    pub(crate) fn device(&self) -> DeviceId {
        DeviceId::Cuda(self.devices[0].ordinal())
    }

    /// Returns the paths, without those of mapped memory, which is copied like pinned memory.
    pub(crate) fn paths(&self) -> Vec<TransferPath> {
        let mut paths = grid::method_paths(self.device(), Some(DeviceId::Cuda(self.devices[1].ordinal())));
        paths.retain(|path| ![path.src.kind, path.dst.kind].contains(&MemoryKind::Mapped));
        paths.extend(grid::cpu_paths());
        paths
    }

    /// Returns a path's name, which does not depend on the devices' numbers.
    pub(crate) fn name(&self, path: TransferPath) -> String {
        let name = |place: Place| match place.device {
            DeviceId::Cuda(ordinal) if ordinal == self.devices[1].ordinal() => format!("peer.{}", place.kind),
            DeviceId::Cuda(_) => format!("cuda.{}", place.kind),
            _ => format!("cpu.{}", place.kind),
        };
        format!("{}-to-{}", name(path.src), name(path.dst))
    }

    pub(crate) fn allocate(&self, place: Place, bytes: usize) -> Result<RawBuffer> {
        Ok(match (place.device, place.kind) {
            (DeviceId::Cpu, MemoryKind::Pageable) => {
                self.manager.allocate(DeviceId::Cpu, place.kind, bytes)?
            }
            (DeviceId::Cpu, kind) => self.manager.allocate_for(self.device(), kind, bytes)?,
            (device, kind) => self.manager.allocate_for(device, kind, bytes)?,
        })
    }
}
