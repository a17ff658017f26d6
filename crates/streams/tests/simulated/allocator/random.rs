//! Random work of several threads under a tight limit, with short-lived streams that use each other's blocks and without
//! waits: no races, and all memory is freed.

use std::sync::{Arc, Mutex};

use transload_core::{ErrorKind, MemoryKind, Pattern, RawBuffer};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

use crate::{allocator::fill, builder, within};

const MIB: usize = 1 << 20;
const SEGMENTS: usize = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % bound
    }
}

/// State shared by the threads.
struct Fixture {
    device: CudaDevice,
    allocator: StreamOrderedAllocator,
    /// Streams that any thread uses and replaces.
    streams: Mutex<Vec<CudaStream>>,
}

impl Fixture {
    fn stream(&self) -> CudaStream {
        CudaStream::new(&self.device).unwrap()
    }

    fn any(&self, random: &mut Random) -> CudaStream {
        let streams = self.streams.lock().unwrap();
        streams[random.below(streams.len())].clone()
    }
}

/// One thread's blocks and buffers.
struct Worker<'a> {
    fixture: &'a Fixture,
    random: Random,
    own: CudaStream,
    /// `None` if the block shall outlive its stream.
    blocks: Vec<(StreamBlock, Option<CudaStream>)>,
    buffers: Vec<RawBuffer>,
}

impl Worker<'_> {
    fn size(&mut self) -> usize {
        const SIZES: [usize; 6] = [1000, 5000, 100_000, 300_000, 700_000, MIB];
        SIZES[self.random.below(SIZES.len())]
    }

    fn stream(&mut self) -> CudaStream {
        if self.random.below(2) == 0 { self.own.clone() } else { self.fixture.any(&mut self.random) }
    }

    fn step(&mut self) {
        let allocator = &self.fixture.allocator;
        match self.random.below(12) {
            0..=3 => {
                let (stream, size) = (self.stream(), self.size());
                match allocator.allocate_for_stream(&stream, size) {
                    Ok(block) => {
                        fill(&stream, block);
                        self.blocks.push((block, Some(stream)));
                    }
                    Err(error) => self.give_everything_back(error.kind()),
                }
            }
            4 | 5 => {
                let (stream, size) = (self.stream(), self.size());
                match allocator.allocate_buffer(&stream, size) {
                    Ok(buffer) => {
                        drop(stream.memset_async(&buffer, Pattern::U8(1)));
                        drop(self.stream().memset_async(&buffer, Pattern::U8(2)));
                        self.buffers.push(buffer);
                    }
                    Err(error) => self.give_everything_back(error.kind()),
                }
            }
            6 if !self.buffers.is_empty() => {
                let at = self.random.below(self.buffers.len());
                drop(self.buffers.swap_remove(at));
            }
            7 => {
                self.own = self.fixture.stream();
            }
            8 => {
                let new = self.fixture.stream();
                let mut streams = self.fixture.streams.lock().unwrap();
                let at = self.random.below(streams.len());
                let old = std::mem::replace(&mut streams[at], new);
                drop(streams);
                drop(old);
            }
            9 if !self.blocks.is_empty() => {
                // Its stream may be dropped before the block is freed.
                let at = self.random.below(self.blocks.len());
                self.blocks[at].1 = None;
            }
            10 if self.random.below(4) == 0 => {
                allocator.trim().unwrap();
            }
            _ if !self.blocks.is_empty() => {
                let at = self.random.below(self.blocks.len());
                let (block, stream) = self.blocks.swap_remove(at);
                self.free(block, stream);
            }
            _ => {}
        }
    }

    /// Has another stream use the block last, half of the time.
    fn free(&mut self, block: StreamBlock, stream: Option<CudaStream>) {
        let allocator = &self.fixture.allocator;
        let Some(stream) = stream else { return allocator.free(block).unwrap() };
        if self.random.below(2) == 0 {
            let user = self.stream();
            allocator.add_stream_dependency(&user, &stream).unwrap();
            allocator.record_use(block, &user).unwrap();
            fill(&user, block);
        }
        if self.random.below(3) == 0 {
            // This may be the stream's last handle, or another thread may be dropping the last one.
            drop(stream);
            allocator.free(block).unwrap();
        } else {
            allocator.free_on(block, &stream).unwrap();
        }
    }

    fn give_everything_back(&mut self, kind: ErrorKind) {
        assert_eq!(kind, ErrorKind::OutOfMemory);
        self.buffers.clear();
        while let Some((block, stream)) = self.blocks.pop() {
            self.free(block, stream);
        }
    }
}

#[test]
fn short_lived_streams_under_a_tight_limit_have_no_race() {
    const STEPS: usize = 150;
    within(|| {
        for seed in 0..16 {
            let sim = builder().seed(seed).record_accesses(true).checked();
            let device = CudaDevice::new(sim.ordinal()).unwrap();
            let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
            let upstream = CudaResource::new(&memory, MemoryKind::Device).unwrap();
            let builder = StreamOrderedAllocator::builder(upstream).segments(MIB as u64, MIB as u64);
            let allocator = builder.limit((SEGMENTS * MIB) as u64).build().unwrap();
            let streams = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
            let fixture = Fixture { device: device.clone(), allocator, streams: Mutex::new(streams) };
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let fixture = &fixture;
                    scope.spawn(move || {
                        let mut worker = Worker {
                            fixture,
                            random: Random(seed * 31 + thread + 1),
                            own: fixture.stream(),
                            blocks: Vec::new(),
                            buffers: Vec::new(),
                        };
                        (0..STEPS).for_each(|_| worker.step());
                        worker.give_everything_back(ErrorKind::OutOfMemory);
                    });
                }
            });
            let races = sim.races();
            assert!(races.is_empty(), "seed {seed}: {}", races[0]);
            let Fixture { allocator, streams, device: of_bed } = fixture;
            let last = CudaStream::new(&device).unwrap();
            let all: Vec<_> =
                (0..SEGMENTS).map(|_| allocator.allocate_for_stream(&last, MIB).unwrap()).collect();
            for block in all {
                fill(&last, block);
                allocator.free_on(block, &last).unwrap();
            }
            // In either order.
            if seed % 2 == 0 {
                drop((streams, last, allocator))
            } else {
                drop((allocator, last, streams))
            }
            memory.drain().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "seed {seed}: {}", races[0]);
            drop((memory, device, of_bed));
            assert!(sim.live_objects().is_empty(), "seed {seed}: {}", sim.live_objects());
        }
    });
}
