//! What failed stays failed for as long as its fence is there, and ends nothing else.

use std::{
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use transload_core::{
    Backend, ErrorKind, Fence, Operation, Pattern, Timing,
    host_access::{self, HostAccess},
    submit,
};

use crate::{allocate, backend, gate::Gate, lease};

/// Writing so many bytes fails in this test's process: the observer of the host's accesses panics.
const REFUSED: usize = 4243;

fn refuse() {
    host_access::set_hook(|_, bytes, access| {
        assert!(
            bytes != REFUSED || access == HostAccess::Read,
            "a write of {REFUSED} bytes, refused on purpose"
        );
    });
}

fn kinds(fences: &[Fence]) -> Vec<Option<ErrorKind>> {
    fences.iter().map(|fence| fence.wait().err().map(|error| error.kind())).collect()
}

#[test]
fn failures_outlive_any_number_of_later_ones() {
    refuse();
    let backend = backend(2, usize::MAX);
    let queue = lease(&backend);
    let (good, bad) = (allocate(&backend, 100), allocate(&backend, REFUSED));
    for blocked in [false, true] {
        let gate = Gate::new();
        if blocked {
            let fill = Operation::Fill { dst: &good, pattern: Pattern::U8(0) };
            submit(&gate, &fill, Timing::Off).unwrap();
        }
        // One fails and one does not, in turn: no two failures are neighbours.
        let fences: Vec<_> = (0..6000)
            .map(|index| {
                let dst = if index % 2 == 0 { &bad } else { &good };
                submit(&*queue, &Operation::Fill { dst, pattern: Pattern::U8(1) }, Timing::Off).unwrap()
            })
            .collect();
        gate.open();
        for (index, kind) in kinds(&fences).into_iter().enumerate() {
            let expected = (index % 2 == 0).then_some(ErrorKind::Interrupted);
            assert_eq!(kind, expected, "operation {index} of 6000, blocked: {blocked}");
        }
    }
    let error = backend.drain().unwrap_err();
    assert!(format!("{error:?}{error}").contains("refused on purpose"), "{error}");
    backend.drain().unwrap();
}

#[test]
fn failure_of_a_shared_operation_fails_no_other() {
    let backend = backend(3, 1 << 20);
    let queue = lease(&backend);
    refuse();
    let (bad, good) = (allocate(&backend, 8 << 20), allocate(&backend, 8 << 20));
    let short = allocate(&backend, REFUSED);
    let source = allocate(&backend, REFUSED);
    let pairs = [(bad.clone(), good.clone()), (source, short)];
    let batch = submit(&*queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    let after =
        submit(&*queue, &Operation::Fill { dst: &good, pattern: Pattern::U8(3) }, Timing::Off).unwrap();
    assert_eq!(batch.wait().unwrap_err().kind(), ErrorKind::Interrupted);
    after.wait().unwrap();
    assert!(good.read().unwrap().iter().all(|byte| *byte == 3));
}
