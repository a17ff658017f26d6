//! What becomes of transfers whose end nobody looks at: they are counted, and `drain` tells the first failure.

use transload_core::{ErrorKind, SizeClass, TransferPath};

use crate::{Mock, is_at_rest, pair, staging::stage, watchdog::within, with};

const MIB: usize = 1 << 20;

#[test]
fn a_dropped_staged_transfer_that_fails_on_the_host_is_told_by_drain_once() {
    within("drains after a dropped transfer failed", || {
        let (manager, backend) = with(Mock::default());
        let (src, dst) = pair(&manager, 5 * MIB);
        backend.fail_pinned(0, u64::MAX, 1);
        drop(stage(&manager, &src, &dst));
        let error = manager.drain().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        manager.drain().unwrap();
        let path = TransferPath::new(src.place(), dst.place());
        let stats = manager.stats_for(path, SizeClass::UpTo16MiB);
        assert_eq!((stats[0].transfers, stats[0].failures, stats[0].abandoned), (0, 1, 1));
        backend.fail_pinned(0, 0, 0);
        drop(stage(&manager, &src, &dst));
        manager.drain().unwrap();
        let stats = manager.stats_for(path, SizeClass::UpTo16MiB);
        assert_eq!((stats[0].transfers, stats[0].failures, stats[0].abandoned), (1, 1, 2));
        assert_eq!(stats[0].bytes, 5 * MIB as u64);
        drop((src, dst));
        assert!(is_at_rest(&manager));
    });
}
