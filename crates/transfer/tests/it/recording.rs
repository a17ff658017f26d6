//! Recordings by a backend without them, and the choice among recordable methods.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_core::{Access, Claims, DeviceId, ErrorKind, MemoryKind, Observer, RawBuffer, TransferEvent};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{MOCK, Mock, beside_cpu, is_at_rest, mock::bytes, pair, watchdog::within, with};

const ANY: TransferOptions = TransferOptions::new();

#[test]
fn backend_without_recording_is_unsupported() {
    let (manager, backend) = with(Mock::default());
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pinned, 64).unwrap();
    let dst = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
    let error = manager.record(&[(src.clone(), dst.clone())], &ANY).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("does not support recording of operations"), "{error}");
    drop((src, dst));
    assert!(backend.leased().is_empty() && backend.performed() == 0 && is_at_rest(&manager));
}

#[test]
fn unrecordable_pair_is_submitted_anew_by_each_replay() {
    let (manager, backend) = with(Mock::default());
    let (src, dst) = pair(&manager, 64);
    let recorded = manager.record(&[(src.clone(), dst.clone())], &ANY).unwrap();
    assert_eq!(backend.performed(), 0);
    for replay in 1..3 {
        let report = recorded.replay().wait().unwrap();
        assert_eq!((report.bytes, backend.performed()), (64, replay));
    }
    let plan = manager.plan(src.place(), dst.place(), 64, &ANY).unwrap();
    assert!(!plan.to_string().contains("cannot be recorded"), "a transfer is not chosen by that: {plan}");
    let none = TransferOptions::new().only(transload_core::TransferMethod::PeerToPeer);
    let error = manager.record(&[(src.clone(), dst.clone())], &none).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("PeerToPeer: "), "{error}");
    drop((recorded, src, dst));
    assert!(is_at_rest(&manager));
}

type Action = Box<dyn FnOnce() + Send>;
type Pair = (RawBuffer, RawBuffer);

/// Calls a function at the first submission.
#[derive(Default)]
struct AtSubmission(Mutex<Option<Action>>);

impl Observer for AtSubmission {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let TransferEvent::Submitted { .. } = event
            && let Some(action) = { self.0.lock().take() }
        {
            action();
        }
    }
}

fn host(manager: &CrossBackendTransferManager, byte: u8) -> RawBuffer {
    let buffer = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 64).unwrap();
    buffer.write().unwrap().fill(byte);
    buffer
}

fn content(host: &RawBuffer) -> [u8; 64] {
    host.read().unwrap()[..].try_into().unwrap()
}

/// Two buffers whose contents the pairs exchange, through a third one, within the host.
fn exchange() -> (CrossBackendTransferManager, Arc<AtSubmission>, [RawBuffer; 2], [Pair; 3]) {
    let observer = Arc::new(AtSubmission::default());
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&observer) as _).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    let [one, other, third] = [1, 2, 3].map(|byte| host(&manager, byte));
    let pairs =
        [(&one, &third), (&other, &one), (&third, &other)].map(|(src, dst)| (src.clone(), dst.clone()));
    (manager, observer, [one, other], pairs)
}

#[test]
fn two_threads_replays_of_dependent_pairs_do_not_mix() {
    within("two replays", || {
        let (manager, _, ends, pairs) = exchange();
        let recorded = manager.record(&pairs, &ANY).unwrap();
        // The second pair waits for its end.
        let claims = Claims::acquire(&mut [(&pairs[1].0, Access::Write)]).unwrap();
        thread::scope(|scope| {
            let (done, is_done) = mpsc::channel();
            let replay = || recorded.replay().wait().unwrap();
            scope.spawn(replay);
            while content(&pairs[0].1) != [1; 64] {
                thread::yield_now();
            }
            scope.spawn(move || {
                replay();
                let _kept = done.send(());
            });
            // Time for the other thread to come in between, if it can.
            let _ended = is_done.recv_timeout(Duration::from_millis(100));
            drop(claims);
        });
        assert_eq!(ends.map(|buffer| content(&buffer)), [[1; 64], [2; 64]], "exchanged twice");
    });
}

#[test]
fn replay_by_an_observer_of_its_own_submission_is_refused() {
    within("a replay within a replay", || {
        let (manager, observer, ends, pairs) = exchange();
        let recorded = Arc::new(manager.record(&pairs, &ANY).unwrap());
        let (again, (told, result)) = (Arc::clone(&recorded), mpsc::channel());
        *observer.0.lock() = Some(Box::new(move || told.send(again.replay().wait()).unwrap()));
        recorded.replay().wait().unwrap();
        let failed = result.recv().unwrap().unwrap_err();
        assert_eq!((failed.error.kind(), failed.pairs), (ErrorKind::Unsupported, vec![0, 1, 2]));
        assert_eq!(ends.map(|buffer| content(&buffer)), [[2; 64], [1; 64]], "exchanged once");
    });
}

#[test]
fn dependent_pairs_after_a_refused_one_are_not_submitted() {
    let (manager, backend) = beside_cpu();
    let [first, second, third] = [1, 2, 3].map(|byte| host(&manager, byte));
    let far = manager.allocate(MOCK, MemoryKind::Device, 64).unwrap();
    let pairs = [(&first, &second), (&second, &far), (&third, &first)];
    let recorded = manager.record(&pairs.map(|(src, dst)| (src.clone(), dst.clone())), &ANY).unwrap();
    assert_eq!(recorded.planned().len(), 3);
    let view = first.write().unwrap();
    let failed = recorded.replay().wait().unwrap_err();
    assert_eq!((failed.error.kind(), failed.pairs), (ErrorKind::Busy, vec![0, 1, 2]));
    drop(view);
    assert_eq!(backend.enqueued(), 0);
    let report = recorded.replay().wait().unwrap();
    assert_eq!((report.pairs, report.groups.len()), (3, 3));
    assert_eq!(([&first, &second].map(content), bytes(&far)), ([[3; 64], [1; 64]], vec![1; 64]));
    drop((recorded, first, second, third, far));
    assert!(is_at_rest(&manager));
}
