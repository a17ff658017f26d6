//! Memory that the driver frees only by waiting for the device, dropped while a stream waits for the host.

use transload_core::{MemoryKind, Operation, Pattern, Timing, submit};
use transload_memory::PinnedResource;
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::Bed,
    support::{
        gate::{Gate, limited},
        setup::noise,
    },
};

#[test]
fn a_pinned_pool_dropped_while_a_stream_waits_stops_no_other_call() {
    const BYTES: usize = 4096;
    limited(|| {
        // A real driver, and the software one for most seeds, keeps other calls waiting behind a free that waits.
        for round in 0..6 {
            let bed = Bed::new();
            let (gated, stream) = (bed.stream(), bed.stream());
            let pool = StreamOrderedAllocator::builder(PinnedResource::new(&bed.memory)).build().unwrap();
            drop(pool.allocate_buffer(&stream, 1 << 20).unwrap());
            let (source, back) = (bed.setup.pinned(&noise(BYTES, round)), bed.setup.pinned(&[0; BYTES]));
            let target = bed.setup.device(BYTES);
            stream.synchronize().unwrap();
            let gate = Gate::before(bed.device(), &[&gated]);
            drop(pool);
            drop(bed.memory.allocate(MemoryKind::Mapped, BYTES).unwrap());
            for _ in 0..50 {
                stream.copy_from_host_async(&source, &target).wait().unwrap();
                stream.copy_to_host_async(&target, &back).wait().unwrap();
            }
            gate.open();
            assert!(*back.read().unwrap() == noise(BYTES, round)[..]);
            drop((source, back, target, gated, stream));
            bed.finish();
        }
    });
}

#[test]
fn the_cards_free_memory_is_back_after_rounds_of_every_kind() {
    const BYTES: usize = 16 << 20;
    /// What the driver may keep for itself on a real device; the rounds take many times that.
    const SLACK: u64 = 32 << 20;
    limited(|| {
        let bed = Bed::new();
        let free = || bed.memory.info().unwrap().free;
        let round = || {
            let stream = CudaStream::new(bed.device()).unwrap();
            let block = bed.allocator.allocate_buffer(&stream, BYTES).unwrap();
            let fill = Operation::Fill { dst: &block, pattern: Pattern::U8(1) };
            submit(&stream, &fill, Timing::Off).unwrap();
            for kind in bed.memory.kinds() {
                let buffer = bed.memory.allocate(kind, BYTES).unwrap();
                submit(&stream, &Operation::Copy { src: &block, dst: &buffer }, Timing::Off).unwrap();
            }
            drop((block, stream));
            bed.allocator.trim().unwrap();
            bed.memory.drain().unwrap();
        };
        // The driver's own memory grows once.
        round();
        let before = free();
        for _ in 0..8 {
            round();
        }
        assert!(free() + SLACK >= before, "{} bytes are missing", before - free());
        assert!(bed.setup.test.sim().is_none() || free() == before);
        bed.finish();
    });
}
