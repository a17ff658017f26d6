//! Uploads that fit one part of a staging buffer: the thread that submits copies, and the queue's fence is the end.

use transload_core::{MemoryKind, Transfer};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    MOCK, Mock, is_at_rest,
    mock::{bytes, set_bytes},
    pair,
    staging::stage,
    watchdog::within,
    with,
};

const BYTES: usize = 64 << 10;

/// Returns whether a transfer's end is that of a queue, which fails with its device only.
fn is_short(transfer: &Transfer) -> bool {
    !transfer.fence().unwrap().timeline().can_fail()
}

#[test]
fn staging_buffers_are_kept_until_the_copies_out_of_them_end() {
    within("uploads in flight", || {
        let (manager, _backend) = with(Mock::default());
        let (first, dst) = pair(&manager, BYTES);
        manager.prepare(first.place(), dst.place(), &TransferOptions::new()).unwrap();
        for _ in 0..3 {
            let pairs: Vec<_> = (0..100).map(|_| pair(&manager, BYTES)).collect();
            let mut transfers = Vec::new();
            for (number, (src, dst)) in (0..).zip(&pairs) {
                set_bytes(src, number);
                transfers.push(stage(&manager, src, dst));
            }
            assert!(is_short(&transfers[0]), "a first upload");
            assert!(!transfers.iter().all(is_short), "a buffer is left to other transfers");
            let (later, there) = pair(&manager, 9 << 20);
            stage(&manager, &later, &there).wait().unwrap();
            for transfer in transfers {
                transfer.wait().unwrap();
            }
            for (number, (_, dst)) in (0..).zip(&pairs) {
                assert!(bytes(dst) == vec![number; BYTES], "{number}");
            }
        }
        drop((first, dst));
        assert!(is_at_rest(&manager));
        assert_eq!(manager.staging_bytes(), 0);
    });
}

#[test]
fn second_buffer_is_made_for_a_process_that_has_only_short_uploads() {
    within("short uploads without preparation", || {
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, BYTES);
        let upload = || {
            let transfer = stage(&manager, &src, &dst);
            let was_short = is_short(&transfer);
            transfer.wait().unwrap();
            was_short
        };
        assert!(!upload(), "the first one allocates");
        while !upload() {}
    });
}

#[test]
fn only_buffer_is_not_lent_and_longer_or_other_copies_are_staged() {
    within("uploads through one buffer, and others", || {
        let manager = CrossBackendTransferManager::builder().staging_limit(0).build();
        manager.register_backend(Mock::default().build()).unwrap();
        let (src, dst) = pair(&manager, BYTES);
        for _ in 0..3 {
            let transfer = stage(&manager, &src, &dst);
            assert!(!is_short(&transfer));
            transfer.wait().unwrap();
        }
        let (manager, _backend) = with(Mock::default());
        let (src, dst) = pair(&manager, BYTES + 1);
        manager.prepare(src.place(), dst.place(), &TransferOptions::new()).unwrap();
        assert!(!is_short(&stage(&manager, &src, &dst)));
        let (src, dst) = (dst.slice(..BYTES).unwrap(), src.slice(..BYTES).unwrap());
        assert!(!is_short(&stage(&manager, &src, &dst)), "a download");
        manager.drain().unwrap();
    });
}

#[test]
fn upload_of_bytes_in_use_waits_for_them() {
    within("an upload after a download", || {
        let (manager, _backend) = with(Mock::default());
        let (host, there) = pair(&manager, BYTES);
        let back = manager.allocate_for(MOCK, MemoryKind::Device, BYTES).unwrap();
        manager.prepare(host.place(), there.place(), &TransferOptions::new()).unwrap();
        set_bytes(&there, 7);
        let down = stage(&manager, &there, &host);
        let up = stage(&manager, &host, &back);
        assert!(!is_short(&up));
        up.wait().unwrap();
        down.wait().unwrap();
        assert!(bytes(&back) == vec![7; BYTES]);
    });
}
