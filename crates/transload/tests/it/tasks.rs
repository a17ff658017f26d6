//! Under tokio, no worker is blocked by work in flight: thousands of concurrent transfers, tasks that depend on each
//! other in a single-threaded runtime, aborted tasks.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};
use transload::{
    CrossBackendTransferManager, DeviceId, MemoryKind, RawBuffer, TransferMethod, TransferOptions,
    backend::{Access, Claims, host_access},
    cpu::CpuBackend,
};

use crate::elsewhere;

/// A manager and the kinds of memory to move between; at the end of the test it is drained and empty.
pub(crate) struct Home {
    pub(crate) manager: Arc<CrossBackendTransferManager>,
    pub(crate) near: (DeviceId, MemoryKind),
    pub(crate) far: (DeviceId, MemoryKind),
    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    test: Option<transload_cuda_sim::harness::TestDevice>,
}

impl Home {
    fn host() -> Self {
        let manager = CrossBackendTransferManager::new();
        manager.register_backend(CpuBackend::new().unwrap()).unwrap();
        let near = (DeviceId::Cpu, MemoryKind::Pageable);
        Self {
            manager: Arc::new(manager),
            near,
            far: near,
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            test: None,
        }
    }

    #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
    fn cuda(near: MemoryKind) -> Self {
        use transload::cuda::{CudaBackend, CudaBackendConfig};

        let (home, test) = (Self::host(), transload_cuda_sim::harness::device());
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        home.manager.register_backend(CudaBackend::open(&config).unwrap()).unwrap();
        let device = DeviceId::Cuda(test.ordinal());
        let near = (if near == MemoryKind::Pageable { DeviceId::Cpu } else { device }, near);
        Self { near, far: (device, MemoryKind::Device), test: Some(test), ..home }
    }

    pub(crate) fn all() -> Vec<Self> {
        vec![
            Self::host(),
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            Self::cuda(MemoryKind::Pinned),
            #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
            Self::cuda(MemoryKind::Pageable),
        ]
    }

    /// Adds how transfers are requested: as planned, and staged if possible.
    pub(crate) fn with_ways(self) -> Vec<(Arc<Self>, TransferOptions)> {
        let stages = self.near.1 == MemoryKind::Pageable && self.far != self.near;
        let home = Arc::new(self);
        let mut ways = vec![(Arc::clone(&home), TransferOptions::new())];
        if stages {
            ways.push((home, TransferOptions::new().only(TransferMethod::HostStaged)));
        }
        ways
    }

    pub(crate) fn allocate(&self, (device, kind): (DeviceId, MemoryKind), bytes: usize) -> RawBuffer {
        self.manager.allocate_for(device, kind, bytes).unwrap()
    }

    pub(crate) fn filled(&self, content: &[u8]) -> RawBuffer {
        let buffer = self.allocate(self.near, content.len());
        buffer.write().unwrap().copy_from_slice(content);
        buffer
    }

    pub(crate) fn finish(self) {
        self.manager.drain().unwrap();
        for (name, ledger) in self.manager.resource_counts() {
            assert!(ledger.is_empty(), "{name}: {ledger}");
        }
        assert_eq!(Arc::strong_count(&self.manager), 1, "a task that is over still has the manager");
        drop(self.manager);
        #[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
        if let Some(test) = self.test {
            // Another thread may be about to free what waits for host work used.
            drop(test.end_check());
        }
    }
}

pub(crate) fn one_thread() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

/// Fails instead of hanging: what blocks a runtime's only thread never ends.
pub(crate) fn within_two_minutes(what: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let worker = thread::spawn(move || {
        what();
        let _nobody_waits_any_more = done.send(());
    });
    if over.recv_timeout(Duration::from_secs(120)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("a worker is blocked: not over after two minutes");
    }
    worker.join().unwrap();
}

/// Work of no backend that completes when it is opened; no stream can wait for it.
pub(crate) struct Gate(elsewhere::Gate);

impl Gate {
    /// Uses a buffer exclusively until it is opened.
    pub(crate) fn before(buffer: &RawBuffer) -> Self {
        Self(elsewhere::Gate::before(buffer))
    }

