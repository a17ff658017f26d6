//! Batches and callbacks on a failing driver or a lost device.

use std::{sync::mpsc, time::Duration};

use transload_core::{ErrorKind, MemoryKind, Pattern};
use transload_cuda_sys::trace;
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use crate::{ILLEGAL_ADDRESS, UNKNOWN, builder, gate::Gate, with_each_call_failing};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn failed_late_event_is_reported_after_the_work_completes() {
    for asked in ["wait", "poll", "await", "another stream", "a view"] {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let (stream, other) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
        let there = memory.allocate(MemoryKind::Device, 4096).unwrap();
        let back = memory.allocate(MemoryKind::Pinned, 4096).unwrap();
        let fill = stream.memset_async(&there, Pattern::U8(7));
        let down = stream.copy_to_host_async(&there, &back);
        sim.fail_call(Some("cuEventRecord"), 1, UNKNOWN);
        let error = match asked {
            "wait" => down.wait().err(),
            "poll" => {
                let fence = down.fence().unwrap();
                loop {
                    match fence.timeline().poll(fence.point()) {
                        Ok(true) => break None,
                        Ok(false) => {}
                        Err(error) => break Some(error),
                    }
                }
            }
            "await" => pollster::block_on(down).err(),
            "another stream" => {
                let again = memory.allocate(MemoryKind::Device, 4096).unwrap();
                let copy = other.copy_device_to_device_async(&there, &again);
                copy.wait().err()
            }
            _ => back.read().err(),
        };
        // A stream may be found idle before an event is needed; then nothing fails.
        if let Some(error) = &error {
            assert_eq!(sim.queued(), 0, "{asked}: an error before the work completed: {error}");
            assert!(back.try_read().is_ok(), "{asked}: {error}");
        }
        if asked == "wait" {
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Device));
        }
        // The injected fault may be hit only here.
        let seen = back.read().or_else(|_| back.read()).unwrap();
        assert!(seen.iter().all(|byte| *byte == 7), "{asked}: completed work is visible");
        drop((seen, fill));
        // The stream continues; a remaining fault is hit here.
        drop(stream.memset_async(&there, Pattern::U8(8)).wait());
        stream.memset_async(&there, Pattern::U8(8)).wait().unwrap();
        assert!(sim.races().is_empty(), "{asked}: {}", sim.races()[0]);
    }
}

#[test]
fn batches_on_many_streams_have_no_race_under_fifty_seeds() {
    for seed in 0..50 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
        let buffers: Vec<_> = (0..3).map(|_| memory.allocate(MemoryKind::Device, 256).unwrap()).collect();
        let host = memory.allocate(MemoryKind::Pinned, 256).unwrap();
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) % below
        };
        let mut expected = [0_u8; 3];
        for (index, buffer) in buffers.iter().enumerate() {
            drop(streams[index].memset_async(buffer, Pattern::U8(0)));
        }
        for _ in 0..60 {
            let stream = &streams[next(3) as usize];
            let (from, to) = (next(3) as usize, next(3) as usize);
            match next(5) {
                0 => {
                    let value = next(200) as u8;
                    drop(stream.memset_async(&buffers[to], Pattern::U8(value)));
                    expected[to] = value;
                }
                1..4 if from != to => {
                    let copy = stream.copy_device_to_device_async(&buffers[from], &buffers[to]);
                    expected[to] = expected[from];
                    let _asked = next(4) == 0 && copy.is_complete();
                }
                _ => {
                    drop(stream.copy_to_host_async(&buffers[from], &host));
                    assert!(host.read().unwrap().iter().all(|byte| *byte == expected[from]), "seed {seed}");
                }
            }
        }
        drop((streams, buffers, host));
        memory.drain().unwrap();
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
    }
}

#[test]
fn each_failing_call_of_batches_and_waits_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> transload_core::Result<()> {
        let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
        let (host, there) =
            (memory.allocate(MemoryKind::Pinned, 640)?, memory.allocate(MemoryKind::Device, 640)?);
        let part = |buffer: &transload_core::RawBuffer, n: usize| buffer.slice(n * 32..(n + 1) * 32);
        let mut ups = Vec::new();
        for n in 0..20 {
            ups.push(one.copy_from_host_async(&part(&host, n)?, &part(&there, n)?));
        }
        let asked = ups.first().is_some_and(|up| up.is_complete());
        let across = two.memset_async(&part(&there, 19)?, Pattern::U8(u8::from(asked)));
        let (sender, receiver) = mpsc::channel();
        // Dropped without running if it is refused.
        let added = one.add_callback(move |outcome| drop(sender.send(outcome)));
        let called = receiver.recv_timeout(MINUTE);
        assert!(called.is_ok() == added.is_ok() && !matches!(called, Err(mpsc::RecvTimeoutError::Timeout)));
        let mut outcome = added.and(across.wait().map(drop));
        for up in ups {
            outcome = outcome.and(pollster::block_on(up).map(drop));
        }
        outcome.and(one.synchronize()).and(two.synchronize())
    }
    with_each_call_failing(scenario);
}

