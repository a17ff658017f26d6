//! Ten thousand random operations on 8 threads and 4 streams: every block keeps its contents, and all memory is freed.

use std::sync::Arc;

use transload_core::{MemoryKind, Pattern, RawBuffer};
use transload_cuda_sim::harness::{device_with, is_real};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

use crate::{
    allocator::across_streams::{fill, read_back},
    allocator::watched,
    support::setup::seeds,
};

const REGION: usize = 16 << 20;
const THREADS: u64 = 8;
const OPERATIONS: u64 = 10_000;
/// Blocks that a thread holds at a time.
const HELD: usize = 6;
/// The largest block: all threads' blocks fit the region four times.
const LARGEST: u64 = 80_000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }
}

enum Held {
    Raw(StreamBlock, usize, u8),
    Owned(RawBuffer, usize, u8),
}

struct Field {
    allocator: StreamOrderedAllocator,
    streams: Vec<CudaStream>,
    memory: Arc<CudaMemoryManager>,
}

impl Field {
    fn new(device: &CudaDevice) -> Self {
        let memory = Arc::new(CudaMemoryManager::new(device).unwrap());
        let upstream = CudaResource::new(&memory, MemoryKind::Device).unwrap();
        let size = REGION as u64;
        let allocator =
            StreamOrderedAllocator::builder(upstream).segments(size, size).limit(size).build().unwrap();
        let streams = (0..4).map(|_| CudaStream::new(device).unwrap()).collect();
        Self { allocator, streams, memory }
    }

    /// One thread's share of the operations. Contents are checked in stream order, at every free.
    fn work(&self, seed: u64, operations: u64) {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let back = self.memory.allocate(MemoryKind::Pinned, LARGEST as usize).unwrap();
        let mut held: Vec<Held> = Vec::new();
        for operation in 0..operations {
            let full = held.len() == HELD;
            if full || (!held.is_empty() && random.below(2) == 0) {
                let at = random.below(held.len() as u64) as usize;
                self.give_back(held.swap_remove(at), &back, &mut random);
            } else {
                held.push(self.take(&mut random, (seed + operation * THREADS) as u8));
            }
        }
        for held in held {
            self.give_back(held, &back, &mut random);
        }
    }

    fn take(&self, random: &mut Random, value: u8) -> Held {
        let at = random.below(4) as usize;
        let stream = &self.streams[at];
        let bytes = 1 + random.below(LARGEST) as usize;
        if random.below(2) == 0 {
            let block = self.allocator.allocate_for_stream(stream, bytes).unwrap();
            fill(stream, block, value);
            Held::Raw(block, at, value)
        } else {
            let buffer = self.allocator.allocate_buffer(stream, bytes).unwrap();
            drop(stream.memset_async(&buffer, Pattern::U8(value)));
            Held::Owned(buffer, at, value)
        }
    }

    fn give_back(&self, held: Held, back: &RawBuffer, random: &mut Random) {
        let bytes = match held {
            Held::Raw(block, at, value) => {
                let stream = &self.streams[at];
                read_back(stream, block, back);
                self.allocator.free_on(block, stream).unwrap();
                stream.synchronize().unwrap();
                (block.bytes() as usize, value)
            }
            Held::Owned(buffer, at, value) => {
                // Sometimes read on another stream, which the drop then waits for.
                let other = if random.below(3) == 0 { random.below(4) as usize } else { at };
                let into = back.slice(..buffer.len()).unwrap();
                let down = self.streams[other].copy_to_host_async(&buffer, &into);
                let bytes = buffer.len();
                drop(buffer);
                down.wait().unwrap();
                (bytes, value)
            }
        };
        let (bytes, value) = bytes;
        let view = back.read().unwrap();
        assert!(view[..bytes].iter().all(|byte| *byte == value), "another block's bytes");
    }

    fn finish(self) {
        let numbers = self.allocator.statistics();
        assert_eq!((numbers.live_blocks, numbers.in_use), (0, 0));
        let whole = self.allocator.allocate_for_stream(&self.streams[0], REGION).unwrap();
        self.allocator.free_on(whole, &self.streams[0]).unwrap();
        assert_eq!(self.allocator.statistics().segments, 1, "the region is in one piece again");
        let Self { allocator, streams, memory } = self;
        drop((allocator, streams));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    }
}

fn run(device: &CudaDevice, seed: u64, operations: u64) {
    let field = Field::new(device);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let field = &field;
            scope.spawn(move || field.work(seed * THREADS + thread + 1, operations / THREADS));
        }
    });
    field.finish();
}

/// On a real device each thread does all the operations; on the simulated one they share them, without the race checker.
#[test]
fn random_operations_of_eight_threads_keep_contents() {
    watched(ten_thousand_operations);
}

fn ten_thousand_operations() {
    if is_real() {
        return run(&CudaDevice::new(0).unwrap(), 1, OPERATIONS * THREADS);
    }
    let Some(test) = device_with(|builder| builder.record_accesses(false).seed(1)) else { return };
    run(&CudaDevice::new(test.ordinal()).unwrap(), 1, OPERATIONS);
    test.assert_no_live_objects();
}

#[test]
fn random_operations_under_several_seeds_have_no_race() {
    watched(several_seeds);
}

/// On a real device the seeds change the operations only, and there is no race checker.
fn several_seeds() {
    for seed in seeds(5) {
        if is_real() {
            run(&CudaDevice::new(0).unwrap(), seed, 800);
            continue;
        }
        let Some(test) = device_with(|builder| builder.record_accesses(true).seed(seed)) else { return };
        run(&CudaDevice::new(test.ordinal()).unwrap(), seed, 800);
        test.assert_no_live_objects();
        test.assert_no_races();
    }
}
