//! A chunk is enqueued only where its queue has room: a driver's full launch queue would block the executor's thread.

use std::thread;

use transload_core::{DeviceId, MemoryKind, TransferMethod};
use transload_transfer::TransferOptions;

use crate::{
    Mock,
    gate::Gate,
    is_at_rest,
    mock::{MOCK, bytes},
    staging::{filled, stage},
    watchdog::within,
    with,
};

/// Queues of a mock device.
const QUEUES: usize = 3;
/// Operations that may be ahead of a chunk.
const LIMIT: usize = 256;

#[test]
fn staged_chunk_waits_until_its_queue_has_room() {
    within("a staged download after direct ones that are held up", || {
        for (ahead, is_enqueued) in [(LIMIT - 1, true), (LIMIT, false)] {
            let (manager, backend) = with(Mock::default());
            let source = filled(&manager, MOCK, MemoryKind::Device, 1000, 7);
            let back = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 1000, 0);
            let gate = Gate::new();
            backend.close_downloads(gate.fence());
            let direct = TransferOptions::new().only(TransferMethod::DirectCopy);
            let held_up: Vec<_> = (0..QUEUES * ahead)
                .map(|_| {
                    let dst = filled(&manager, DeviceId::Cpu, MemoryKind::Pageable, 8, 0);
                    (manager.copy(&source.slice(..8).unwrap(), &dst).options(direct).submit(), dst)
                })
                .collect();
            let before = backend.enqueued();
            assert_eq!(before, (QUEUES * ahead) as u64);
            let staged = stage(&manager, &source, &back);
            // Its one chunk waits for its own copy or for room: both register a waker.
            while backend.wakers_registered() == 0 {
                thread::yield_now();
            }
            assert_eq!(backend.enqueued() - before, u64::from(is_enqueued), "{ahead} operations ahead");
            assert!(!staged.is_complete());
            gate.open();
            pollster::block_on(staged).unwrap();
            assert_eq!(bytes(&back), vec![7; 1000]);
            for (transfer, dst) in held_up {
                transfer.wait().unwrap();
                assert_eq!(bytes(&dst), [7; 8]);
            }
            drop((source, back));
            assert!(is_at_rest(&manager));
        }
    });
}
