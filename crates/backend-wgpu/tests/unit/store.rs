//! Short uploads that the host stores.

use std::sync::atomic::Ordering;

use ash::vk;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, Fence, MemoryKind, Operation, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};

use super::{super::Semaphore, MOST};
use crate::setup;

#[test]
fn short_uploads_to_an_idle_queue_need_no_submission_and_others_do() {
    let Some(backend) = setup::backend() else { return };
    let Some(state) = backend.states().into_iter().find(|state| state.queue.vulkan.stores()) else {
        return println!("skipped: no device whose memory the host sees");
    };
    let lease = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let copy = |src: &RawBuffer, dst: &RawBuffer, timing| -> Fence {
        submit(&*lease, &Operation::Copy { src, dst }, timing).unwrap()
    };
    let src = backend.allocate(state.id(), MemoryKind::Pinned, 4 * MOST).unwrap();
    let there = backend.allocate(state.id(), MemoryKind::Device, 4 * MOST).unwrap();
    let back = CpuBackend::new().unwrap().allocate(DeviceId::Cpu, MemoryKind::Pageable, 100).unwrap();
    let (short, long) = ((5..5 + MOST), (0..MOST + 1));
    for (range, timing) in [(&short, Timing::Off), (&long, Timing::Off), (&short, Timing::Measured)] {
        let fence = copy(&src.slice(range.clone()).unwrap(), &there.slice(range.clone()).unwrap(), timing);
        // Nobody has looked since.
        let is_stored = fence.is_known_complete();
        assert_eq!(is_stored, range.len() <= MOST && timing == Timing::Off);
        fence.wait().unwrap();
        // Other queues wait for no value that nothing signals.
        // SAFETY: the semaphore is alive.
        let value = unsafe { state.queue.vulkan.raw.get_semaphore_counter_value(state.queue.semaphore.raw) };
        assert!(state.queue.known().is_none_or(|(_, known)| value.is_ok_and(|value| value >= known)));
    }
    let back = back.slice(..100).unwrap();
    src.write().unwrap().fill(7);
    copy(&src.slice(..100).unwrap(), &there.slice(9..109).unwrap(), Timing::Off);
    copy(&there.slice(9..109).unwrap(), &back, Timing::Off).wait().unwrap();
    assert!(back.read().unwrap().iter().all(|found| *found == 7));
}

#[test]
fn nothing_is_stored_while_work_is_in_flight() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let (queue, gate) = (&*state.queue, Semaphore::new(&state.queue.vulkan).unwrap());
    // Ends when the host says so.
    let submit = |value| {
        let point = queue.enqueued() + 1;
        queue.submit_nothing(&mut queue.lock().unwrap(), point, &[(gate.raw, value)]).unwrap();
        queue.enqueued.store(point, Ordering::Release);
        queue.submitted.store(point, Ordering::Release);
        point
    };
    let end = |value, point| {
        let info = vk::SemaphoreSignalInfo::default().semaphore(gate.raw).value(value);
        // SAFETY: the semaphore is alive, of the timeline kind, and its value grows.
        unsafe { queue.vulkan.raw.signal_semaphore(&info) }.unwrap();
        queue.block_until(point);
    };
    let point = submit(1);
    let mut has_run = false;
    let in_flight = queue.run_idle(|| has_run = true);
    end(1, point);
    assert!(in_flight.unwrap().is_none() && !has_run);
    assert_eq!(queue.run_idle(|| has_run = true).unwrap(), Some(point + 1));
    assert!(has_run && queue.reached() == point + 1);
    // What other queues come after is signalled, not what the next submission signals.
    let next = submit(2);
    let known = queue.known().map(|(_, known)| known);
    end(2, next);
    assert_eq!(known, Some(point));
}
