//! Submissions of a thread that ends.

use std::{cell::RefCell, sync::Arc, thread};

use transload_core::{
    Backend as _, MemoryKind, Operation, QueueLease, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};

use super::*;
use crate::{setup, vulkan::DeviceState};

/// Copies when it is dropped.
struct AtEnd {
    state: Arc<DeviceState>,
    queue: QueueLease,
    src: RawBuffer,
    dst: RawBuffer,
}

impl AtEnd {
    fn copy(&self) {
        let copy = Operation::Copy { src: &self.src, dst: &self.dst };
        submit(&*self.queue, &copy, Timing::Off).unwrap().wait().unwrap();
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.copy();
        // As for a submission by wgpu, whose debug builds refuse to be called here.
        let wgpu = &self.state.queue;
        let before = stage(wgpu.queue.raw, Waits::new(), (wgpu.semaphore.raw, wgpu.enqueued() + 1));
        assert!(before.is_none() && unstage(before).is_none());
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// A panic would end the process: it may not leave a function that the driver's is replaced by.
#[test]
fn destructor_of_a_thread_local_copies_after_later_ones_have_run() {
    let Some(backend) = setup::backend() else { return };
    let state = backend.states().remove(0);
    let allocate = || backend.allocate(state.id(), MemoryKind::Device, 64 << 10).unwrap();
    let queue = backend.lease_queue(state.id(), StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let (src, dst) = (allocate(), allocate());
    let at_end = AtEnd { state, queue, src, dst };
    // Destructors run in the opposite order: that of the gate's thread-local would come before this one.
    let run = || AT_END.with_borrow_mut(|place| place.insert(at_end).copy());
    thread::spawn(run).join().unwrap();
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
