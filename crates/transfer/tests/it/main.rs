//! The transfer manager on a mock backend that fails on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_use;
mod beside;
mod calibration;
mod calibration_memory;
mod calibration_turns;
mod cheapest;
mod choice;
mod copy;
mod cpu;
mod ended_early;
mod failure;
#[path = "../../../core/tests/shared/gate.rs"]
mod gate;
mod hook;
#[cfg(feature = "serde")]
mod list_choice;
mod list_events;
mod many;
mod mock;
mod mock_memory;
mod mock_queue;
mod movement;
mod observed;
mod observer;
mod overtaking;
mod parts;
mod property;
mod queue_limit;
mod recording;
mod refinement;
mod refusal;
mod registered;
mod registration;
mod ring_limit;
#[cfg(feature = "serde")]
mod serialized;
mod short_uploads;
mod staging;
mod statistics;
mod strided;
mod submitting;
mod tuning;
mod turns;
mod unobserved;
mod waited;
mod watchdog;

use std::sync::Arc;

use mock::{MOCK, Mock, MockBackend};
use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, MemoryKind, RawBuffer, ResourceCounts};
use transload_transfer::{CrossBackendTransferManager, Sampling};

/// Returns a manager with one mock backend.
fn with(mock: Mock) -> (CrossBackendTransferManager, Arc<MockBackend>) {
    let backend = mock.build();
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    (manager, backend)
}

fn sampled(sampling: Sampling) -> (CrossBackendTransferManager, Arc<MockBackend>) {
    let backend = Mock::default().build();
    let manager = CrossBackendTransferManager::builder().sampling(sampling).build();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    (manager, backend)
}

/// Returns a manager with the real CPU backend, and a mock for another device.
fn beside_cpu() -> (CrossBackendTransferManager, Arc<MockBackend>) {
    let devices = vec![(MOCK, vec![MemoryKind::Device, MemoryKind::Pinned])];
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let backend = Mock { devices, ..Mock::default() }.build();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    (manager, backend)
}

/// Returns a host buffer of ones and a device buffer of zeros.
fn pair(manager: &CrossBackendTransferManager, bytes: usize) -> (RawBuffer, RawBuffer) {
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, bytes).unwrap();
    mock::set_bytes(&src, 1);
    (src, dst)
}

fn is_at_rest(manager: &CrossBackendTransferManager) -> bool {
    manager.drain().is_ok()
        && manager.resource_counts().iter().all(|(_, ledger)| *ledger == ResourceCounts::default())
}
