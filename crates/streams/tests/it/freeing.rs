//! Memory that the driver frees only by waiting for the device, dropped while a stream waits for the host.

use transload_core::MemoryKind;
use transload_memory::PinnedResource;
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::Bed,
    gate::{Gate, limited},
    setup::noise,
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
