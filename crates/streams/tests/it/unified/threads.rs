//! Concurrent use of one buffer from both sides: some calls return `Busy`, none sees stale or torn data.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use transload_core::{Access, Buffer, ErrorKind, Operation, Pattern, Result, Timing, submit};
use transload_memory::Role;
use transload_streams::CudaStream;

use super::{Fixture, for_each_fixture};
use crate::{
    launch::{saxpy, saxpy_of},
    support::gate::limited,
};

/// Retries while the result is `Busy`.
fn until<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Busy => thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

const ROUNDS: usize = 40;

fn adds_from_both_sides(fixture: &Fixture) {
    let kernel = saxpy_of(&fixture.setup);
    let (ones, sum) = (fixture.buffer::<f32>(300), fixture.buffer::<f32>(300));
    ones.fill(1.0).unwrap();
    let (ones, sum, kernel) = (&ones, &sum, &kernel);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    until(|| sum.write()).iter_mut().for_each(|number| *number += 1.0);
                }
            });
            scope.spawn(|| {
                let stream = CudaStream::new(&fixture.setup.device).unwrap();
                for _ in 0..ROUNDS {
                    until(|| {
                        let there = sum.acquire_for_device(&stream, Role::Resident)?;
                        saxpy(kernel, &stream, 1.0, ones.raw(), there.raw()).map(drop)
                    });
                    until(|| sum.prefetch_to_host().wait().map(drop));
                }
                stream.synchronize().unwrap();
            });
        }
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let slice = until(|| if round % 2 == 0 { sum.read() } else { sum.try_read(..) });
                assert!(slice.iter().all(|number| *number == slice[0]), "{fixture}: torn");
            }
        });
    });
    assert!(
        sum.read().unwrap().iter().all(|number| *number == (4 * ROUNDS) as f32),
        "{fixture}: a change is lost"
    );
}

#[test]
fn host_and_kernel_additions_are_all_counted() {
    limited(|| for_each_fixture(adds_from_both_sides));
}

/// Threads of both sides each own bytes, interleaved with those of others.
fn own_ranges(fixture: &Fixture) {
    const PART: usize = 1000;
    let buffer = fixture.buffer::<u8>(6 * PART);
    let overlapping_reads = AtomicU32::new(0);
    let (buffer, reads) = (&buffer, &overlapping_reads);
    thread::scope(|scope| {
        for part in 0..6 {
            let range = part * PART..(part + 1) * PART;
            scope.spawn(move || {
                let stream = CudaStream::new(&fixture.setup.device).unwrap();
                for round in 0..ROUNDS as u8 {
                    if (part + usize::from(round)) % 2 == 0 {
                        until(|| buffer.write_range(range.clone())).fill(round);
                    } else {
                        until(|| {
                            let (range, write) = (range.clone(), Access::Write);
                            let there =
                                buffer.acquire_range_for_device(&stream, range, Role::Output, write)?;
                            let fill = Operation::Fill { dst: there.raw(), pattern: Pattern::U8(round) };
                            submit(&stream, &fill, Timing::Off).map(drop)
                        });
                    }
                    let seen = until(|| buffer.read_range(range.clone()));
                    assert!(seen.iter().all(|byte| *byte == round), "{fixture}: part {part}, round {round}");
                    drop(seen);
                    if let Ok(all) = buffer.try_read(..) {
                        reads.fetch_add(u32::from(all.len() == 6 * PART), Ordering::Relaxed);
                    }
                }
                stream.synchronize().unwrap();
            });
        }
    });
    let last = ROUNDS as u8 - 1;
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == last), "{fixture}");
    println!("{} reads of all of it", reads.load(Ordering::Relaxed));
}

#[test]
fn concurrent_ranges_keep_their_own_bytes() {
    limited(|| for_each_fixture(own_ranges));
}

#[test]
fn buffers_guards_and_slices_are_send() {
    fn goes<T: Send + Sync>() {}
    goes::<transload_memory::UnifiedBuffer<f32>>();
    goes::<transload_memory::DeviceAccess<'static, f32>>();
    goes::<transload_memory::UnifiedSlice<'static, f32>>();
    goes::<transload_memory::UnifiedSliceMut<'static, f32>>();
}
