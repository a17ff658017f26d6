//! Memory that one family of devices has registered until it is freed.

use std::any::Any;

use transload_core::{
    Backend, DeviceId, KeptRegistration, MemoryKind, Operation, Place, StreamPriority, Timing,
    TrySubmitError, Turns, WorkloadType, submit, try_submit_after,
};
use transload_transfer::StridedLayout;

use crate::{MOCK, beside_cpu};

const BYTES: usize = 2 << 20;

struct Registration(&'static str);

impl KeptRegistration for Registration {
    fn family(&self) -> &'static str {
        self.0
    }

    fn end(self: Box<Self>, owner: Box<dyn Any + Send + Sync>) {
        drop(owner);
    }
}

#[test]
fn registration_counts_for_devices_of_its_family_only() {
    for (family, kind) in [("cuda", MemoryKind::Pageable), ("mock", MemoryKind::Pinned)] {
        let (manager, backend) = beside_cpu();
        let near = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
        let there = manager.allocate(MOCK, MemoryKind::Device, BYTES).unwrap();
        assert!(near.registration_slot().unwrap().keep(Box::new(Registration(family))).is_ok());
        assert!(near.is_registered());
        for (src, dst) in [(&near, &there), (&there, &near)] {
            let planned = manager.copy(src, dst).plan().unwrap().path;
            let report = manager.copy(src, dst).wait().unwrap();
            let host = [report.path.src, report.path.dst].into_iter().find(|place| place.device.is_cpu());
            assert_eq!((host, planned), (Some(Place::new(DeviceId::Cpu, kind)), report.path), "{family}");
        }
        // So is one run of a strided copy.
        let row = StridedLayout::new(BYTES);
        let strided = || manager.copy_strided((&near, &row), (&there, &row)).unwrap();
        let (planned, report) = (strided().plan().unwrap(), strided().wait().unwrap());
        assert_eq!((planned.path.src.kind, planned.path), (kind, report.path), "{family}");
        // What a driver copies during the call waits for earlier work, and would block a task's thread.
        let queue = backend.lease_queue(MOCK, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let [others, to] = [(); 2].map(|()| manager.allocate(MOCK, MemoryKind::Device, 64).unwrap());
        let earlier = Operation::Copy { src: &others, dst: &to };
        let earlier = submit(&*queue, &earlier, Timing::Off).unwrap();
        let copy = Operation::Copy { src: &near, dst: &there };
        let tried = try_submit_after(&*queue, &copy, &[earlier], Timing::Off, &Turns::default());
        let is_blocked = matches!(tried, Err(TrySubmitError::WouldBlock(_)));
        assert_eq!(is_blocked, kind == MemoryKind::Pageable, "{family}: {tried:?}");
        drop(queue);
        manager.drain().unwrap();
    }
}
