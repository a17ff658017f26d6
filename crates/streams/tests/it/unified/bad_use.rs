//! Invalid arguments are refused with a reason, in both modes alike.

use transload_core::{Access, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, Pod, QueueLease, Result, Retry};
use transload_cuda_sim::harness;
use transload_memory::{Role, UnifiedBuffer, UnifiedMode};

use super::{Fixture, for_each_fixture};
use crate::support::setup::Setup;

fn made<T: Pod>(fixture: &Fixture, len: usize) -> Result<UnifiedBuffer<T>> {
    UnifiedBuffer::new_with_mode(&fixture.setup.memory, fixture.queue(), len, fixture.mode)
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn empty_zero_sized_and_overflowing_buffers_are_refused() {
    for_each_fixture(|fixture| {
        for len in [0, usize::MAX, usize::MAX / 4] {
            assert_eq!(kind(made::<f64>(fixture, len)), Some(ErrorKind::InvalidArgument), "{fixture}: {len}");
        }
        assert_eq!(kind(made::<[f32; 0]>(fixture, 5)), Some(ErrorKind::InvalidArgument), "{fixture}");
        assert!(fixture.setup.memory.resource_counts().is_empty());
    });
}

#[test]
fn out_of_memory_reports_requested_free_and_total() {
    for_each_fixture(|fixture| {
        let error = made::<u8>(fixture, 1 << 50).unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::OutOfMemory, Retry::AfterFreeing), "{fixture}");
        let shortage = error.memory_shortage().unwrap();
        let (free, total) = (shortage.free.unwrap(), shortage.total.unwrap());
        assert!(shortage.requested == 1 << 50 && 0 < free && free <= total && total < 1 << 50, "{fixture}");
        assert!(fixture.setup.memory.resource_counts().is_empty());
        drop(made::<u8>(fixture, 1 << 10).unwrap());
    });
}

#[test]
fn ranges_outside_are_refused() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<f32>(10);
        let outside = Some(ErrorKind::OutOfRange);
        #[allow(clippy::reversed_empty_ranges, reason = "this is what is refused")]
        for range in [5..11, 7..6, 11..11, usize::MAX - 1..usize::MAX, 0..usize::MAX] {
            assert_eq!(kind(buffer.read_range(range.clone())), outside, "{fixture}: {range:?}");
            assert_eq!(kind(buffer.try_write(range.clone())), outside, "{fixture}: {range:?}");
            assert_eq!(
                kind(buffer.prefetch_range_to_host(range.clone()).wait()),
                outside,
                "{fixture}: {range:?}"
            );
            let acquired =
                buffer.acquire_range_for_device(&fixture.stream, range.clone(), Role::Input, Access::Read);
            assert_eq!(kind(acquired), outside, "{fixture}: {range:?}");
        }
        assert_eq!(kind(buffer.read_range(..=usize::MAX)), outside);
        for empty in [buffer.prefetch_range_to_host(3..3), buffer.prefetch_range_to_device(3..3, None)] {
            assert_eq!(kind(empty.wait()), Some(ErrorKind::InvalidArgument), "{fixture}");
        }
        drop(buffer);
    });
}

#[test]
fn missing_and_unsupported_devices_are_refused() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<f32>(10);
        let error = buffer.prefetch_to_device(Some(u32::MAX)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownDevice, "{fixture}");
        assert!(error.to_string().contains("valid ordinals are 0 to"), "{error}");
        assert_eq!(kind(buffer.set_accessed_by(u32::MAX)), Some(ErrorKind::UnknownDevice), "{fixture}");
        let nowhere = buffer.set_preferred_location(DeviceId::Cuda(i32::MAX as u32));
        assert_eq!(kind(nowhere), Some(ErrorKind::UnknownDevice), "{fixture}");
        let elsewhere = buffer.set_preferred_location(DeviceId::Wgpu(0));
        assert_eq!(kind(elsewhere), Some(ErrorKind::Unsupported), "{fixture}");
        let written = buffer.acquire_range_for_device(&fixture.stream, .., Role::Input, Access::Write);
        assert_eq!(kind(written), Some(ErrorKind::InvalidArgument), "{fixture}");
        // Harmless for_each_fixture.
        buffer.set_preferred_location(DeviceId::Cpu).unwrap();
        buffer.set_accessed_by(fixture.setup.test.ordinal()).unwrap();
        buffer.advise(MemoryAdvice::SetReadMostly).unwrap();
        buffer.advise(MemoryAdvice::UnsetPreferredLocation).unwrap();
        assert_eq!(buffer.hints().is_ok(), fixture.is_managed());
        drop(buffer);
    });
}

#[test]
fn a_queue_or_memory_of_another_device_or_kind_is_refused() {
    let Some(devices) = harness::devices(2) else { return };
    let [one, two] = devices[..] else { panic!("two devices") };
    let (one, two) = (Setup::on(one), Setup::on(two));
    let stream = transload_streams::CudaStream::new(&two.device).unwrap();
    let queue = || QueueLease::new(std::sync::Arc::new(stream.clone()));
    for mode in [UnifiedMode::Managed, UnifiedMode::Explicit] {
        let refused = UnifiedBuffer::<u8>::new_with_mode(&one.memory, queue(), 10, mode);
        assert_eq!(kind(refused), Some(ErrorKind::InvalidArgument), "{mode}");
        let buffer = UnifiedBuffer::<u8>::new_with_mode(&two.memory, queue(), 10, mode).unwrap();
        let there = one.device.ordinal();
        let moved = kind(buffer.prefetch_to_device(Some(there)).wait());
        let stays = (mode == UnifiedMode::Explicit).then_some(ErrorKind::Unsupported);
        assert_eq!(moved, stays, "{mode}: only managed memory moves to another device");
        buffer.set_accessed_by(there).unwrap();
        assert!(buffer.read().unwrap().iter().all(|byte| *byte == 0));
    }
    for memory in [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped] {
        let raw = two.memory.allocate(memory, 16).unwrap();
        let refused = UnifiedBuffer::<u8>::from_raw(&two.memory, queue(), raw);
        assert_eq!(kind(refused), Some(ErrorKind::Unsupported), "{memory}");
    }
    let raw = one.memory.allocate(MemoryKind::Unified, 16).unwrap();
    let refused = UnifiedBuffer::<u8>::from_raw(&two.memory, queue(), raw);
    assert_eq!(kind(refused), Some(ErrorKind::InvalidArgument));
    drop(stream);
    one.finish();
    two.finish();
}
