//! Adopted memory of a device that is lost.

use std::{sync::mpsc, thread};

use transload_core::{ErrorKind, MemoryKind};

use crate::{ILLEGAL_ADDRESS, alone_with_drop_errors, builder, manager};

struct Owner(mpsc::Sender<thread::ThreadId>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.send(thread::current().id()).unwrap();
    }
}

#[test]
fn owners_on_a_lost_device_are_dropped_and_uncounted() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let memory = manager(sim);
    let theirs = memory.allocate(MemoryKind::Device, 1000).unwrap();
    let address = theirs.device_address().unwrap();
    let (dropped, drops) = mpsc::channel();
    // SAFETY: `theirs` lives longer, and nobody else uses it.
    let ours = unsafe { memory.adopt(address, 1000, Owner(dropped.clone())) }.unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    let error = memory.allocate(MemoryKind::Device, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    // SAFETY: it is refused.
    let error = unsafe { memory.adopt(address, 1000, Owner(dropped)) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    drop(ours);
    let _lost = memory.drain();
    for _ in 0..2 {
        assert_ne!(drops.recv().unwrap(), thread::current().id());
    }
    assert!(drops.recv().is_err(), "each is dropped once");
    drop(theirs);
    let _lost = memory.drain();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}
