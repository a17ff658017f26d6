//! The plan of a recording: conflicts keep their order, others are spread.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, MemoryKind, Operation, Pattern, Place, RawBuffer, Reclaimer, Storage};

use super::plan::{LANES, Step, plan};

struct Bytes(usize);

// SAFETY: it has no address at all.
unsafe impl Storage for Bytes {
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

fn buffers(count: usize) -> Vec<RawBuffer> {
    (0..count).map(|_| RawBuffer::new(Box::new(Bytes(100)), &Arc::new(Reclaimer::new()))).collect()
}

fn fill(dst: &RawBuffer) -> Operation<'_> {
    Operation::Fill { dst, pattern: Pattern::U8(1) }
}

/// Whether `later` comes after `earlier` by lanes and waits.
fn is_ordered(steps: &[Step], earlier: usize, later: usize) -> bool {
    let mut open = vec![later];
    while let Some(step) = open.pop() {
        if step == earlier {
            return true;
        }
        open.extend(steps[step].after.iter().filter(|before| steps[**before].is_awaited));
        open.extend((0..step).rev().find(|before| steps[*before].lane == steps[step].lane));
    }
    false
}

#[test]
fn independent_operations_are_spread_over_the_lanes_and_wait_for_nobody() {
    let buffers = buffers(2 * LANES);
    let operations: Vec<_> = buffers.iter().map(fill).collect();
    let steps = plan(&operations);
    let lanes: Vec<_> = steps.iter().map(|step| step.lane).collect();
    assert_eq!(lanes, (0..LANES).chain(0..LANES).collect::<Vec<_>>());
    assert!(steps.iter().all(|step| step.after.is_empty() && !step.is_awaited));
}

#[test]
fn a_chain_stays_in_one_lane() {
    let buffers = buffers(4);
    let mut operations = vec![fill(&buffers[0])];
    operations.extend(buffers.windows(2).map(|pair| Operation::Copy { src: &pair[0], dst: &pair[1] }));
    let steps = plan(&operations);
    assert!(steps.iter().all(|step| step.lane == 0 && step.after.is_empty()));
}

#[test]
fn whatever_conflicts_is_ordered_as_it_was_given() {
    let buffers = buffers(5);
    let mut state = 11_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for _ in 0..200 {
        let parts: Vec<(RawBuffer, RawBuffer)> = (0..12)
            .map(|_| {
                let (one, two) = (draw(5), draw(4));
                let bytes = 1 + draw(50);
                let mut part = |buffer: &RawBuffer| {
                    let from = draw(101 - bytes);
                    buffer.slice(from..from + bytes).unwrap()
                };
                (part(&buffers[one]), part(&buffers[(one + 1 + two) % 5]))
            })
            .collect();
        let operations: Vec<_> = parts.iter().map(|(src, dst)| Operation::Copy { src, dst }).collect();
        let steps = plan(&operations);
        for later in 0..parts.len() {
            for earlier in 0..later {
                let (a, b) = (&parts[earlier], &parts[later]);
                let conflict = a.1.overlaps(&b.0) || a.1.overlaps(&b.1) || a.0.overlaps(&b.1);
                if conflict {
                    assert!(is_ordered(&steps, earlier, later), "{earlier} before {later}: {steps:?}");
                }
            }
        }
    }
}
