//! A prefetch comes behind what is in flight on its range, and what is under way keeps its memory, and no stream once it is over.

use std::sync::Arc;

use transload_core::{Buffer, ErrorKind, Operation, Pattern, QueueLease, Timing, submit};
use transload_memory::UnifiedBuffer;
use transload_streams::CudaStream;

use super::everywhere;
use crate::gate::{Gate, limited};

#[test]
fn a_prefetch_is_over_only_behind_what_wrote_its_range_before_on_whatever_stream() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let [writer, mover] = [(); 2].map(|()| CudaStream::new(&bench.setup.device).unwrap());
            for to_host in [false, true] {
                let gate = Gate::before(&bench.setup.device, &[&writer]);
                let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(4) };
                submit(&writer, &fill, Timing::Off).unwrap();
                let moved = if to_host {
                    buffer.prefetch_to_host_on(&mover, 10..20)
                } else {
                    buffer.prefetch_to_device_on(&mover, 10..20, None)
                };
                assert!(!moved.is_over() && !mover.is_ready().unwrap(), "{bench}: to the host: {to_host}");
                gate.open();
                moved.wait().unwrap();
            }
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 4), "{bench}");
            drop((buffer, writer, mover));
        });
    });
}

#[test]
fn a_slice_that_may_not_wait_is_refused_while_its_bytes_arrive_and_one_beside_them_is_not() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(2 << 20);
            drop(buffer.read().unwrap());
            let mover = CudaStream::new(&bench.setup.device).unwrap();
            let gate = Gate::before(&bench.setup.device, &[&mover]);
            let moved = buffer.prefetch_to_host_on(&mover, ..1 << 20);
            assert_eq!(buffer.try_write(..5).unwrap_err().kind(), ErrorKind::Busy, "{bench}");
            if !bench.is_managed() {
                assert_eq!(buffer.try_read(..5).unwrap_err().kind(), ErrorKind::Busy, "{bench}");
            }
            assert!(buffer.try_read(1 << 20..).is_ok() && buffer.try_write(1 << 20..).is_ok(), "{bench}");
            gate.open();
            moved.wait().unwrap();
            assert!(buffer.try_write(..5).is_ok(), "{bench}");
            drop((buffer, mover));
        });
    });
}

#[test]
fn what_the_host_wrote_last_arrives_also_where_the_buffer_is_dropped_before_it_is_sent() {
    limited(|| {
        everywhere(|bench| {
            let own = CudaStream::new(&bench.setup.device).unwrap();
            let queue = QueueLease::new(Arc::new(own.clone()));
            let buffer =
                UnifiedBuffer::<u8>::new_with_mode(&bench.setup.memory, queue, 100_000, bench.mode).unwrap();
            let kept = buffer.raw().clone();
            let mut slice = buffer.write().unwrap();
            let gate = Gate::before(&bench.setup.device, &[&own]);
            slice.fill(8);
            drop(slice);
            drop(buffer);
            let ledger = bench.setup.memory.ledger();
            let copies = usize::from(!bench.is_managed()) as u64;
            assert_eq!(
                (ledger.allocations, ledger.parked),
                (1 + copies, copies),
                "{bench}: it is on its way"
            );
            gate.open();
            let back = bench.setup.pinned(&vec![0; 100_000]);
            bench.stream.copy_to_host_async(&kept, &back).wait().unwrap();
            assert!(back.read().unwrap().iter().all(|byte| *byte == 8), "{bench}");
            drop((kept, back, own));
        });
    });
}