#[test]
fn device_loss_error_names_the_stream_and_spares_others() {
    let (sim, healthy) = (builder().build(), builder().build());
    let devices = [&sim, &healthy].map(|sim| CudaDevice::new(sim.ordinal()).unwrap());
    let memories = [0, 1].map(|n: usize| CudaMemoryManager::new(&devices[n]).unwrap());
    let (copying, filling, idle) = (
        CudaStream::new(&devices[0]).unwrap(),
        CudaStream::new(&devices[0]).unwrap(),
        CudaStream::new(&devices[0]).unwrap(),
    );
    let elsewhere = CudaStream::new(&devices[1]).unwrap();
    let (from, to, other) = (
        memories[0].allocate(MemoryKind::Device, 1 << 20).unwrap(),
        memories[0].allocate(MemoryKind::Device, 1 << 20).unwrap(),
        memories[0].allocate(MemoryKind::Device, 64).unwrap(),
    );
    // A gate on the other device, so that no query lets its copy run early.
    let gate = Gate::closed(&devices[1]);
    gate.hold([&copying]);
    let copy = copying.copy_device_to_device_async(&from, &to);
    let fills: Vec<_> = (0..3)
        .map(|n| filling.memset_async(&other.slice(n * 8..n * 8 + 8).unwrap(), Pattern::U8(1)))
        .collect();
    sim.poison(ILLEGAL_ADDRESS);

    let error = copy.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    let text = error.to_string();
    let stream = format!("stream {} of cuda:{}", copying.id(), sim.ordinal());
    assert!(text.contains(&stream) && text.contains("lost the operation in flight, a copy"), "{text}");
    assert!(text.contains("(700)"), "the driver's own code: {text}");
    for fill in fills {
        let text = fill.wait().unwrap_err().to_string();
        assert!(text.contains(&format!("stream {} of", filling.id())), "{text}");
        assert!(
            text.contains("lost 3 operations in flight, the oldest of them a small copy or fill"),
            "{text}"
        );
    }
    let text = idle.synchronize().unwrap_err().to_string();
    assert!(text.contains("had nothing in flight when its context was lost"), "{text}");
    let refused = copying.add_callback(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DeviceLost);

    let there = memories[1].allocate(MemoryKind::Device, 64).unwrap();
    elsewhere.memset_async(&there, Pattern::U8(2)).wait().unwrap();
    gate.open();
}

#[test]
fn callback_receives_its_streams_error() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 2 << 20).unwrap();
    drop(stream.memset_async(&there, Pattern::U8(1)));
    // The reactor, which is the first to query, gets the error of the lost device.
    sim.fail_call(Some("cuEventQuery"), 1, ILLEGAL_ADDRESS);
    let (sender, receiver) = mpsc::channel();
    stream.add_callback(move |outcome| sender.send(outcome).unwrap()).unwrap();
    let told = receiver.recv_timeout(MINUTE).unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::DeviceLost);
    assert!(
        told.to_string().contains(&format!("stream {} of cuda:{}", stream.id(), sim.ordinal())),
        "{told}"
    );
    assert!(told.to_string().contains("the oldest of them a fill"), "{told}");
}

#[test]
fn failed_query_of_one_stream_delays_no_other_callback() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (held, idle) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
    let there = memory.allocate(MemoryKind::Device, 1 << 20).unwrap();
    let gate = Gate::closed(&device);
    gate.hold([&held]);
    let fill = held.memset_async(&there, Pattern::U8(2));
    let (failed_once, calls) = mpsc::channel();
    sim.fail_call(Some("cuEventQuery"), 1, UNKNOWN);
    held.add_callback(move |outcome| failed_once.send(outcome).unwrap()).unwrap();
    // A later query of the held stream proves that the reactor got past the failed one.
    let (sender, receiver) = mpsc::channel();
    idle.add_callback(move |outcome| sender.send(outcome).unwrap()).unwrap();
    receiver.recv_timeout(MINUTE).expect("the reactor waits for the held stream").unwrap();
    assert!(calls.try_recv().is_err(), "the held stream's callback comes after its work");
    gate.open();
    calls.recv_timeout(MINUTE).unwrap().unwrap();
    fill.wait().unwrap();
}

#[test]
fn poll_of_a_stream_whose_queue_may_be_full_enqueues_nothing() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 64).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let gate = Gate::before(&device, &[&stream]);
    for copies in [20_usize, 300] {
        // The last ones have no event of their own yet.
        let mut last = None;
        for _ in 0..copies {
            last = stream.memset_async(&there, Pattern::U8(1)).fence().cloned();
        }
        let last = last.unwrap();
        let trace = trace::start();
        for _ in 0..3 {
            assert!(!last.timeline().poll(last.point()).unwrap());
        }
        let records = trace.calls_of_this_thread().iter().filter(|call| call.name == "cuEventRecord").count();
        assert_eq!(records, usize::from(copies < 256), "{copies} in flight");
    }
    gate.open();
    stream.synchronize().unwrap();
}
