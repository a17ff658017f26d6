//! The clock of a device next to its timestamps.

use std::sync::atomic::Ordering;

use ash::vk;
use transload_core::DeviceClock;

use super::{super::Semaphore, WgpuClock};
use crate::setup;

#[test]
fn clock_is_read_while_the_queue_is_held_and_is_that_of_its_timestamps() {
    let Some(backend) = setup::backend() else { return };
    let states = backend.states();
    for state in states.iter().filter(|state| state.queue.vulkan.calibrated.is_some()) {
        let (queue, gate) = (&*state.queue, Semaphore::new(&state.queue.vulkan).unwrap());
        // Ends when the host says so.
        let point = queue.enqueued() + 1;
        queue.submit_nothing(&mut queue.lock().unwrap(), point, &[(gate.raw, 1)]).unwrap();
        queue.enqueued.store(point, Ordering::Release);
        queue.submitted.store(point, Ordering::Release);
        let before = state.clock.anchor().unwrap();
        assert!(queue.refresh() < point, "it is held");
        let info = vk::SemaphoreSignalInfo::default().semaphore(gate.raw).value(1);
        // SAFETY: the semaphore is alive, and its value is less.
        unsafe { queue.vulkan.raw.signal_semaphore(&info) }.unwrap();
        let (slot, point) = WgpuClock::submit(queue).unwrap();
        queue.block_until(point);
        let at = queue.read_timestamp(slot).unwrap().unwrap();
        queue.release_timestamp(slot);
        let after = state.clock.anchor().unwrap();
        assert!(before.device <= at && at <= after.device, "{before:?}, {at}, {after:?}");
    }
}
