//! Host slices and conflicting device work exclude each other: one is refused or waits.

use transload_core::{Access, Buffer, ErrorKind, Operation, Pattern, Result, Timing, submit};
use transload_memory::Role;
use transload_streams::CudaStream;

use super::for_each_fixture;
use crate::{
    launch::{saxpy, saxpy_of},
    support::gate::{Gate, limited},
};

fn busy<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Busy)
}

#[test]
fn open_slice_blocks_every_device_use_of_its_range() {
    for_each_fixture(|fixture| {
        let kernel = saxpy_of(&fixture.setup);
        let (buffer, other) = (fixture.buffer::<f32>(100), fixture.buffer::<f32>(100));
        let stream = &fixture.stream;
        let slice = buffer.write_range(..50).unwrap();
        assert!(busy(buffer.acquire_for_device(stream, Role::Input)), "{fixture}");
        assert!(busy(saxpy(&kernel, stream, 1.0, buffer.raw(), other.raw())), "{fixture}");
        assert!(
            busy(buffer.prefetch_to_device(None).wait()) && busy(buffer.prefetch_to_host().wait()),
            "{fixture}"
        );
        assert!(busy(buffer.fill(1.0)) && busy(buffer.copy_from_host(&[0.0; 100])), "{fixture}");
        assert!(busy(buffer.copy_to_host(&mut [0.0; 100])), "{fixture}");
        assert!(busy(buffer.read()) && busy(buffer.write()) && busy(buffer.try_read(..1)), "{fixture}");
        let beside = buffer.acquire_range_for_device(stream, 50.., Role::Output, Access::Write).unwrap();
        let fill = Operation::Fill { dst: beside.raw(), pattern: Pattern::U8(0) };
        submit(stream, &fill, Timing::Off).unwrap();
        drop((slice, beside));

        let slice = buffer.read().unwrap();
        assert!(busy(buffer.acquire_for_device(stream, Role::Output)), "{fixture}");
        assert!(busy(buffer.fill(1.0)), "{fixture}");
        assert!(busy(buffer.prefetch_to_device(None).wait()), "{fixture}: pages do not move under a slice");
        let nothing = buffer.acquire_range_for_device(stream, 5..5, Role::Output, Access::Write);
        assert!(!busy(nothing), "{fixture}: no byte");
        // Readers do not exclude each other.
        let there = buffer.acquire_for_device(stream, Role::Input).unwrap();
        drop(saxpy(&kernel, stream, 1.0, there.raw(), other.raw()).unwrap());
        drop(buffer.read().unwrap());
        drop((there, slice));
        drop(buffer.acquire_for_device(stream, Role::Output).unwrap());
        drop((buffer, other, kernel));
    });
}

#[test]
fn guard_blocks_conflicting_slices_until_dropped() {
    for_each_fixture(|fixture| {
        let buffer = fixture.buffer::<u8>(100);
        // The initial zeros are present.
        drop(buffer.read().unwrap());
        let acquire = |range, role, access| {
            buffer.acquire_range_for_device(&fixture.stream, range, role, access).unwrap()
        };
        let writing = acquire(10..20, Role::Output, Access::Write);
        assert!(busy(buffer.read()) && busy(buffer.write()) && busy(buffer.try_read(19..)), "{fixture}");
        assert!(!busy(buffer.try_read(20..)) && !busy(buffer.write_range(..10)), "{fixture}: next to it");
        let more = acquire(0..100, Role::Resident, Access::Read);
        assert_eq!((more.len(), writing.len()), (100, 10), "guards do not exclude each other");
        drop(writing);
        assert!(!busy(buffer.read()) && busy(buffer.write()) && busy(buffer.try_write(..1)), "{fixture}");
        drop(more);
        assert!(!busy(buffer.write()), "{fixture}");
        drop(buffer);
    });
}

#[test]
fn slice_waits_for_work_in_flight_and_try_slice_is_busy() {
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = fixture.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let stream = CudaStream::new(&fixture.setup.device).unwrap();
            let gate = Gate::before(&fixture.setup.device, &[&stream]);
            let there = buffer.acquire_for_device(&stream, Role::Output).unwrap();
            let fill = Operation::Fill { dst: there.raw(), pattern: Pattern::U8(7) };
            submit(&stream, &fill, Timing::Off).unwrap();
            drop(there);
            assert!(busy(buffer.try_read(..)) && busy(buffer.try_write(49_999..)), "{fixture}");
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| buffer.read().unwrap().iter().all(|byte| *byte == 7));
                gate.open();
                assert!(reading.join().unwrap(), "{fixture}");
            });
            assert!(buffer.try_read(..).is_ok(), "{fixture}");
            drop((buffer, stream));
        });
    });
}

#[test]
fn work_after_a_slice_sees_its_writes_on_any_stream() {
    limited(|| {
        for_each_fixture(|fixture| {
            let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&fixture.setup.device).unwrap()).collect();
            let buffer = fixture.buffer::<u8>(200_000);
            let backs: Vec<_> = (0..3).map(|_| fixture.setup.pinned(&vec![0; 200_000])).collect();
            for round in 0..10_u8 {
                buffer.write().unwrap().fill(round);
                for (stream, back) in streams.iter().zip(&backs) {
                    let there = buffer.acquire_for_device(stream, Role::Input).unwrap();
                    drop(stream.copy_to_host_async(there.raw(), back));
                }
                assert!(
                    backs.iter().all(|back| back.read().unwrap().iter().all(|byte| *byte == round)),
                    "{fixture}"
                );
            }
            drop((buffer, backs, streams));
        });
    });
}

#[test]
fn open_slice_allows_readers_and_disjoint_device_writes() {
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = fixture.buffer::<u8>(300);
            buffer.fill(1).unwrap();
            let open = buffer.read_range(..100).unwrap();
            let there =
                buffer.acquire_range_for_device(&fixture.stream, 200.., Role::Output, Access::Write).unwrap();
            let fill = Operation::Fill { dst: there.raw(), pattern: Pattern::U8(2) };
            submit(&fixture.stream, &fill, Timing::Off).unwrap();
            drop(there);
            let more = buffer.read_range(50..).unwrap();
            assert!(more[..150].iter().all(|byte| *byte == 1) && more[150..].iter().all(|byte| *byte == 2));
            assert!(*buffer.try_read(..).unwrap() == [&open[..50], &more[..]].concat()[..], "{fixture}");
            drop((open, more));
            drop(buffer);
        });
    });
}
