//! Streams that are used, and arenas that get another stream, while a call about them runs.

use std::sync::{Mutex, mpsc};

use transload_core::{DeviceId, MemoryInfo, MemoryKind, Place, RawBuffer, Result};
use transload_cuda_sim::SimDevice;
use transload_memory::{CudaResource, MemoryResource};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

use super::{PollHook, allocator, fill, fixture};
use crate::{builder, within};

const MIB: usize = 1 << 20;

/// Enqueues work that takes long on the simulator, which runs it in a random order.
fn fill_often(stream: &CudaStream, block: StreamBlock) {
    (0..20).for_each(|_| fill(stream, block));
}

fn use_once(allocator: &StreamOrderedAllocator, stream: &CudaStream, bytes: usize) {
    let block = allocator.allocate_for_stream(stream, bytes).unwrap();
    fill_often(stream, block);
    allocator.free_on(block, stream).unwrap();
}

fn assert_no_races(sim: &SimDevice) {
    let races = sim.races();
    assert!(races.is_empty(), "{}", races[0]);
}

#[test]
fn trim_asks_no_stream_about_another_ones_frees() {
    within(|| {
        let sim = builder().record_accesses(true).build(); // Unchecked: foreign work that never completes keeps memory.
        let (device, memory) = fixture(&sim);
        let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device).unwrap());
        let [one, two, three] = [(); 3].map(|()| CudaStream::new(&device).unwrap());
        let gated = allocator.allocate_buffer(&one, MIB).unwrap();
        // The shortest call that registers the stream.
        assert!(allocator.free_on(512_u64, &two).is_err());
        let hook = PollHook::new();
        hook.uses(&gated);
        drop(gated);
        hook.run_at(1, {
            let (allocator, three) = (allocator.clone(), three.clone());
            move || {
                allocator.release_stream(&two).unwrap();
                // Its arena is the third one's now, with a segment of its own.
                use_once(&allocator, &three, 4 * MIB);
            }
        });
        assert_eq!(allocator.release_cached(), 0, "of a segment in use");
        three.synchronize().unwrap();
    });
}

#[test]
fn release_sees_a_use_after_a_release_of_another_thread() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let [one, two] = [(); 2].map(|()| CudaStream::new(&device).unwrap());
        use_once(&allocator, &one, MIB);
        one.add_callback({
            let (allocator, one) = (allocator.clone(), one.clone());
            move |_| {
                allocator.release_stream(&one).unwrap();
                use_once(&allocator, &one, MIB);
            }
        })
        .unwrap();
        // Waits for the callback, and then sees as many frees as before it.
        allocator.release_stream(&one).unwrap();
        use_once(&allocator, &two, MIB);
        two.synchronize().unwrap();
        one.synchronize().unwrap();
        assert_no_races(&sim);
    });
}

#[test]
fn release_sees_an_allocation() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let [one, two] = [(); 2].map(|()| CudaStream::new(&device).unwrap());
        use_once(&allocator, &one, MIB);
        let (sender, allocated) = mpsc::channel();
        one.add_callback({
            let (allocator, one) = (allocator.clone(), one.clone());
            move |_| {
                let block = allocator.allocate_for_stream(&one, MIB).unwrap();
                fill_often(&one, block);
                sender.send(block).unwrap();
            }
        })
        .unwrap();
        allocator.release_stream(&one).unwrap();
        allocator.free(allocated.recv().unwrap()).unwrap();
        use_once(&allocator, &two, MIB);
        two.synchronize().unwrap();
        one.synchronize().unwrap();
        assert_no_races(&sim);
    });
}

#[test]
fn release_sees_a_recorded_use() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let [own, user] = [(); 2].map(|()| CudaStream::new(&device).unwrap());
        let block = allocator.allocate_for_stream(&own, MIB).unwrap();
        allocator.record_use(block, &user).unwrap();
        user.add_callback({
            let (allocator, user) = (allocator.clone(), user.clone());
            move |_| {
                allocator.record_use(block, &user).unwrap();
                fill_often(&user, block);
            }
        })
        .unwrap();
        allocator.release_stream(&user).unwrap();
        allocator.free_on(block, &own).unwrap();
        use_once(&allocator, &own, MIB);
        own.synchronize().unwrap();
        user.synchronize().unwrap();
        assert_no_races(&sim);
    });
}

/// A resource that releases a stream when it is asked for its device, once.
struct Releasing {
    of: CudaResource,
    releases: &'static Mutex<Option<(StreamOrderedAllocator, CudaStream)>>,
}

// SAFETY: every segment is the other resource's.
unsafe impl MemoryResource for Releasing {
    fn place(&self) -> Place {
        self.of.place()
    }

    fn device(&self) -> Option<DeviceId> {
        let release = self.releases.lock().unwrap().take();
        if let Some((allocator, stream)) = release {
            allocator.release_stream(&stream).unwrap();
        }
        self.of.device()
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.of.allocate_segment(bytes)
    }

    fn trim(&self) -> Result<()> {
        self.of.trim()
    }

    fn info(&self) -> Result<MemoryInfo> {
        self.of.info()
    }
}

#[test]
fn dependency_on_a_stream_that_takes_over_the_arena_is_a_wait() {
    static RELEASES: Mutex<Option<(StreamOrderedAllocator, CudaStream)>> = Mutex::new(None);
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let of = CudaResource::new(&memory, MemoryKind::Device).unwrap();
        let allocator = StreamOrderedAllocator::new(Releasing { of, releases: &RELEASES });
        let [waits, works, owns] = [(); 3].map(|()| CudaStream::new(&device).unwrap());
        let block = allocator.allocate_for_stream(&owns, MIB).unwrap();
        // The shortest call that registers the stream.
        assert!(allocator.free_on(512_u64, &waits).is_err());
        fill_often(&works, block);
        *RELEASES.lock().unwrap() = Some((allocator.clone(), waits.clone()));
        allocator.add_stream_dependency(&waits, &works).unwrap();
        assert!(RELEASES.lock().unwrap().is_none(), "the stream was not released");
        fill_often(&waits, block);
        [&works, &waits].into_iter().for_each(|stream| stream.synchronize().unwrap());
        assert_no_races(&sim);
        allocator.free_on(block, &owns).unwrap();
    });
}
