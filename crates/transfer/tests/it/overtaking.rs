//! A small staged transfer ends before the large ones that were submitted before it.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
};

use transload_executor::Executor;
use transload_transfer::CrossBackendTransferManager;

use crate::{Mock, is_at_rest, pair, staging::stage, watchdog::within};

const MIB: usize = 1 << 20;

/// Records the order in which wakers were called.
struct Ordered {
    next: Arc<AtomicU64>,
    woken: AtomicU64,
}

impl Wake for Ordered {
    fn wake(self: Arc<Self>) {
        self.woken.store(self.next.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
    }
}

#[test]
fn small_transfer_overtakes_chunks_of_large_ones() {
    // Unless the system lets a worker pause for as long as a large one takes.
    within("a small transfer after large ones", || assert!((0..3).any(|_| is_small_first())));
}

fn is_small_first() -> bool {
    // One for each worker.
    let workers = 2;
    let executor = Executor::with_threads(workers).unwrap();
    let manager = CrossBackendTransferManager::builder().executor(&executor).build();
    let backend = Mock::default().build();
    // So that only its yields interrupt a task.
    backend.perform_at_once();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let mut pairs: Vec<_> = (0..workers).map(|_| pair(&manager, 32 * MIB)).collect();
    pairs.push(pair(&manager, 64 << 10));
    let submit = || pairs.iter().map(|(src, dst)| Box::pin(stage(&manager, src, dst)));
    // Makes the staging buffers.
    submit().for_each(|transfer| drop(pollster::block_on(transfer).unwrap()));
    let next = Arc::new(AtomicU64::new(1));
    let noted: Vec<_> = pairs
        .iter()
        .map(|_| Arc::new(Ordered { next: Arc::clone(&next), woken: AtomicU64::new(0) }))
        .collect();
    // No worker begins before all are submitted and have a waker.
    let (begun, have_begun) = mpsc::channel();
    let blocked: Vec<_> = (0..workers)
        .map(|_| {
            let (begun, (release, released)) = (begun.clone(), mpsc::channel::<()>());
            let task = executor.spawn(async move {
                begun.send(()).unwrap();
                let _until_dropped = released.recv();
            });
            (task, release)
        })
        .collect();
    (0..workers).for_each(|_| have_begun.recv().unwrap());
    let mut transfers: Vec<_> = submit().collect();
    for (transfer, noted) in transfers.iter_mut().zip(&noted).rev() {
        let waker = Waker::from(Arc::clone(noted));
        assert!(transfer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    for (task, release) in blocked {
        drop(release);
        task.wait().unwrap();
    }
    manager.drain().unwrap();
    let woken: Vec<_> = noted.iter().map(|noted| noted.woken.load(Ordering::SeqCst)).collect();
    let (small, large) = woken.split_last().unwrap();
    let is_first = large.iter().all(|large| small < large);
    drop((transfers, pairs));
    assert!(is_at_rest(&manager));
    is_first
}
