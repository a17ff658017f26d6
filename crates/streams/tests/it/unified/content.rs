//! Host and device see each other's earlier writes.

use std::{collections::HashSet, fmt::Debug, sync::Arc};

use transload_core::{Access, Buffer, ErrorKind, MemoryKind, Operation, Pattern, Pod, Timing, submit};
use transload_memory::{CudaMemoryManager, CudaResource, Role, UnifiedBuffer};
use transload_streams::{CudaStream, LaunchConfig, StreamOrderedAllocator};

use super::{Fixture, for_each_fixture};
use crate::{
    launch::{numbers, saxpy, saxpy_of, watched},
    support::setup::noise,
};

fn is_shared<T: Pod + PartialEq + Debug>(fixture: &Fixture, zero: T, a: T, b: T) {
    let buffer = fixture.buffer::<T>(13);
    assert!(buffer.read().unwrap().iter().all(|element| *element == zero), "{fixture} begins as zeros");
    assert_eq!(
        (buffer.len(), buffer.kind(), buffer.device()),
        (13, MemoryKind::Unified, fixture.setup.device.id())
    );
    buffer.write().unwrap()[4] = a;
    let mut back = [b; 13];
    buffer.copy_to_host(&mut back).unwrap();
    assert!(
        back.iter().enumerate().all(|(at, element)| *element == if at == 4 { a } else { zero }),
        "{fixture}"
    );
    buffer.fill(b).unwrap();
    assert!(buffer.read().unwrap().iter().all(|element| *element == b), "{fixture}: fill");
    let mixed: Vec<T> = (0..13).map(|at| if at % 3 == 0 { a } else { b }).collect();
    buffer.copy_from_host(&mixed).unwrap();
    assert_eq!(*buffer.read_range(2..9).unwrap(), mixed[2..9]);
    // A prefix and a part, concurrently with what the host has of the rest.
    buffer.write().unwrap()[11] = b;
    buffer.copy_from_host(&[b, a]).unwrap();
    buffer.copy_from_host_at(9, &[b, a]).unwrap();
    let mut expected = mixed;
    for (at, element) in [(11, b), (0, b), (1, a), (9, b), (10, a)] {
        expected[at] = element;
    }
    assert_eq!(*buffer.read().unwrap(), expected, "{fixture}");
    buffer.copy_to_host_at(8, &mut back[..5]).unwrap();
    assert_eq!(back[..5], expected[8..], "{fixture}");
    assert_eq!(buffer.copy_from_host_at(12, &[a, b]).unwrap_err().kind(), ErrorKind::OutOfRange);
}

#[test]
fn elements_of_any_size_start_zeroed_and_are_shared() {
    for_each_fixture(|fixture| {
        is_shared(fixture, 0_u8, 7, 9);
        is_shared(fixture, 0_u16, 0x1234, 1);
        is_shared(fixture, 0.0_f32, 1.5, -2.25);
        is_shared(fixture, 0.0_f64, 0.1, 1e300);
        is_shared(fixture, [0.0_f32; 768], [0.25; 768], [2.0; 768]);
    });
}

#[test]
fn kernel_and_host_see_each_others_writes() {
    watched(|| {
        for_each_fixture(|fixture| {
            let kernel = saxpy_of(&fixture.setup);
            let other = CudaStream::new(&fixture.setup.device).unwrap();
            let (x, y) = (fixture.buffer::<f32>(30_001), fixture.buffer::<f32>(30_001));
            for round in 0..5 {
                let (a, b) = (numbers(30_001, round), numbers(30_001, round + 50));
                x.write().unwrap().copy_from_slice(&a);
                y.write().unwrap().copy_from_slice(&b);
                let there_x = x.acquire_for_device(&other, Role::Input).unwrap();
                let there_y = y.acquire_for_device(&other, Role::Output).unwrap();
                assert_eq!((there_x.len(), there_x.access()), (30_001, Access::Read));
                assert_eq!((there_y.role(), there_y.access()), (Role::Output, Access::Write));
                drop(saxpy(&kernel, &other, 3.0, there_x.raw(), there_y.raw()).unwrap());
                drop((there_x, there_y));
                let expected: Vec<_> = a.iter().zip(&b).map(|(x, y)| 3.0 * x + y).collect();
                assert!(*y.read().unwrap() == expected[..], "{fixture}, round {round}");
                assert!(*x.read().unwrap() == a[..], "{fixture}, round {round}: the input");
            }
            drop((x, y, other, kernel));
        });
    });
}

