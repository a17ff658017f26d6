//! Range forms mean the same as for slices, and a buffer's memory and queue must fit it.

use std::{any::Any, ops::Bound, ptr::NonNull, sync::Arc};

use transload_core::{
    Access, Buffer, DeviceId, ErrorKind, Fence, MemoryKind, Operation, Pattern, Place, Queue, QueueLease,
    RawBuffer, Result, Storage, StreamPriority, Timeline, Timing, submit,
};
use transload_cuda_sim::harness;
use transload_memory::{MemoryLocation, Residency, Role, UnifiedBuffer, UnifiedMode};
use transload_streams::CudaStream;

use super::{Fixture, for_each_fixture};
use crate::support::setup::Setup;

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn every_range_form_selects_exactly_its_elements() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u32>(10);
        buffer.write().unwrap().copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(*buffer.read_range(2..=4).unwrap(), [2, 3, 4], "{fixture}");
        assert_eq!(*buffer.read_range(..=9).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "{fixture}");
        assert_eq!(*buffer.read_range(8..).unwrap(), [8, 9], "{fixture}");
        let behind = (Bound::Excluded(6), Bound::Unbounded);
        assert_eq!(*buffer.try_read(behind).unwrap(), [7, 8, 9], "{fixture}");
        buffer.write_range((Bound::Excluded(0), Bound::Included(1))).unwrap()[0] = 77;
        assert_eq!(buffer.read().unwrap()[..3], [0, 77, 2], "{fixture}");
        let last = (Bound::Excluded(usize::MAX), Bound::Unbounded);
        assert_eq!(kind(buffer.read_range(last)), Some(ErrorKind::OutOfRange), "{fixture}");
        drop(buffer);
    });
}

#[test]
fn empty_range_is_opened_and_acquired_without_a_copy() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<[f32; 3]>(10);
        let open = buffer.write().unwrap();
        assert_eq!(buffer.read_range(4..4).unwrap().len(), 0, "{fixture}: no element to conflict about");
        let acquire = |role: Role| {
            let trace = transload_cuda_sys::trace::start();
            let there =
                buffer.acquire_range_for_device(&fixture.stream, 10..10, role, role.access()).unwrap();
            assert_eq!((there.is_empty(), there.len()), (true, 0), "{fixture}");
            drop(there);
            let calls = trace.calls_of_this_thread();
            assert!(!calls.iter().any(|call| call.name.starts_with("cuMem")), "{fixture}: {role:?}");
        };
        for role in [Role::Input, Role::Resident, Role::Output, Role::InOut] {
            acquire(role);
        }
        drop(open);
        let there =
            buffer.acquire_range_for_device(&fixture.stream, 4..7, Role::Input, Access::Read).unwrap();
        assert_eq!((there.len(), there.raw().len()), (3, 36), "{fixture}: elements, not bytes");
        drop(there);
        drop(buffer);
    });
}

/// Read-only memory, as foreign memory may be.
struct ReadOnly(RawBuffer);

// SAFETY: every method forwards to the buffer, which is kept and has no other user meanwhile.
unsafe impl Storage for ReadOnly {
    fn place(&self) -> Place {
        self.0.place()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.0.host_address()
    }

