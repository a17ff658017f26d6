//! Memory whose free waits for the device, dropped while a stream waits for the host.

use transload_core::{MemoryKind, Operation, Pattern, Timing, submit};
use transload_memory::PinnedResource;
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::Fixture,
    support::{
        gate::{Gate, limited},
        setup::noise,
    },
};

#[test]
fn pinned_pool_dropped_in_flight_blocks_no_other_call() {
    const BYTES: usize = 4096;
    limited(|| {
        // A real driver, and the software one for most seeds, blocks other calls during a free that waits.
        for round in 0..6 {
            let fixture = Fixture::new();
            let (gated, stream) = (fixture.stream(), fixture.stream());
            let pool = StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory)).build().unwrap();
            drop(pool.allocate_buffer(&stream, 1 << 20).unwrap());
            let (source, back) =
                (fixture.setup.pinned(&noise(BYTES, round)), fixture.setup.pinned(&[0; BYTES]));
            let target = fixture.setup.device(BYTES);
            stream.synchronize().unwrap();
            let gate = Gate::before(fixture.device(), &[&gated]);
            drop(pool);
            drop(fixture.memory.allocate(MemoryKind::Mapped, BYTES).unwrap());
            for _ in 0..50 {
                stream.copy_from_host_async(&source, &target).wait().unwrap();
                stream.copy_to_host_async(&target, &back).wait().unwrap();
            }
            gate.open();
            assert!(*back.read().unwrap() == noise(BYTES, round)[..]);
            drop((source, back, target, gated, stream));
            fixture.finish();
        }
    });
}

#[test]
fn devices_free_memory_returns_after_every_kind() {
    const BYTES: usize = 16 << 20;
    /// Memory that a real driver may retain; the rounds use many times that.
    const SLACK: u64 = 32 << 20;
    limited(|| {
        let fixture = Fixture::new();
        let free = || fixture.memory.info().unwrap().free;
        let round = || {
            let stream = CudaStream::new(fixture.device()).unwrap();
            let block = fixture.allocator.allocate_buffer(&stream, BYTES).unwrap();
            let fill = Operation::Fill { dst: &block, pattern: Pattern::U8(1) };
            submit(&stream, &fill, Timing::Off).unwrap();
            for kind in fixture.memory.kinds() {
                let buffer = fixture.memory.allocate(kind, BYTES).unwrap();
                submit(&stream, &Operation::Copy { src: &block, dst: &buffer }, Timing::Off).unwrap();
            }
            drop((block, stream));
            fixture.allocator.trim().unwrap();
            fixture.memory.drain().unwrap();
        };
        // The first round includes one-time growth of the driver's memory.
        round();
        let before = free();
        for _ in 0..8 {
            round();
        }
        assert!(free() + SLACK >= before, "{} bytes are missing", before - free());
        assert!(fixture.setup.test.sim().is_none() || free() == before);
        fixture.finish();
    });
}
