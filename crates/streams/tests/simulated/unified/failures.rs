//! Unified buffers on a failing driver never show data older than the last write.

use std::sync::Arc;

use transload_core::{Buffer, ErrorKind, Operation, Pattern, QueueLease, Result, Timing, submit};
use transload_memory::{CudaDevice, CudaMemoryManager, Role, UnifiedBuffer, UnifiedMode};
use transload_streams::CudaStream;

use crate::{UNKNOWN, alone_with_drop_errors, builder, with_each_call_failing, within};

const BYTES: usize = 3000;

/// Retries once: only one call fails.
fn twice<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    attempt().or_else(|_| attempt())
}

fn turns(device: &CudaDevice, memory: &CudaMemoryManager, mode: UnifiedMode) -> Result<()> {
    let (own, other) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let buffer = UnifiedBuffer::<u8>::new_with_mode(memory, QueueLease::new(Arc::new(own)), BYTES, mode)?;
    let kept = buffer.raw().clone();
    let mut back = vec![0; BYTES];
    for round in 1..4_u8 {
        twice(|| buffer.write().map(|mut slice| slice.fill(round)))?;
        let copied = twice(|| buffer.copy_to_host(&mut back));
        assert!(copied.is_err() || back == [round; BYTES], "{mode}: round {round}: a copy is stale");
        twice(|| {
            let there = buffer.acquire_for_device(&other, Role::Output)?;
            let half = there.raw().slice(..BYTES / 2)?;
            submit(&other, &Operation::Fill { dst: &half, pattern: Pattern::U8(100 + round) }, Timing::Off)
        })?;
        drop(twice(|| buffer.prefetch_to_host().wait()));
        let slice = twice(|| buffer.read())?;
        let right = slice[..BYTES / 2].iter().all(|byte| *byte == 100 + round)
            && slice[BYTES / 2..].iter().all(|byte| *byte == round);
        assert!(right, "{mode}: round {round}: a slice is stale");
    }
    assert_eq!(kept.len(), BYTES);
    Ok(())
}

#[test]
fn each_failing_call_shows_no_stale_data() {
    within(|| {
        for mode in [UnifiedMode::Managed, UnifiedMode::Explicit] {
            with_each_call_failing(|device, memory| turns(device, memory, mode));
        }
    });
}

#[test]
fn failed_upload_of_a_slice_is_retried_by_the_next_use() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let queue = QueueLease::new(Arc::new(stream.clone()));
        let buffer =
            UnifiedBuffer::<u8>::new_with_mode(&memory, queue, BYTES, UnifiedMode::Explicit).unwrap();
        let kept = buffer.raw().clone();
        let mut back = vec![0; BYTES];
        for round in 1..5_u8 {
            let mut slice = buffer.write_range(100..200).unwrap();
            slice.fill(round);
            sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
            drop(slice);
            let fill = Operation::Fill { dst: &kept, pattern: Pattern::U8(9) };
            assert_eq!(submit(&stream, &fill, Timing::Off).unwrap_err().kind(), ErrorKind::Busy);
            drop(stream.memset_async(&kept.slice(200..).unwrap(), Pattern::U8(round)));
            match round {
                1 => assert!(buffer.read_range(..300).unwrap()[100..] == [round; 200]),
                2 => drop(buffer.acquire_for_device(&stream, Role::Input).unwrap()),
                3 => drop(buffer.prefetch_to_device(None).wait().unwrap()),
                _ => {
                    // Fails again, without losing data.
                    sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
                    assert_eq!(buffer.read().unwrap_err().kind(), ErrorKind::Device);
                }
            }
            buffer.copy_to_host(&mut back).unwrap();
            assert!(back[..100].iter().all(|byte| *byte == 0), "round {round}");
            assert!(back[100..].iter().all(|byte| *byte == round), "round {round}");
        }
        sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
        buffer.write().unwrap().fill(77);
        let raw = buffer.into_raw().unwrap();
        let pinned = memory.allocate(transload_core::MemoryKind::Pinned, BYTES).unwrap();
        stream.copy_to_host_async(&raw, &pinned).wait().unwrap();
        assert!(pinned.read().unwrap().iter().all(|byte| *byte == 77), "it went along");
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    });
}

#[test]
fn failed_upload_is_retried_when_the_buffer_is_dropped() {
    within(|| {
        let _alone = alone_with_drop_errors();
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let pinned = memory.allocate(transload_core::MemoryKind::Pinned, BYTES).unwrap();
        for refusals in 1..3 {
            let queue = QueueLease::new(Arc::new(stream.clone()));
            let buffer =
                UnifiedBuffer::<u8>::new_with_mode(&memory, queue, BYTES, UnifiedMode::Explicit).unwrap();
            let kept = buffer.raw().clone();
            buffer.write().unwrap().fill(5);
            let mut slice = buffer.write().unwrap();
            slice.fill(6);
            sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
            drop(slice);
            if refusals == 2 {
                sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 1, UNKNOWN);
                assert_eq!(buffer.into_raw().unwrap_err().kind(), ErrorKind::Device);
            } else {
                drop(buffer);
            }
            stream.copy_to_host_async(&kept, &pinned).wait().unwrap();
            assert!(
                pinned.read().unwrap().iter().all(|byte| *byte == 6),
                "{refusals}: what was there before"
            );
        }
        assert!(transload_cuda_sys::take_drop_errors().is_empty());
        drop((stream, pinned));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    });
}

#[test]
fn a_device_that_lacks_managed_access_gets_no_pages() {
    within(|| {
        let [older, newer] = [builder().pre_pascal().build(), builder().build()];
        for mode in [UnifiedMode::Managed, UnifiedMode::Explicit] {
            let device = CudaDevice::new(newer.ordinal()).unwrap();
            let memory = CudaMemoryManager::new(&device).unwrap();
            let queue = QueueLease::new(Arc::new(CudaStream::new(&device).unwrap()));
            let buffer = UnifiedBuffer::<f32>::new_with_mode(&memory, queue, 10, mode).unwrap();
            let error = buffer.prefetch_to_device(Some(older.ordinal())).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{mode}: {error}");
            let advised = buffer.set_accessed_by(older.ordinal());
            assert!(mode == UnifiedMode::Explicit || advised.unwrap_err().kind() == ErrorKind::Unsupported);
            drop(buffer);
            memory.drain().unwrap();
        }
        let device = CudaDevice::new(older.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let queue = QueueLease::new(Arc::new(CudaStream::new(&device).unwrap()));
        let forced = UnifiedBuffer::<u8>::new_with_mode(&memory, queue, 10, UnifiedMode::Managed);
        let error = forced.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("use the mode explicit"), "{error}");
        drop(memory);
        drop(device);
        assert!(older.live_objects().is_empty() && newer.live_objects().is_empty());
    });
}
