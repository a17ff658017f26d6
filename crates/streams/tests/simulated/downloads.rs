//! Small downloads that a thread waits for end by a word which the stream writes, or by an event.

use transload_core::{ErrorKind, MemoryKind, Queue, RawBuffer};
use transload_cuda_sim::harness::noise;
use transload_cuda_sys::trace;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaModule, CudaStream, LaunchConfig};

use crate::{ILLEGAL_ADDRESS, alone_with_drop_errors, builder, within};

const WRITE: &str = "cuStreamWriteValue32_v2";
const SAXPY: &str = include_str!("../../examples/kernels/saxpy.ptx");
const BYTES: usize = 4096;

fn buffers(memory: &CudaMemoryManager) -> (RawBuffer, RawBuffer) {
    (memory.allocate(MemoryKind::Device, BYTES).unwrap(), memory.allocate(MemoryKind::Pinned, BYTES).unwrap())
}

/// Copies down and waits. Returns how many words were written and how many events were waited for.
fn download(stream: &CudaStream, there: &RawBuffer, back: &RawBuffer) -> (usize, usize) {
    let trace = trace::start();
    stream.copy_to_host_async(there, back).wait().unwrap();
    let calls = trace.calls_of_this_thread();
    let count = |name| calls.iter().filter(|call| call.name == name).count();
    (count(WRITE), count("cuEventSynchronize"))
}

#[test]
fn download_has_its_bytes_however_it_ends() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let (there, back) = buffers(&memory);
        let from = memory.allocate(MemoryKind::Pinned, BYTES).unwrap();
        let mut by_event = 0;
        for round in 0..60 {
            from.write().unwrap().copy_from_slice(&noise(BYTES, round));
            drop(stream.copy_from_host_async(&from, &there));
            let (words, events) = download(&stream, &there, &back);
            assert_eq!(words, 1);
            assert_eq!(stream.outstanding(), 0);
            assert!(*back.read().unwrap() == noise(BYTES, round), "round {round}");
            by_event += events;
            if round == 30 {
                // Frees the word: the next download takes another.
                memory.drain().unwrap();
            }
        }
        // The software driver is not always fast enough.
        assert!((1..60).contains(&by_event), "{by_event} of 60 by an event");
    });
}

#[test]
fn error_of_a_polled_download_is_reported() {
    within(|| {
        let _alone = alone_with_drop_errors();
        let sim = builder().build();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let (stream, astray) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
        let (there, back) = buffers(&memory);
        download(&stream, &there, &back);
        let kernel = CudaModule::from_ptx(&device, SAXPY).unwrap().kernel("transload_saxpy").unwrap();
        let launch = kernel.launch(LaunchConfig::linear(1, 32));
        let launch = launch.arg(1.0_f32).reads(&there).address(0xBAD_0000).arg(100_u64);
        // SAFETY: deliberately unsound: the software driver detects it.
        drop(unsafe { launch.enqueue(&astray) }.unwrap());
        let calls = trace::start();
        let error = (0..1000).find_map(|_| stream.copy_to_host_async(&there, &back).wait().err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::DeviceLost);
        assert!(error.to_string().contains(&ILLEGAL_ADDRESS.to_string()), "{error}");
        assert!(calls.calls_of_this_thread().len() < 20_000);
        assert!(stream.copy_to_host_async(&there, &back).wait().is_err());
    });
}

#[test]
fn refused_word_leaves_events_for_a_while() {
    const OUT_OF_MEMORY: u32 = 2;
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (there, back) = buffers(&memory);
    sim.fail_call(Some(WRITE), 1, OUT_OF_MEMORY);
    assert_eq!(download(&stream, &there, &back), (1, 1));
    assert_eq!(download(&stream, &there, &back), (0, 1));
    assert!((0..1000).any(|_| download(&stream, &there, &back).0 == 1), "no word after one failure");
}

#[test]
fn exposed_stream_and_other_copies_write_no_word() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (there, back) = buffers(&memory);
    let words = |copy: &dyn Fn()| {
        let trace = trace::start();
        copy();
        trace.calls_of_this_thread().iter().filter(|call| call.name == WRITE).count()
    };
    assert_eq!(words(&|| drop(stream.copy_from_host_async(&back, &there).wait().unwrap())), 0);
    let after = || {
        drop(stream.copy_to_host_async(&there, &back));
        drop(stream.copy_from_host_async(&back, &there).wait().unwrap());
    };
    assert_eq!(words(&after), 0);
    let exposed = || {
        let down = stream.copy_to_host_async(&there, &back);
        stream.raw_handle().unwrap();
        down.wait().unwrap();
    };
    assert_eq!(words(&exposed), 0);
    assert_eq!(download(&stream, &there, &back).0, 0);
}

#[test]
fn more_streams_than_words_end_by_events() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (there, back) = buffers(&memory);
    let streams: Vec<_> = (0..66).map(|_| CudaStream::new(&device).unwrap()).collect();
    let words = |streams: &[CudaStream]| -> usize {
        streams.iter().map(|stream| download(stream, &there, &back).0).sum()
    };
    assert_eq!(words(&streams), 64);
    assert_eq!(words(&streams), 64);
    // Words of streams that are gone serve others.
    drop(streams);
    assert_eq!(words(&[CudaStream::new(&device).unwrap()]), 1);
}