    fn device_address(&self) -> Option<u64> {
        self.0.device_address()
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn unfit_or_read_only_memory_is_refused() {
    let setup = Setup::new();
    if UnifiedMode::of(&setup.device).unwrap() == UnifiedMode::Explicit {
        println!("skipped: the device has no concurrent access to unified memory");
        return;
    }
    let fixture = Fixture::new("the usual device", setup, UnifiedMode::Managed);
    let memory = &fixture.setup.memory;
    let raw = memory.allocate(MemoryKind::Unified, 64).unwrap();
    let over = |from: usize, to: usize| {
        UnifiedBuffer::<f32>::from_raw(memory, fixture.queue(), raw.slice(from..to).unwrap())
    };
    for (from, to) in [(0, 63), (0, 2), (1, 5), (2, 34)] {
        assert_eq!(kind(over(from, to)), Some(ErrorKind::InvalidArgument), "{from} to {to}");
    }
    assert_eq!(Buffer::len(&over(4, 64).unwrap()), 15);
    let fixed = RawBuffer::new(Box::new(ReadOnly(raw.clone())), &Arc::default());
    assert_eq!(fixed.place(), raw.place());
    let unwritable = UnifiedBuffer::<f32>::from_raw(memory, fixture.queue(), fixed);
    assert_eq!(kind(unwritable), Some(ErrorKind::Unsupported));
    let empty = raw.slice(8..8).unwrap();
    for role in [Role::Input, Role::Resident, Role::Output, Role::InOut] {
        role.apply(&empty, fixture.setup.device.id()).unwrap();
    }
    drop(empty);
    let bytes = raw.slice(1..4).unwrap();
    let sizeless = UnifiedBuffer::<[u8; 0]>::from_raw(memory, fixture.queue(), bytes);
    assert_eq!(kind(sizeless), Some(ErrorKind::InvalidArgument));
    drop(raw);
    fixture.finish();
}

/// A queue that claims to be the host's.
struct HostQueue(CudaStream);

// SAFETY: nothing is enqueued.
unsafe impl Queue for HostQueue {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn priority(&self) -> StreamPriority {
        self.0.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        self.0.timeline()
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.0.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.0.can_wait_for(fence)
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        panic!("nothing is enqueued");
    }

    fn outstanding(&self) -> u64 {
        0
    }
}

#[test]
fn host_queue_cannot_acquire() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u8>(100);
        let queue = HostQueue(CudaStream::new(&fixture.setup.device).unwrap());
        let refused = buffer.acquire_for_device(&queue, Role::Input);
        assert_eq!(kind(refused), Some(ErrorKind::Unsupported), "{fixture}");
        assert!(buffer.write().is_ok(), "{fixture}: not locked");
        drop((buffer, queue));
    });
}

#[test]
fn other_devices_queue_is_allowed_by_mode() {
    let Some(devices) = harness::devices(2) else { return };
    let [one, two] = devices[..] else { panic!("two devices") };
    let (own, there) = (MemoryLocation::Device(one.ordinal()), MemoryLocation::Device(two.ordinal()));
    let (one, two) = (Setup::on(one), Setup::on(two));
    let far = CudaStream::new(&two.device).unwrap();
    let queue_of = |setup: &Setup| QueueLease::new(Arc::new(CudaStream::new(&setup.device).unwrap()));
    let explicit =
        UnifiedBuffer::<u8>::new_with_mode(&one.memory, queue_of(&one), 100, UnifiedMode::Explicit).unwrap();
    assert_eq!(kind(explicit.acquire_for_device(&far, Role::Input)), Some(ErrorKind::Unsupported));
    drop(explicit);
    if UnifiedMode::of(&one.device).unwrap() == UnifiedMode::Managed {
        let raw = one.memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
        let refused = UnifiedBuffer::<u8>::from_raw(&one.memory, queue_of(&two), raw.clone());
        assert_eq!(kind(refused), Some(ErrorKind::InvalidArgument), "the queue is the neighbour's");
        let buffer = UnifiedBuffer::<u8>::from_raw(&one.memory, queue_of(&one), raw).unwrap();
        let last = || Residency::of(buffer.raw()).unwrap().last_prefetch;
        buffer.prefetch_to_device_on(&far, .., None).wait().unwrap();
        assert_eq!(last(), Some(own), "no ordinal means the buffer's own device, whatever the queue's is");
        drop(buffer.acquire_for_device(&far, Role::Input).unwrap());
        assert_eq!(last(), Some(there), "what lies on the one is not on the other");
        drop(buffer.acquire_for_device(&*queue_of(&one), Role::Input).unwrap());
        assert_eq!(last(), Some(own));
        // Streams of other devices are waited for like the own one.
        let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(3) };
        submit(&far, &fill, Timing::Off).unwrap();
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 3));
        drop(buffer);
    }
    drop(far);
    one.finish();
    two.finish();
}
