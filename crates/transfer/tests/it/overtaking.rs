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

use crate::{Mock, is_at_rest, pair, staging::stage, watchdog::within, with};

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
    within("a small transfer after large ones", || {
        let (manager, backend) = with(Mock::default());
        // So that only its yields interrupt a task.
        backend.perform_at_once();
        let executor = manager.executor().clone();
        // One for each worker.
        let workers = executor.threads();
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
        assert!(large.iter().all(|large| small < large), "{small} among {large:?}");
        drop((transfers, pairs));
        assert!(is_at_rest(&manager));
    });
}
