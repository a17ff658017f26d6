//! No host slice where a device may write, no device's work where a slice is open: refused, or waited for.

use transload_core::{Access, Buffer, ErrorKind, Operation, Pattern, Result, Timing, submit};
use transload_memory::Role;
use transload_streams::CudaStream;

use super::everywhere;
use crate::{
    launch::{saxpy, saxpy_of},
    support::gate::{Gate, limited},
};

fn busy<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Busy)
}

#[test]
fn an_open_slice_keeps_every_way_of_using_its_range_on_a_device_out() {
    everywhere(|bench| {
        let kernel = saxpy_of(&bench.setup);
        let (buffer, other) = (bench.buffer::<f32>(100), bench.buffer::<f32>(100));
        let stream = &bench.stream;
        let slice = buffer.write_range(..50).unwrap();
        assert!(busy(buffer.acquire_for_device(stream, Role::Input)), "{bench}");
        assert!(busy(saxpy(&kernel, stream, 1.0, buffer.raw(), other.raw())), "{bench}");
        assert!(
            busy(buffer.prefetch_to_device(None).wait()) && busy(buffer.prefetch_to_host().wait()),
            "{bench}"
        );
        assert!(busy(buffer.fill(1.0)) && busy(buffer.copy_from_host(&[0.0; 100])), "{bench}");
        assert!(busy(buffer.copy_to_host(&mut [0.0; 100])), "{bench}");
        assert!(busy(buffer.read()) && busy(buffer.write()) && busy(buffer.try_read(..1)), "{bench}");
        let beside = buffer.acquire_range_for_device(stream, 50.., Role::Output, Access::Write).unwrap();
        let fill = Operation::Fill { dst: beside.raw(), pattern: Pattern::U8(0) };
        submit(stream, &fill, Timing::Off).unwrap();
        drop((slice, beside));

        let slice = buffer.read().unwrap();
        assert!(busy(buffer.acquire_for_device(stream, Role::Output)), "{bench}");
        assert!(busy(buffer.fill(1.0)), "{bench}");
        assert!(busy(buffer.prefetch_to_device(None).wait()), "{bench}: pages do not move under a slice");
        let nothing = buffer.acquire_range_for_device(stream, 5..5, Role::Output, Access::Write);
        assert!(!busy(nothing), "{bench}: no byte");
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
fn a_guard_keeps_slices_in_conflict_out_until_it_is_dropped() {
    everywhere(|bench| {
        let buffer = bench.buffer::<u8>(100);
        // The zeros are there.
        drop(buffer.read().unwrap());
        let acquire = |range, role, access| {
            buffer.acquire_range_for_device(&bench.stream, range, role, access).unwrap()
        };
        let writing = acquire(10..20, Role::Output, Access::Write);
        assert!(busy(buffer.read()) && busy(buffer.write()) && busy(buffer.try_read(19..)), "{bench}");
        assert!(!busy(buffer.try_read(20..)) && !busy(buffer.write_range(..10)), "{bench}: beside it");
        let more = acquire(0..100, Role::Resident, Access::Read);
        assert_eq!((more.len(), writing.len()), (100, 10), "guards do not exclude each other");
        drop(writing);
        assert!(!busy(buffer.read()) && busy(buffer.write()) && busy(buffer.try_write(..1)), "{bench}");
        drop(more);
        assert!(!busy(buffer.write()), "{bench}");
        drop(buffer);
    });
}

#[test]
fn a_slice_waits_for_work_in_flight_and_its_try_form_does_not() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let stream = CudaStream::new(&bench.setup.device).unwrap();
            let gate = Gate::before(&bench.setup.device, &[&stream]);
            let there = buffer.acquire_for_device(&stream, Role::Output).unwrap();
            let fill = Operation::Fill { dst: there.raw(), pattern: Pattern::U8(7) };
            submit(&stream, &fill, Timing::Off).unwrap();
            drop(there);
            assert!(busy(buffer.try_read(..)) && busy(buffer.try_write(49_999..)), "{bench}");
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| buffer.read().unwrap().iter().all(|byte| *byte == 7));
                gate.open();
                assert!(reading.join().unwrap(), "{bench}");
            });
            assert!(buffer.try_read(..).is_ok(), "{bench}");
            drop((buffer, stream));
        });
    });
}

#[test]
fn work_behind_a_slice_comes_after_what_it_wrote_on_whatever_stream() {
    limited(|| {
        everywhere(|bench| {
            let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&bench.setup.device).unwrap()).collect();
            let buffer = bench.buffer::<u8>(200_000);
            let backs: Vec<_> = (0..3).map(|_| bench.setup.pinned(&vec![0; 200_000])).collect();
            for round in 0..10_u8 {
                buffer.write().unwrap().fill(round);
                for (stream, back) in streams.iter().zip(&backs) {
                    let there = buffer.acquire_for_device(stream, Role::Input).unwrap();
                    drop(stream.copy_to_host_async(there.raw(), back));
                }
                assert!(
                    backs.iter().all(|back| back.read().unwrap().iter().all(|byte| *byte == round)),
                    "{bench}"
                );
            }
            drop((buffer, backs, streams));
        });
    });
}

#[test]
fn an_open_slice_is_shared_with_other_readers_while_a_device_writes_beside_it() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(300);
            buffer.fill(1).unwrap();
            let open = buffer.read_range(..100).unwrap();
            let there =
                buffer.acquire_range_for_device(&bench.stream, 200.., Role::Output, Access::Write).unwrap();
            let fill = Operation::Fill { dst: there.raw(), pattern: Pattern::U8(2) };
            submit(&bench.stream, &fill, Timing::Off).unwrap();
            drop(there);
            let more = buffer.read_range(50..).unwrap();
            assert!(more[..150].iter().all(|byte| *byte == 1) && more[150..].iter().all(|byte| *byte == 2));
            assert!(*buffer.try_read(..).unwrap() == [&open[..50], &more[..]].concat()[..], "{bench}");
            drop((open, more));
            drop(buffer);
        });
    });
}