    /// Fills the buffer that it holds, and completes.
    pub(crate) fn open(&self, held: &RawBuffer, byte: u8) {
        let address = held.host_address().unwrap();
        host_access::note(address.as_ptr().addr(), held.len(), host_access::HostAccess::Write);
        // SAFETY: memory of this length that the gate holds exclusively.
        unsafe { address.as_ptr().write_bytes(byte, held.len()) };
        self.0.open();
    }
}

fn thousands(runtime: &Runtime, home: Home) {
    const COUNT: usize = 4096;
    const EACH: usize = 700;
    let content: Vec<u8> =
        (0..COUNT * EACH).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let (src, there) = (home.filled(&content), home.allocate(home.far, content.len()));
    let back = home.allocate(home.near, content.len());
    runtime.block_on(async {
        let tasks: Vec<_> = (0..COUNT)
            .map(|index| {
                let manager = Arc::clone(&home.manager);
                let (src, there, back) = (src.clone(), there.clone(), back.clone());
                tokio::spawn(async move {
                    let (at, options) = (index * EACH, TransferOptions::new());
                    let up = manager
                        .copy(&src.slice(at..at + EACH).unwrap(), &there.slice(at..at + EACH).unwrap())
                        .options(options)
                        .await
                        .unwrap();
                    let down = manager
                        .copy(&there.slice(at..at + EACH).unwrap(), &back.slice(at..at + EACH).unwrap())
                        .options(options)
                        .await
                        .unwrap();
                    up.bytes + down.bytes
                })
            })
            .collect();
        let mut bytes = 0;
        for task in tasks {
            bytes += task.await.unwrap();
        }
        assert_eq!(bytes, 2 * content.len() as u64);
        back.wait_idle_async().await.unwrap();
        assert!(*back.read_async().await.unwrap() == content[..]);
    });
    drop((src, there, back));
    home.finish();
}

#[test]
fn four_thousand_transfers_are_awaited_at_once_by_two_workers() {
    within_two_minutes(|| Home::all().into_iter().for_each(|home| thousands(&two_workers(), home)));
}

#[test]
fn four_thousand_transfers_are_awaited_at_once_by_one_thread() {
    within_two_minutes(|| Home::all().into_iter().for_each(|home| thousands(&one_thread(), home)));
}

#[test]
fn transfer_depending_on_same_thread_task_does_not_block() {
    within_two_minutes(|| {
        for (home, options) in Home::all().into_iter().flat_map(Home::with_ways) {
            let (src, there) = (home.filled(&[1; 5000]), home.allocate(home.far, 5000));
            let back = home.allocate(home.near, 5000);
            let gate = Gate::before(&src);
            one_thread().block_on(async {
                let manager = Arc::clone(&home.manager);
                let (from, to, last) = (src.clone(), there.clone(), back.clone());
                let moving = tokio::spawn(async move {
                    manager.copy(&from, &to).options(options).await.unwrap();
                    manager.copy(&to, &last).options(options).await.unwrap();
                });
                let held = src.clone();
                let viewing = tokio::spawn(async move { held.read_async().await.unwrap()[4999] });
                let held = src.clone();
                let idling = tokio::spawn(async move { held.wait_idle_async().await });
                // All of them were polled and wait.
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert!(!moving.is_finished() && !viewing.is_finished() && !idling.is_finished());
                gate.open(&src, 0x5A);
                moving.await.unwrap();
                assert_eq!(viewing.await.unwrap(), 0x5A);
                idling.await.unwrap().unwrap();
            });
            assert!(*back.read().unwrap() == [0x5A; 5000], "what the other task wrote is what came");
            drop((src, there, back, gate));
            if let Some(home) = Arc::into_inner(home) {
                home.finish();
            }
        }
    });
}

