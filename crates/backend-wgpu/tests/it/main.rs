//! The backend on every Vulkan adapter of the machine, and by wgpu's own interface on those and OpenGL's: what the conformance suite of
//! core does not cover.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![cfg(any(target_os = "linux", windows))]

mod adapters;
mod adopted;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod between;
mod copies;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod cuda;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod exported;
mod framework;
mod layer;
mod managed;
mod mapped;
mod portable;
mod shaders;
mod waiting;

use std::sync::Arc;

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::WgpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, Fence, MemoryKind, Operation, QueueLease, RawBuffer, StreamPriority,
    Timing, WorkloadType, submit,
};

use framework::skip;

const MIB: usize = 1 << 20;

/// A device, and the host.
struct Setup {
    backend: Arc<WgpuBackend>,
    host: Arc<CpuBackend>,
    device: DeviceId,
}

/// Returns the last device, which is a software adapter if there is one; none, with a printed reason, if there is no adapter.
fn setup() -> Option<Setup> {
    let backend = match WgpuBackend::open(&framework::tested().0) {
        Ok(backend) => backend,
        Err(error) if matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice) => {
            skip(error);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let device = backend.devices().pop().unwrap().id;
    Some(Setup { backend, host: CpuBackend::new().unwrap(), device })
}

impl Setup {
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> RawBuffer {
        let kinds = &self.backend.devices()[0].kinds;
        match kind {
            MemoryKind::Pageable => self.host.allocate(DeviceId::Cpu, kind, bytes).unwrap(),
            // Those that are used by wgpu's own interface have none.
            MemoryKind::Pinned if !kinds.contains(&kind) => self.allocate(MemoryKind::Pageable, bytes),
            _ => self.backend.allocate(self.device, kind, bytes).unwrap(),
        }
    }

    /// Host memory of a kind, every byte of which is the same.
    fn filled(&self, kind: MemoryKind, bytes: usize, byte: u8) -> RawBuffer {
        let buffer = self.allocate(kind, bytes);
        buffer.write().unwrap().fill(byte);
        buffer
    }

    fn queue(&self) -> QueueLease {
        self.backend.lease_queue(self.device, StreamPriority::Normal, WorkloadType::Memory).unwrap()
    }

    fn assert_empty(&self) {
        self.backend.drain().unwrap();
        assert!(self.backend.resource_counts().is_empty(), "{}", self.backend.resource_counts());
    }
}

fn copy(queue: &QueueLease, src: &RawBuffer, dst: &RawBuffer) -> Fence {
    submit(&**queue, &Operation::Copy { src, dst }, Timing::Off).unwrap()
}
