//! Transfers if the system refuses threads. A binary of its own, since the limit is per process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

#[allow(dead_code, unused_imports, reason = "shared with tests that use more of it")]
#[path = "it/mock.rs"]
mod mock;
#[allow(dead_code, reason = "as above")]
#[path = "it/mock_memory.rs"]
mod mock_memory;
#[path = "it/mock_queue.rs"]
mod mock_queue;
#[path = "../../executor/tests/shared/no_threads.rs"]
mod no_threads;
#[path = "it/watchdog.rs"]
mod watchdog;

use std::sync::{Arc, Mutex};

use mock::{MOCK, Mock};
use mock_memory::{bytes, set_bytes};
use no_threads::NoThreads;
use transload_core::{DeviceId, ErrorKind, MemoryKind, ResourceCounts, TransferMethod};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

const BYTES: usize = 1 << 20;

/// No test starts a thread while another one has none.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn transfers_need_no_new_thread_or_end_with_an_error() {
    let _alone = ALONE.lock();
    watchdog::within("transfers without a spare thread", || {
        let backend = Mock { concurrent_managed_access: true, ..Mock::default() }.build();
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(Arc::clone(&backend) as _).unwrap();
        let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
        let [there, unified] = [MemoryKind::Device, MemoryKind::Unified]
            .map(|kind| manager.allocate(MOCK, kind, BYTES).unwrap());
        set_bytes(&host, 1);
        let by = |method| TransferOptions::new().only(method);
        let (staged, by_host) = (by(TransferMethod::HostStaged), by(TransferMethod::UnifiedMemory));
        let move_to = |dst, options: &TransferOptions| manager.copy(&host, dst).options(*options).submit();

        // Starts the workers, and pins all that a staged transfer needs.
        manager.prepare(host.place(), there.place(), &staged).unwrap();
        let none = NoThreads::new();
        move_to(&there, &staged).wait().unwrap();
        assert_eq!(bytes(&there), vec![1; BYTES]);
        // The thread that submits pins the first buffer; no other can.
        manager.drain().unwrap();
        set_bytes(&host, 2);
        move_to(&there, &staged).wait().unwrap();
        assert_eq!(bytes(&there), vec![2; BYTES]);
        // A task that ends early, which no other thread can wait for.
        backend.panic_at_enqueues(0, 1);
        let error = pollster::block_on(move_to(&unified, &by_host)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        manager.drain().unwrap();
        drop(none);

        for (dst, options) in [(&there, &staged), (&unified, &by_host)] {
            move_to(dst, options).wait().unwrap();
            assert_eq!(bytes(dst), vec![2; BYTES]);
        }
        drop((host, there, unified));
        manager.drain().unwrap();
        assert_eq!(manager.resource_counts()[0].1, ResourceCounts::default());
    });
}

#[test]
fn call_on_the_only_spare_thread_waits_for_no_other() {
    const LONG: usize = 64 << 20;
    let _alone = ALONE.lock();
    watchdog::within("preparation by a spare thread", || {
        let manager = Arc::new(CrossBackendTransferManager::new());
        manager.register_backend(Mock::default().build() as _).unwrap();
        let there = manager.allocate(MOCK, MemoryKind::Device, LONG).unwrap();
        let staged = TransferOptions::new().only(TransferMethod::HostStaged);
        // Starts the workers and one spare thread. One buffer is pinned.
        let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
        manager.copy(&host, &there.slice(..BYTES).unwrap()).options(staged).wait().unwrap();
        drop(host);
        pollster::block_on(manager.spawn_blocking(|| ())).unwrap();
        let before = manager.ring_bytes();
        let none = NoThreads::new();
        let by_call = Arc::clone(&manager);
        let call = manager.spawn_blocking(move || {
            let host = by_call.allocate(DeviceId::Cpu, MemoryKind::Pageable, LONG)?;
            let transfer = by_call.copy(&host, &there).options(staged).submit();
            // The call that allocates another buffer is queued after this one.
            while by_call.ring_bytes() == before {
                std::thread::yield_now();
            }
            by_call.prepare(host.place(), there.place(), &staged)?;
            transfer.wait()
        });
        pollster::block_on(call).unwrap().unwrap();
        drop(none);
        manager.drain().unwrap();
        assert_eq!(manager.resource_counts()[0].1, ResourceCounts::default());
    });
}
