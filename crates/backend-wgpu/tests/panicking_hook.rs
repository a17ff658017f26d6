//! A hook of the host's accesses that panics in the middle of an operation. In a process of its own: there is one hook.
#![cfg(any(target_os = "linux", windows))]

use std::{cell::Cell, env};

use transload_backend_cpu::CpuBackend;
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType,
    host_access, submit,
};

const BYTES: usize = 5 << 20;

thread_local! {
    /// Accesses of this thread until one panics; 0 if none does.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn panic_in_the_middle_of_a_copy_is_its_failure_and_leaves_nothing_in_flight() {
    let config = WgpuBackendConfig::default().with_software_adapters().with_apis(wgpu::Backends::VULKAN);
    let backend = match WgpuBackend::open(&config) {
        Ok(backend) => backend,
        Err(error) if env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none() => {
            return println!("skipped: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    host_access::set_hook(|_, _, _| {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        assert!(left != 1, "planted");
    });
    let device = backend.devices().pop().unwrap().id;
    let host = CpuBackend::new().unwrap().allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
    host.write().unwrap().fill(7);
    let there = backend.allocate(device, MemoryKind::Device, BYTES).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer| {
        submit(&*queue, &Operation::Copy { src, dst }, Timing::Off).and_then(|fence| fence.wait())
    };
    for (src, dst) in [(&host, &there), (&there, &host)] {
        // The first accesses are those of parts that come before.
        LEFT.set(3);
        let failed = copy(src, dst).expect_err("the hook panicked");
        assert_eq!((failed.kind(), LEFT.replace(0)), (ErrorKind::Interrupted, 0), "{failed}");
        let unreadable = copy(dst, src).expect_err("a part was copied");
        assert_eq!(unreadable.kind(), ErrorKind::SourceFailed, "{unreadable}");
        copy(src, dst).unwrap();
    }
    assert!(host.read().unwrap().iter().all(|byte| *byte == 7));
    drop((queue, there));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