#[test]
fn alternating_read_modify_write_loses_no_update() {
    for_each_fixture(|fixture| {
        let kernel = saxpy_of(&fixture.setup);
        let (ones, sum) = (fixture.buffer::<f32>(500), fixture.buffer::<f32>(500));
        ones.fill(1.0).unwrap();
        for _ in 0..20 {
            sum.write().unwrap().iter_mut().for_each(|number| *number *= 2.0);
            let there = sum.acquire_for_device(&fixture.stream, Role::Resident).unwrap();
            drop(saxpy(&kernel, &fixture.stream, 1.0, ones.raw(), there.raw()).unwrap());
        }
        assert!(sum.read().unwrap().iter().all(|number| *number == ((1_u32 << 20) - 1) as f32), "{fixture}");
        drop((ones, sum, kernel));
    });
}

#[test]
fn host_and_device_ranges_do_not_interfere() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u8>(100_000);
        let raw = buffer.raw();
        let mut model = vec![0_u8; 100_000];
        for round in 0..12_u8 {
            let (from, to) = (usize::from(round) * 7_001, usize::from(round) * 7_001 + 20_000);
            buffer.write_range(from..to).unwrap().fill(round + 1);
            model[from..to].fill(round + 1);
            let there = buffer
                .acquire_range_for_device(
                    &fixture.stream,
                    from + 300..to - 19_000,
                    Role::Output,
                    Access::Write,
                )
                .unwrap();
            let pattern = Pattern::U8(100 + round);
            drop(
                submit(&fixture.stream, &Operation::Fill { dst: there.raw(), pattern }, Timing::Off).unwrap(),
            );
            drop(there);
            model[from + 300..to - 19_000].fill(100 + round);
            assert!(
                *buffer.read_range(from..from + 5_000).unwrap() == model[from..from + 5_000],
                "{fixture}"
            );
        }
        assert!(*buffer.read().unwrap() == model[..], "{fixture}");
        assert_eq!(raw.len(), 100_000);
        assert!(buffer.read_range(50..50).unwrap().is_empty());
        drop(buffer.write_range(100_000..).unwrap());
        drop(buffer);
    });
}

#[test]
fn device_handle_sees_later_host_writes() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u8>(5000);
        let kept = buffer.acquire_for_device(&fixture.stream, Role::Input).unwrap().raw().clone();
        let back = fixture.setup.pinned(&[0; 5000]);
        for round in 0..5 {
            let content = noise(5000, round);
            buffer.write().unwrap().copy_from_slice(&content);
            drop(fixture.stream.copy_to_host_async(&kept, &back));
            assert!(*back.read().unwrap() == content[..], "{fixture}");
            let content = noise(5000, round + 100);
            drop(fixture.stream.copy_from_host_async(&fixture.setup.pinned(&content), &kept));
            assert!(
                *buffer.read().unwrap() == content[..],
                "{fixture}: and the host what is written through it"
            );
        }
        drop((kept, back, buffer));
    });
}

