//! The order of recorded operations.

use std::{any::Any, ptr::NonNull, sync::Arc};

use proptest::prelude::*;
use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Storage};

use super::*;

/// Device memory that is only planned with.
#[derive(Debug)]
struct Planned(usize);

// SAFETY: without an address nothing accesses it.
unsafe impl Storage for Planned {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cuda(0), MemoryKind::Device)
    }

    fn len(&self) -> usize {
        self.0
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        None
    }

    fn device_address(&self) -> Option<u64> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn buffer(bytes: usize) -> RawBuffer {
    RawBuffer::new(Box::new(Planned(bytes)), &Arc::default())
}

/// Returns, for each step, the steps that are complete before it begins.
fn earlier(steps: &[Step]) -> Vec<Vec<bool>> {
    let mut all: Vec<Vec<bool>> = Vec::new();
    let mut last = [None; BRANCHES];
    for (index, step) in steps.iter().enumerate() {
        let mut before = vec![false; steps.len()];
        for direct in step.after.iter().copied().chain(last[step.branch]) {
            before[direct] = true;
            (0..direct).for_each(|other| before[other] |= all[direct][other]);
        }
        assert!(step.after.iter().all(|other| steps[*other].is_awaited), "an event is recorded for it");
        last[step.branch] = Some(index);
        all.push(before);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conflicting_operations_keep_their_order(
        ranges in proptest::collection::vec((0..40_usize, 0..40_usize, 0..12_usize), 2..40)
    ) {
        let pool = buffer(64);
        let parts: Vec<_> = ranges
            .iter()
            .map(|(src, dst, len)| [*src, *dst].map(|at| pool.slice(at..at + len).unwrap()))
            .collect();
        let operations: Vec<_> = parts.iter().map(|[src, dst]| Operation::Copy { src, dst }).collect();
        let before = earlier(&plan(&operations));
        let overlap = |a: &RawBuffer, b: &RawBuffer| {
            let (a, b) = (range_of(a), range_of(b));
            a.start.max(b.start) < a.end.min(b.end)
        };
        for (later, [src, dst]) in parts.iter().enumerate() {
            for (sooner, [from, to]) in parts[..later].iter().enumerate() {
                let conflict = overlap(src, to) || overlap(dst, from) || overlap(dst, to);
                prop_assert!(!conflict || before[later][sooner], "{later} comes after {sooner}");
            }
        }
    }
}

#[test]
fn operations_apart_are_spread_and_wait_for_none() {
    let (source, pool) = (buffer(8), buffer(8 * 100));
    let parts: Vec<_> = (0..100).rev().map(|part| pool.slice(part * 8..(part + 1) * 8).unwrap()).collect();
    let operations: Vec<_> = parts.iter().map(|dst| Operation::Copy { src: &source, dst }).collect();
    let steps = plan(&operations);
    assert!(steps.iter().all(|step| step.after.is_empty() && !step.is_awaited));
    for branch in 0..BRANCHES {
        assert_eq!(steps.iter().filter(|step| step.branch == branch).count(), 25);
    }
    // One that writes the common source comes after all of them.
    let last = Operation::Copy { src: &parts[0].clone(), dst: &source };
    let steps = plan(&[operations, vec![last]].concat());
    assert_eq!(earlier(&steps)[100].iter().filter(|before| **before).count(), 100);
}
