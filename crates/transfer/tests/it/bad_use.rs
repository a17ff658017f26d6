//! Misuse and overload: nothing hangs, no failure is lost, and all resources are released.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
};

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer, Result};
use transload_executor::Executor;
use transload_transfer::CrossBackendTransferManager;

use crate::{
    Mock,
    gate::Gate,
    is_at_rest,
    mock::{MOCK, bytes, set_bytes},
    pair,
    staging::{OTHER, filled, stage, two_devices},
    watchdog::within,
    with,
};

const MIB: usize = 1 << 20;

#[test]
fn a_thousand_threads_each_drop_a_transfer_in_flight() {
    within("1,000 threads that drop staged and direct transfers", || {
        let (manager, backend) = with(Mock::default());
        let host = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 4096, 1);
        let gate = Gate::before(&host);
        let devices: Vec<_> =
            (0..1000).map(|_| filled(&manager, MOCK, MemoryKind::Device, 4096, 0)).collect();
        thread::scope(|scope| {
            for (number, there) in devices.iter().enumerate() {
                let (manager, host) = (&manager, &host);
                scope.spawn(move || {
                    // What waits for the gate by itself is submitted only as staged work.
                    drop(stage(manager, host, there));
                    if number % 100 == 0 {
                        assert!(!manager.get_transfer_stats().is_empty());
                    }
                });
            }
        });
        let counted = |manager: &CrossBackendTransferManager| {
            let stats = manager.get_transfer_stats();
            let sum = |of: fn(&transload_transfer::TransferStats) -> u64| stats.iter().map(of).sum::<u64>();
            (sum(|stats| stats.abandoned), sum(|stats| stats.transfers), sum(|stats| stats.failures))
        };
        assert_eq!(counted(&manager), (1000, 0, 0));
        backend.fail_next(ErrorKind::Device);
        gate.open();
        let error = manager.drain().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert_eq!(counted(&manager), (1000, 999, 1));
        let arrived = devices.iter().filter(|there| bytes(there) == [1; 4096]).count();
        assert_eq!(arrived, 999);
        drop((host, devices));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn lost_device_fails_only_its_own_staged_transfers() {
    within("eight staged transfers of two devices, one of which is lost", || {
        let (manager, backend) = two_devices();
        let sources: Vec<_> =
            (0..8).map(|_| filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 3 * MIB, 5)).collect();
        let gates: Vec<_> = sources.iter().map(Gate::before).collect();
        let transfers: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(number, src)| {
                let device = if number % 2 == 0 { MOCK } else { OTHER };
                let dst = filled(&manager, device, MemoryKind::Device, 3 * MIB, 0);
                (stage(&manager, src, &dst), dst, device)
            })
            .collect();
        gates.iter().take(2).for_each(Gate::open);
        backend.lose(OTHER);
        gates.iter().for_each(Gate::open);
        let mut lost = 0;
        for (transfer, dst, device) in transfers {
            match pollster::block_on(transfer) {
                Ok(_) => assert_eq!(bytes(&dst), vec![5; 3 * MIB]),
                Err(error) => {
                    assert_eq!((error.kind(), device), (ErrorKind::DeviceLost, OTHER), "{error}");
                    lost += 1;
                }
            }
        }
        assert!(lost >= 3, "{lost} of the lost device's transfers failed");
        // The other one is not blamed.
        let dst = filled(&manager, MOCK, MemoryKind::Device, 3 * MIB, 0);
        stage(&manager, &sources[0], &dst).wait().unwrap();
        drop((dst, sources));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn concurrent_drains_wait_and_return_failure_once() {
    within("16 drains at once", || {
        for _ in 0..10 {
            let (manager, backend) = with(Mock::default());
            let (src, dst) = pair(&manager, 2 * MIB);
            let gate = Gate::before(&src);
            backend.fail_next(ErrorKind::Device);
            let fence = {
                let transfer = stage(&manager, &src, &dst);
                transfer.fence().unwrap().clone()
            };
            let outcomes: Vec<Result<()>> = thread::scope(|scope| {
                let drains: Vec<_> = (0..16)
                    .map(|_| {
                        scope.spawn(|| {
                            let outcome = manager.drain();
                            assert!(fence.is_known_complete(), "a drain returned before the work was over");
                            outcome
                        })
                    })
                    .collect();
                gate.open();
                drains.into_iter().map(|drain| drain.join().unwrap()).collect()
            });
            let failures = outcomes.iter().filter(|outcome| outcome.is_err()).count();
            assert_eq!(failures, 1, "{outcomes:?}");
            drop((src, dst));
            assert!(is_at_rest(&manager));
        }
    });
}

/// A waker that drains where it is woken, as one that runs its task at once would.
struct Draining {
    manager: Arc<CrossBackendTransferManager>,
    outcome: Mutex<mpsc::Sender<Result<()>>>,
}

impl Wake for Draining {
    fn wake(self: Arc<Self>) {
        self.outcome.lock().unwrap().send(self.manager.drain()).unwrap();
    }
}

#[test]
fn drain_in_waker_is_refused() {
    let (manager, _backend) = with(Mock::default());
    let manager = Arc::new(manager);
    within("8 wakers that drain", move || {
        let (src, dst) = pair(&manager, 2 * MIB);
        let gate = Gate::before(&src);
        let (outcome, outcomes) = mpsc::channel();
        let transfers: Vec<_> = (0..8)
            .map(|_| {
                let draining =
                    Draining { manager: Arc::clone(&manager), outcome: Mutex::new(outcome.clone()) };
                let waker = Waker::from(Arc::new(draining));
                let mut transfer = Box::pin(stage(&manager, &src, &dst));
                assert!(transfer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                transfer
            })
            .collect();
        gate.open();
        for _ in 0..8 {
            let error = outcomes.recv().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        for transfer in transfers {
            pollster::block_on(transfer).unwrap();
        }
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn a_drain_in_a_task_of_the_executor_is_refused() {
    within("16 tasks that drain", || {
        let (manager, _backend) = with(Mock::default());
        let manager = Arc::new(manager);
        let (src, dst) = pair(&manager, 2 * MIB);
        let gate = Gate::before(&src);
        drop(stage(&manager, &src, &dst));
        let executor = Executor::shared();
        let drains: Vec<_> = (0..16)
            .map(|_| {
                let manager = Arc::clone(&manager);
                executor.spawn(async move { manager.drain() })
            })
            .collect();
        for drain in drains {
            let error = drain.wait().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        gate.open();
        executor.drain().unwrap();
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn open_view_does_not_delay_other_ranges() {
    within("transfers beside an open view", || {
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 4 * MIB);
        let kept = src.slice(..MIB).unwrap();
        let view = kept.write().unwrap();
        for _ in 0..5 {
            let part = |buffer: &RawBuffer| buffer.slice(MIB..).unwrap();
            stage(&manager, &part(&src), &part(&dst)).wait().unwrap();
            assert_eq!(stage(&manager, &src, &dst).wait().unwrap_err().kind(), ErrorKind::Busy);
        }
        assert_eq!(bytes(&dst)[MIB..], vec![1; 3 * MIB]);
        drop(view);
        stage(&manager, &src, &dst).wait().unwrap();
        drop((kept, src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn late_failure_does_not_mark_newer_writes() {
    within("a failure behind a gate, and good writes after it", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, MIB);
        let gate = Gate::before(&src);
        backend.fail_next(ErrorKind::Device);
        let late = stage(&manager, &src, &dst);
        let newer = stage(&manager, &src, &dst);
        gate.open();
        assert_eq!(newer.wait().unwrap().bytes, MIB as u64);
        assert_eq!(late.wait().unwrap_err().kind(), ErrorKind::Device);
        assert_eq!(bytes(&dst), vec![1; MIB]);
        set_bytes(&src, 2);
        stage(&manager, &src, &dst).wait().unwrap();
        assert_eq!(bytes(&dst), vec![2; MIB]);
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}

#[test]
fn random_staged_transfers_of_many_threads_with_shortages_end() {
    static FAILED: AtomicU64 = AtomicU64::new(0);
    within("staged transfers of 8 threads while pinned memory comes and goes", || {
        let (manager, backend) = two_devices();
        thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (manager, backend) = (&manager, &backend);
                scope.spawn(move || {
                    let host = filled(manager, DeviceId::Cpu, MemoryKind::Pageable, MIB + 3, thread as u8);
                    let back = filled(manager, DeviceId::Cpu, MemoryKind::Pageable, MIB + 3, 255);
                    let there = filled(manager, MOCK, MemoryKind::Device, MIB + 3, 254);
                    let across = filled(manager, OTHER, MemoryKind::Device, MIB + 3, 253);
                    for round in 0..12 {
                        if thread == 0 {
                            backend.fail_pinned(round % 3, round % 5, 2);
                            manager.drain().ok();
                        }
                        let steps = [(&host, &there), (&there, &across), (&across, &back)];
                        let mut transfers = steps.map(|(from, to)| Some(stage(manager, from, to)));
                        if (round + thread) % 3 == 0 {
                            transfers[1] = None;
                        }
                        let ended = transfers.into_iter().flatten().map(|transfer| transfer.wait());
                        if ended.filter(Result::is_err).count() == 0 && (round + thread) % 3 != 0 {
                            assert_eq!(bytes(&back), vec![thread as u8; MIB + 3]);
                        } else {
                            FAILED.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        backend.fail_pinned(0, 0, 0);
        manager.drain().ok();
        assert!(is_at_rest(&manager), "{:?}", manager.resource_counts());
    });
}