#[test]
fn conversion_from_and_to_core_buffers_copies_nothing() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u32>(1000);
        buffer.write().unwrap().fill(0x0102_0304);
        let address = buffer.as_ptr();
        let raw = buffer.into_raw().unwrap();
        assert_eq!(raw.device_address(), Some(address.addr() as u64));
        let back = fixture.setup.pinned(&[0; 4000]);
        fixture.stream.copy_to_host_async(&raw, &back).wait().unwrap();
        assert!(back.read().unwrap().chunks_exact(4).all(|bytes| bytes == [4, 3, 2, 1]), "{fixture}");
        let memory = &fixture.setup.memory;
        if !fixture.is_managed() {
            let error = UnifiedBuffer::<u32>::from_raw(memory, fixture.queue(), raw).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            return;
        }
        let part =
            UnifiedBuffer::<u32>::from_raw(memory, fixture.queue(), raw.slice(400..).unwrap()).unwrap();
        assert_eq!((part.len(), part.as_ptr().addr()), (900, address.addr() + 400));
        part.write().unwrap()[0] = 5;
        let odd = raw.slice(2..10).unwrap();
        let error = UnifiedBuffer::<u32>::from_raw(memory, fixture.queue(), odd).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "it is not aligned");
        assert_eq!(raw.read().unwrap()[400], 5);
    });
}

#[test]
fn raw_device_write_under_a_write_guard_is_seen() {
    for_each_fixture(|fixture| {
        let kernel = saxpy_of(&fixture.setup);
        let (x, y) = (fixture.buffer::<f32>(1000), fixture.buffer::<f32>(1000));
        x.write().unwrap().fill(2.0);
        y.write().unwrap().fill(1.0);
        let (there_x, there_y) = (
            x.acquire_for_device(&fixture.stream, Role::Input).unwrap(),
            y.acquire_for_device(&fixture.stream, Role::Output).unwrap(),
        );
        fixture.stream.synchronize().unwrap();
        let launch = kernel.launch(LaunchConfig::for_elements(1000, 128)).arg(3.0_f32);
        let launch = launch.address(there_x.device_address().unwrap());
        let launch = launch.address(there_y.device_address().unwrap()).arg(1000_u64);
        // SAFETY: the kernel touches that many numbers of memory kept by the guards; earlier work is complete.
        unsafe { launch.enqueue(&fixture.stream) }.unwrap().wait().unwrap();
        drop((there_x, there_y));
        assert!(y.read().unwrap().iter().all(|number| *number == 7.0), "{fixture}");
        drop((x, y, kernel));
    });
}

#[test]
fn pooled_buffers_are_shared_and_their_blocks_reused() {
    for_each_fixture(|fixture| {
        if !fixture.is_managed() {
            return;
        }
        let memory = Arc::new(CudaMemoryManager::new(&fixture.setup.device).unwrap());
        let pool = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Unified).unwrap());
        let mut addresses = HashSet::new();
        for round in 1..10_u32 {
            let block = pool.allocate_buffer(&fixture.stream, 40_000).unwrap();
            addresses.insert(block.device_address().unwrap());
            let role = if round % 2 == 0 { Role::Input } else { Role::Resident };
            let buffer = UnifiedBuffer::<u32>::from_raw(&memory, fixture.queue(), block).unwrap();
            buffer.write().unwrap().fill(round);
            buffer.prefetch_range_to_device(5_000.., None).wait().unwrap();
            drop(buffer.acquire_for_device(&fixture.stream, role).unwrap());
            let half = buffer.raw().slice(..20_000).unwrap();
            let fill = Operation::Fill { dst: &half, pattern: Pattern::U32(round + 100) };
            submit(&fixture.stream, &fill, Timing::Off).unwrap();
            let seen = buffer.read().unwrap();
            assert!(seen[..5_000].iter().all(|number| *number == round + 100), "{fixture}: round {round}");
            assert!(seen[5_000..].iter().all(|number| *number == round), "{fixture}: round {round}");
            drop(seen);
        }
        assert!(addresses.len() < 9, "{fixture}: blocks are used again");
        drop(pool);
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{fixture}: {}", memory.resource_counts());
    });
}
