//! The events of an observer, and their order.

use std::{future::IntoFuture, sync::Arc};

use parking_lot::Mutex;
use transload_core::{ErrorKind, Observer, TransferEvent, Wanted};
use transload_transfer::{CrossBackendTransferManager, StridedLayout};

use crate::{Mock, pair};

#[derive(Default)]
struct Heard(Mutex<Vec<(&'static str, u64)>>);

impl Observer for Heard {
    fn transfer(&self, event: TransferEvent<'_>) {
        let heard = match event {
            TransferEvent::Submitted { report, .. } => ("submitted", report.bytes),
            TransferEvent::Completed(report) => {
                assert!(report.elapsed.unwrap() >= report.submitting.unwrap());
                ("completed", report.bytes)
            }
            TransferEvent::Failed(report, error) => {
                assert!(error.to_string().contains("planted"));
                ("failed", report.bytes)
            }
            TransferEvent::Abandoned(report) => ("abandoned", report.bytes),
            _ => ("unknown", 0),
        };
        self.0.lock().push(heard);
    }
}

#[test]
fn observer_gets_submission_before_end() {
    let heard = Arc::new(Heard::default());
    let backend = Mock::default().build();
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&heard) as _).build();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let (src, dst) = pair(&manager, 64);
    let of = |size| manager.transfer_buffer(&src, &dst, 0, 0, size);

    let (one, two) = (of(1), of(2));
    two.wait().unwrap();
    one.wait().unwrap();
    drop(of(3));
    manager.drain().unwrap();
    backend.fail_next(ErrorKind::Device);
    of(4).wait().unwrap_err();
    backend.refuse_next(ErrorKind::Device);
    of(5).wait().unwrap_err();
    of(65).wait().unwrap_err();
    assert_eq!(
        *heard.0.lock(),
        [
            ("submitted", 1),
            ("submitted", 2),
            ("completed", 2),
            ("completed", 1),
            ("submitted", 3),
            ("abandoned", 3),
            ("submitted", 4),
            ("failed", 4),
            ("failed", 5),
        ]
    );
}

/// Wants transfers of at least 3 bytes.
#[derive(Default)]
struct Large(Heard);

impl Observer for Large {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Submitted { report, .. } | TransferEvent::Completed(report) = event {
            assert!(report.id.is_some() && report.submitting.is_some(), "{report:?}");
        }
        self.0.transfer(event);
    }

    fn wants(&self, bytes: u64) -> Wanted {
        if bytes >= 3 { Wanted::Events } else { Wanted::Failure }
    }
}

#[test]
fn observer_is_told_of_the_transfers_that_it_wants_and_of_failures() {
    let heard = Arc::new(Large::default());
    let backend = Mock::default().build();
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&heard) as _).build();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let (src, dst) = pair(&manager, 64);
    let of = |size| manager.transfer_buffer(&src, &dst, 0, 0, size);

    assert_eq!(of(2).wait().unwrap().id, None);
    let row = StridedLayout::new(2);
    let strided = || manager.copy_strided((&src, &row), (&dst, &row)).unwrap();
    assert_eq!(strided().wait().unwrap().id, None);
    assert_eq!(pollster::block_on(strided().into_future()).unwrap().id, None);
    assert!(of(3).wait().unwrap().id.is_some());
    drop(of(1));
    manager.drain().unwrap();
    backend.fail_next(ErrorKind::Device);
    of(2).wait().unwrap_err();
    manager.drain().unwrap();
    assert_eq!(*heard.0.0.lock(), [("submitted", 3), ("completed", 3), ("failed", 2)]);
}
