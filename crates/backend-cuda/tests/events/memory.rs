//! Events of memory managers and their memory.

use std::sync::Arc;

use transload_core::{MemoryKind, QueueLease, events};
use transload_memory::{RegistrationCache, Role, UnifiedBuffer, UnifiedMode};
use transload_streams::CudaStream;

use crate::{Fixture, MIB, OUT_OF_MEMORY, UNKNOWN, find, find_one, record};

const BYTES: usize = 4000;

#[test]
fn allocation_after_a_shortage_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        fixture.sim.fail_call(Some("cuMemHostAlloc"), 1, OUT_OF_MEMORY);
        drop(fixture.memory.allocate(MemoryKind::Pinned, BYTES).unwrap());
    });
    let retried = find_one(&records, events::ALLOCATION_RETRIED, events::MEMORY, &["how"]);
    let fields = ["place", "bytes"].map(|field| retried.field(field).unwrap());
    assert_eq!(fields, ["cpu/pinned", "4000"]);
}

#[test]
fn release_that_fails_during_a_shortage_is_reported() {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        drop(fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap());
        fixture.sim.fail_call(Some("cuMemHostAlloc"), 1, OUT_OF_MEMORY);
        fixture.sim.fail_call(Some("cuMemPoolTrimTo"), 1, UNKNOWN);
        fixture.memory.allocate(MemoryKind::Pinned, BYTES).unwrap_err();
    });
    let failed = find_one(&records, events::CALL_FAILED, events::DRIVER, &["what"]);
    assert_eq!(failed.field("device"), Some(&*name));
    assert!(failed.field("error").unwrap().contains("cuMemPoolTrimTo"));
}

#[test]
fn failed_free_is_reported() {
    let records = record(|| {
        let fixture = Fixture::new();
        fixture.sim.fail_call(Some("cuMemFreeHost"), 1, UNKNOWN);
        drop(fixture.memory.allocate(MemoryKind::Pinned, BYTES).unwrap());
        fixture.memory.drain().unwrap();
        drop(transload_cuda_sys::take_drop_errors());
        std::mem::forget(fixture.sim);
    });
    let failed = find_one(&records, events::DROP_FAILED, events::DRIVER, &[]);
    assert!(failed.field("error").unwrap().contains("cuMemFreeHost"));
}

#[test]
fn lost_context_is_reported_once() {
    let mut name = String::new();
    let records = record(|| {
        let fixture = Fixture::new();
        name = fixture.name();
        fixture.sim.poison(700);
        for _ in 0..3 {
            fixture.memory.allocate(MemoryKind::Device, BYTES).unwrap_err();
        }
        drop(fixture.memory.drain());
    });
    let lost = find_one(&records, events::CONTEXT_LOST, events::DRIVER, &["error"]);
    assert_eq!((lost.field("device"), lost.level), (Some(&*name), tracing::Level::ERROR));
}

#[test]
fn registrations_are_reported_with_failures() {
    let records = record(|| {
        let fixture = Fixture::new();
        let cache = RegistrationCache::new(&fixture.memory, u64::MAX).unwrap();
        let host = transload_backend_cpu::CpuBackend::new().unwrap();
        let [one, two] = [0; 2].map(|_| {
            let device = transload_core::DeviceId::Cpu;
            transload_core::Backend::allocate(&*host, device, MemoryKind::Pageable, MIB).unwrap()
        });
        drop(cache.register(&one).unwrap());
        cache.trim().unwrap();
        drop(cache.register(&two).unwrap());
        fixture.sim.fail_call(Some("cuMemHostUnregister"), 1, UNKNOWN);
        cache.trim().unwrap_err();
        std::mem::forget(fixture.sim);
    });
    let began = find(&records, events::HOST_REGISTERED, events::MEMORY, &["address", "bytes", "elapsed_ns"]);
    let ended = find(&records, events::HOST_UNREGISTERED, events::MEMORY, &["address"]);
    let addresses = |of: &[&crate::event_log::Record]| -> Vec<_> {
        of.iter().map(|record| record.field("address").map(str::to_owned)).collect()
    };
    assert_eq!((addresses(&began), began.len()), (addresses(&ended), 2));
    assert_eq!(ended[0].field("error"), None);
    assert!(ended[1].field("error").unwrap().contains("cuMemHostUnregister"));
}

#[cfg(target_os = "linux")]
#[test]
fn pages_that_were_not_granted_are_reported() {
    use transload_memory::{HostPages, MemoryResource, PinnedResource};

    let records = record(|| {
        let fixture = Fixture::new();
        fixture.sim.fail_call(Some("cuMemHostRegister_v2"), 1, 801);
        let resource = PinnedResource::new(&fixture.memory);
        // Huge pages if the system has them, which cannot be registered here; else the driver's.
        drop(resource.allocate_segment(4 * MIB).unwrap());
        // The same without huge pages.
        drop(resource.with_pages(HostPages::Huge).allocate_segment(4 * MIB).ok());
        fixture.memory.drain().unwrap();
    });
    let declined = find(&records, events::PAGES_DECLINED, events::MEMORY, &["error"]);
    let what = declined[0].field("what").unwrap();
    assert!(["registered pages", "huge pages"].contains(&what), "{what}");
    assert_eq!(declined[0].field("bytes"), Some("4194304"));
}

struct Unified {
    stream: CudaStream,
    fixture: Fixture,
}

impl Unified {
    fn new() -> Self {
        let fixture = Fixture::new();
        Self { stream: CudaStream::new(&fixture.device).unwrap(), fixture }
    }

    fn buffer(&self, mode: UnifiedMode) -> UnifiedBuffer<u8> {
        let queue = QueueLease::new(Arc::new(self.stream.clone()));
        UnifiedBuffer::new_with_mode(&self.fixture.memory, queue, BYTES, mode).unwrap()
    }
}

#[test]
fn failed_upload_of_a_unified_buffer_is_reported() {
    let mut name = String::new();
    let records = record(|| {
        let unified = Unified::new();
        name = unified.fixture.name();
        let buffer = unified.buffer(UnifiedMode::Explicit);
        let mut slice = buffer.write_range(..BYTES / 2).unwrap();
        slice.fill(1);
        unified.fixture.sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
        drop(slice);
        assert_eq!(buffer.read().unwrap()[0], 1);
        drop(buffer);
        unified.fixture.memory.drain().unwrap();
    });
    let failed = find_one(&records, events::UNIFIED_COPY_FAILED, events::MEMORY, &["error"]);
    assert_eq!((failed.field("device"), failed.field("bytes")), (Some(&*name), Some("2000")));
}

#[test]
fn prefetch_that_a_host_view_prevents_is_reported() {
    let mut name = String::new();
    let records = record(|| {
        let unified = Unified::new();
        name = unified.fixture.name();
        let buffer = unified.buffer(UnifiedMode::Managed);
        let view = buffer.read().unwrap();
        drop(buffer.acquire_for_device(&unified.stream, Role::Input).unwrap());
        drop(view);
        drop(buffer);
        unified.fixture.memory.drain().unwrap();
    });
    let declined = find_one(&records, events::HINT_DECLINED, events::MEMORY, &["what", "bytes", "error"]);
    assert_eq!(declined.field("device"), Some(&*name));
}
