//! Submissions that the driver refuses after others of the same copy.

use std::sync::Arc;

use ash::vk;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, MemoryKind, Operation, QueueLease, RawBuffer, Result,
    StreamPriority, Timing, WorkloadType, submit,
};

use super::super::{faults, state::DeviceState};
use crate::{WgpuBackend, setup};

const BYTES: usize = 3 << 20;
const SHORT: vk::Result = vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;

struct Setup {
    backend: Arc<WgpuBackend>,
    state: Arc<DeviceState>,
    host: RawBuffer,
}

fn setup() -> Option<Setup> {
    let backend = setup::backend()?;
    let state = backend.states().remove(0);
    let host = CpuBackend::new().unwrap().allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
    host.write().unwrap().fill(1);
    Some(Setup { backend, state, host })
}

impl Setup {
    fn allocate(&self, bytes: usize) -> RawBuffer {
        self.backend.allocate(self.state.id(), MemoryKind::Device, bytes).unwrap()
    }

    /// Leases the queue of the first copier.
    fn copier(&self) -> QueueLease {
        let lease = || {
            let (normal, memory) = (StreamPriority::Normal, WorkloadType::Memory);
            self.backend.lease_reserved_queue(self.state.id(), normal, memory).unwrap()
        };
        let id = self.state.copiers[0].queue.id;
        (0..2).map(|_| lease()).find(|lease| lease.timeline().id() == id).unwrap()
    }

    fn upload(&self, queue: &QueueLease, dst: &RawBuffer, timing: Timing) -> Result<()> {
        submit(&**queue, &Operation::Copy { src: &self.host, dst }, timing)?.wait()
    }

    /// Returns the first byte.
    fn read(&self, queue: &QueueLease, src: &RawBuffer) -> Result<u8> {
        let back = CpuBackend::new()?.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES)?;
        submit(&**queue, &Operation::Copy { src, dst: &back }, Timing::Off)?.wait()?;
        let bytes = back.read()?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        Ok(bytes[0])
    }

    /// Checks that nothing is in flight on the copier's queue, as is known without a look.
    fn assert_reached(&self) {
        let queue = &self.state.copiers[0].queue;
        assert!(queue.reached() >= queue.enqueued(), "{} of {}", queue.reached(), queue.enqueued());
    }
}

fn is_short(error: &Error, is_partial: bool) {
    assert_eq!((error.kind(), error.is_partial()), (ErrorKind::OutOfMemory, is_partial), "{error}");
}

#[test]
fn copy_refused_after_a_part_of_it_waits_and_marks_the_destination() {
    let Some(setup) = setup() else { return };
    let (queue, dst) = (setup.copier(), setup.allocate(BYTES));
    let (long, other) = (setup.allocate(64 << 20), setup.allocate(64 << 20));
    (0..4).for_each(|_| {
        drop(submit(&*queue, &Operation::Copy { src: &long, dst: &other }, Timing::Off).unwrap());
    });
    // A staging buffer's bytes were submitted, after the long work.
    faults::fail_after(setup.state.copiers[0].queue.queue.raw, 1, SHORT);
    is_short(&setup.upload(&queue, &dst, Timing::Off).unwrap_err(), true);
    setup.assert_reached();
    assert_eq!(setup.read(&queue, &dst).unwrap_err().kind(), ErrorKind::SourceFailed);
    setup.upload(&queue, &dst, Timing::Off).unwrap();
    assert_eq!(setup.read(&queue, &dst).unwrap(), 1);
}

/// A queue that only copies has its points before and after wgpu's, which copies a framework's buffer for it.
#[test]
fn copy_of_an_adopted_buffer_that_is_refused_reaches_its_points() {
    let Some(setup) = setup() else { return };
    let queue = setup.copier();
    let theirs = setup.backend.device(setup.state.id()).unwrap().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: BYTES as u64,
        usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    // SAFETY: it is a buffer of the device, and not destroyed.
    let dst = unsafe { setup.backend.adopt_buffer(setup.state.id(), &theirs) }.unwrap();
    setup.upload(&queue, &dst, Timing::Off).unwrap();
    let [copier, wgpu] = [&setup.state.copiers[0], &setup.state.wgpu].map(|line| line.queue.queue.raw);
    // Of the copier's own submissions one comes first.
    let own = usize::from(copier == wgpu);
    setup.host.write().unwrap().fill(2);
    faults::fail_after(wgpu, own, SHORT);
    is_short(&setup.upload(&queue, &dst, Timing::Off).unwrap_err(), false);
    setup.assert_reached();
    assert_eq!(setup.read(&queue, &dst).unwrap(), 1);
    // The copy is complete, and its second timestamp is refused.
    let staging = BYTES.div_ceil(super::CAPACITY);
    faults::fail_after(copier, 1 + own * staging, SHORT);
    is_short(&setup.upload(&queue, &dst, Timing::Measured).unwrap_err(), true);
    setup.assert_reached();
    assert_eq!(setup.read(&queue, &dst).unwrap_err().kind(), ErrorKind::SourceFailed);
    setup.upload(&queue, &dst, Timing::Off).unwrap();
    assert_eq!(setup.read(&queue, &dst).unwrap(), 2);
}
