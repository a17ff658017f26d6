//! The limit on staging buffers, and whose threads move chunks.

use transload_transfer::CrossBackendTransferManager;

use crate::{Mock, is_at_rest, mock::bytes, pair, staging::stage, watchdog::within};

const MIB: usize = 1 << 20;

#[test]
fn staging_limit_bounds_the_ring_of_each_device() {
    within("transfers through a bounded ring", || {
        for (limit, buffers) in [(0, 1), (11 * MIB as u64, 2)] {
            let manager = CrossBackendTransferManager::builder().staging_limit(limit).build();
            manager.register_backend(Mock::default().build()).unwrap();
            let (src, dst) = pair(&manager, 16 * MIB);
            let others = manager.resource_counts()[0].1.allocations;
            for _ in 0..4 {
                stage(&manager, &src, &dst).wait().unwrap();
                stage(&manager, &dst, &src).wait().unwrap();
            }
            assert!(bytes(&dst) == vec![1; 16 * MIB]);
            let made = manager.resource_counts()[0].1.allocations - others;
            assert!((1..=buffers).contains(&made), "{made} buffers of at most {buffers}");
            assert_eq!(manager.staging_bytes(), made * 4 * MIB as u64);
            drop((src, dst));
            assert!(is_at_rest(&manager));
            assert_eq!(manager.staging_bytes(), 0);
        }
    });
}

#[test]
fn chunks_are_moved_by_the_given_executor() {
    within("a transfer by an executor of one thread", || {
        let executor = transload_executor::Executor::with_threads(1).unwrap();
        let manager = CrossBackendTransferManager::builder().executor(&executor).build();
        manager.register_backend(Mock::default().build()).unwrap();
        let (src, dst) = pair(&manager, 8 * MIB);
        assert_eq!(executor.live_threads(), 0);
        stage(&manager, &src, &dst).wait().unwrap();
        assert!(executor.live_threads() > 0);
    });
}