#[test]
fn task_aborted_before_submission_holds_nothing() {
    within_two_minutes(|| {
        for home in Home::all() {
            let (src, there) = (home.filled(&[1; 5000]), home.allocate(home.far, 5000));
            let back = home.allocate(home.near, 5000);
            let gate = Gate::before(&back);
            one_thread().block_on(async {
                let options = TransferOptions::new();
                home.manager.copy(&src, &there).options(options).await.unwrap();
                let manager = Arc::clone(&home.manager);
                let (from, to) = (there.clone(), back.clone());
                let aborted = tokio::spawn(async move { manager.copy(&from, &to).await });
                tokio::task::yield_now().await;
                aborted.abort();
                // On the host the queue itself waits for the gate, so the transfer was submitted and continues.
                assert!(aborted.await.unwrap_err().is_cancelled());
                if home.far != home.near {
                    // A write to the aborted transfer's source does not wait for the gate.
                    let other = home.filled(&[3; 5000]);
                    home.manager.copy(&other, &there).options(options).await.unwrap();
                }
                gate.open(&back, 0x5A);
                let expected = if home.far == home.near { 1 } else { 0x5A };
                assert!(*back.read_async().await.unwrap() == [expected; 5000]);
            });
            drop((src, there, back, gate));
            home.finish();
        }
    });
}

#[test]
fn a_claim_that_another_task_holds_does_not_block_the_thread() {
    within_two_minutes(|| {
        for home in Home::all() {
            let (src, there) = (home.filled(&[9; 5000]), home.allocate(home.far, 5000));
            one_thread().block_on(async {
                let manager = Arc::clone(&home.manager);
                let claims = Claims::acquire(&mut [(&there, Access::Write)]).unwrap();
                let (from, to) = (src.clone(), there.clone());
                let moving = tokio::spawn(async move { manager.copy(&from, &to).await.unwrap() });
                tokio::task::yield_now().await;
                assert!(!moving.is_finished());
                drop(claims);
                assert_eq!(moving.await.unwrap().bytes, 5000);
            });
            drop((src, there));
            home.finish();
        }
    });
}

/// First use takes milliseconds; prepare the path if that must not block.
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn prepared_path_creates_no_context_and_loads_no_kernel() {
    use transload::StreamPriority;

    let is_slow = |name: &str| name == "cuDevicePrimaryCtxRetain" || name.starts_with("cuModuleLoad");
    let home = Home::cuda(MemoryKind::Pinned);
    let device = home.far.0;
    let mapped = (device, MemoryKind::Mapped);
    let urgent = TransferOptions::new().priority(StreamPriority::High).only(TransferMethod::ZeroCopy);
    let trace = transload_cuda_sys::trace::start();
    let [(src, there), (held, with)] =
        [home.near, mapped].map(|near| (home.allocate(near, 4096), home.allocate(home.far, 4096)));
    for (host, options) in [(&src, &TransferOptions::new()), (&held, &urgent)] {
        home.manager.prepare(host.place(), there.place(), options).unwrap();
    }
    let before = trace.calls_of_this_thread();
    assert!(before.iter().any(|call| is_slow(call.name)));
    let methods = one_thread().block_on(async {
        let direct = home.manager.copy(&src, &there).await;
        let in_place = home.manager.copy(&held, &with).options(urgent).await;
        [direct, in_place].map(|report| report.unwrap().method)
    });
    assert_eq!(methods, [TransferMethod::DirectCopy, TransferMethod::ZeroCopy]);
    let calls = trace.calls_of_this_thread();
    let slow: Vec<_> = calls[before.len()..].iter().filter(|call| is_slow(call.name)).collect();
    assert!(slow.is_empty(), "{slow:?}");
    drop((trace, src, there, held, with));
    home.finish();
}

/// Transfers in flight at once have a stream each, up to the pool's limit.
#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn submissions_on_a_prepared_path_create_no_stream() {
    for is_prepared in [false, true] {
        let home = Home::cuda(MemoryKind::Pinned);
        let allocate = |place| home.allocate(place, 1 << 20);
        let pairs: Vec<_> = (0..16).map(|_| (allocate(home.near), allocate(home.far))).collect();
        if is_prepared {
            let (src, dst) = &pairs[0];
            home.manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        }
        let trace = transload_cuda_sys::trace::start();
        let transfers: Vec<_> = pairs.iter().map(|(src, dst)| home.manager.copy(src, dst).submit()).collect();
        let calls = trace.calls_of_this_thread();
        let made = calls.iter().filter(|call| call.name.starts_with("cuStreamCreate")).count();
        assert_eq!(made == 0, is_prepared, "{made} streams were created");
        transfers.into_iter().for_each(|transfer| drop(transfer.wait().unwrap()));
        drop((trace, pairs));
        home.finish();
    }
}
