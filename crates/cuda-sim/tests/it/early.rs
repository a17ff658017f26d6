//! Calls that may return while a stream is held by a host function. Where CUDA permits both, both are accepted, and
//! what holds in both cases is checked.

use std::{ptr, thread};

use transload_cuda_sim::harness::{self, noise};
use transload_cuda_sys::{AsStream, Stream, check, ffi};

use crate::{
    gate::{Aside, Gate},
    raw::{Bench, contents, download, fill, upload},
};

/// Prints what the driver did, as evidence from runs on hardware.
fn told(what: &str, bytes: usize, returned_early: bool) {
    println!("{what}, {bytes} bytes: {}", if returned_early { "returned early" } else { "waited" });
}

fn managed(bench: &Bench, bytes: usize) -> Option<u64> {
    let _bound = bench.context.enter().expect("enter");
    let mut address = 0;
    // SAFETY: the out pointer is valid. It is freed by the caller.
    let made = unsafe { ffi::cuMemAllocManaged(&mut address, bytes, 1) };
    if made != 0 {
        println!("skipped: no managed memory ({made})");
    }
    (made == 0).then_some(address)
}

fn bytes_at(address: u64, bytes: usize) -> Vec<u8> {
    let mut seen = vec![0; bytes];
    // SAFETY: callers own `bytes` bytes that the host can read, and no work that writes them is running.
    unsafe {
        ptr::copy_nonoverlapping(ptr::with_exposed_provenance(address as usize), seen.as_mut_ptr(), bytes)
    };
    seen
}

fn set_bytes(address: u64, content: &[u8]) {
    let target = ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: callers own so many bytes that the host can write, and no work that uses them is running.
    unsafe { ptr::copy_nonoverlapping(content.as_ptr(), target, content.len()) };
}

fn free(bench: &Bench, address: u64) {
    let _bound = bench.context.enter().expect("enter");
    // SAFETY: the memory is owned by the caller, whose work on it is done.
    check("cuMemFree", unsafe { ffi::cuMemFree_v2(address) }).expect("free");
}

fn copy(stream: &Stream, to: u64, from: u64, bytes: usize) -> u32 {
    let _bound = stream.context().enter().expect("enter");
    // SAFETY: tests keep both sides until the stream is done.
    unsafe { ffi::cuMemcpyAsync(to, from, bytes, stream.as_raw()) }
}

#[test]
fn a_copy_of_managed_memory_happens_in_the_streams_order() {
    for bytes in [4096, (1 << 20) + 3] {
        let bench = Bench::new(harness::device());
        let stream = bench.stream();
        let (Some(from), Some(to)) = (managed(&bench, bytes), managed(&bench, bytes)) else { return };
        let pinned = bench.pinned(bytes);
        let content = noise(bytes, 3);
        for (what, to, from) in [
            ("managed to managed", to, from),
            ("managed to pinned", pinned.address() as u64, from),
            ("pinned to managed", from, pinned.address() as u64),
        ] {
            set_bytes(from, &content);
            set_bytes(to, &vec![0x11; bytes]);
            let gate = Gate::before(&bench, &[&stream]);
            thread::scope(|scope| {
                let call = Aside::new(scope, || copy(&stream, to, from, bytes));
                let early = call.early();
                told(what, bytes, early.is_some());
                if early.is_some() && bench.device.is_simulated() {
                    // A real driver may migrate pages for the check itself.
                    assert_eq!(bytes_at(to, bytes), vec![0x11; bytes], "{what}: before its turn");
                }
                gate.open();
                assert_eq!(early.unwrap_or_else(|| call.late()), 0);
            });
            stream.synchronize().expect("healthy");
            assert_eq!(bytes_at(to, bytes), content, "{what}");
        }
        free(&bench, from);
        free(&bench, to);
    }
}

#[test]
fn pageable_upload_reads_early_and_writes_in_stream_order() {
    for bytes in [4096, 64 << 10, (64 << 10) + 1, 1 << 20, (4 << 20) + 5] {
        // Reading the destination too early is a race.
        let bench = Bench::unchecked(harness::device());
        let (stream, other) = (bench.stream(), bench.stream());
        let memory = bench.memory(bytes);
        let back = bench.pinned(bytes);
        let content = noise(bytes, 5);
        fill(&stream, memory.address, 0x11, bytes).expect("fill");
        stream.synchronize().expect("healthy");
        let gate = Gate::before(&bench, &[&stream]);
        thread::scope(|scope| {
            let (mut source, address) = (content.clone(), memory.address);
            let stream = &stream;
            let call = Aside::new(scope, move || {
                let _bound = stream.context().enter().expect("enter");
                // SAFETY: the source is read during the call only.
                let copied = unsafe {
                    ffi::cuMemcpyHtoDAsync_v2(address, source.as_ptr().cast(), bytes, stream.as_raw())
                };
                source.fill(0xEE);
                copied
            });
            let early = call.early();
            told("pageable to device", bytes, early.is_some());
            if early.is_some() {
                download(&other, &back, 0, memory.address, bytes).expect("down");
                other.synchronize().expect("healthy");
                assert!(back.snapshot().iter().all(|byte| *byte == 0x11), "{bytes} bytes: before its turn");
            }
            gate.open();
            assert_eq!(early.unwrap_or_else(|| call.late()), 0);
        });
        stream.synchronize().expect("healthy");
        assert_eq!(contents(&bench, memory.address, bytes), content, "{bytes} bytes");
    }
}

#[test]
fn full_launch_queue_blocks_the_host() {
    const MANY: usize = 3_000;
    let bench = Bench::new(harness::device());
    let stream = bench.stream();
    let memory = bench.memory(MANY * 4);
    let gate = Gate::before(&bench, &[&stream]);
    thread::scope(|scope| {
        let call = Aside::new(scope, || {
            (0..MANY).try_for_each(|turn| fill(&stream, memory.address + turn as u64 * 4, turn as u8, 4))
        });
        let early = call.early();
        told("operations behind a gate", MANY, early.is_some());
        if let Some(sim) = bench.device.sim() {
            assert!(early.is_none(), "the launch queue is bounded");
            assert!(sim.queued() <= 1_100, "{} operations are queued", sim.queued());
        }
        gate.open();
        early.unwrap_or_else(|| call.late()).expect("enqueued");
    });
    stream.synchronize().expect("healthy");
    let seen = contents(&bench, memory.address, MANY * 4);
    assert!(seen.chunks(4).enumerate().all(|(turn, bytes)| bytes == [turn as u8; 4]));
}

#[test]
fn free_returns_once_its_gated_stream_continues() {
    let bench = Bench::new(harness::device());
    let (stream, bytes) = (bench.stream(), 1 << 20);
    let (target, mut source) = (bench.memory(bytes), bench.pinned(bytes));
    let content = noise(bytes, 7);
    source.set(&content);
    let mut registered = vec![0_u8; bytes];
    let start = registered.as_mut_ptr();
    let _bound = bench.context.enter().expect("enter");
    // SAFETY: the vector outlives its registration, which ends below.
    check("register", unsafe { ffi::cuMemHostRegister_v2(start.cast(), bytes, 0) }).expect("register");
    let start = start.expose_provenance();
    let (device, pinned) = (bench.memory(bytes), bench.pinned(bytes));
    let unregister = || {
        let _bound = bench.context.enter().expect("enter");
        // SAFETY: it was registered above, and nothing in flight uses it.
        let ended = unsafe { ffi::cuMemHostUnregister(ptr::with_exposed_provenance_mut(start)) };
        check("unregister", ended).expect("unregister");
    };
    let managed = managed(&bench, bytes);
    type Free<'a> = Box<dyn FnOnce() + Send + 'a>;
    let frees: [(&str, Free<'_>); 4] = [
        ("cuMemFree", Box::new(|| drop(device))),
        ("cuMemFree of managed memory", Box::new(|| managed.into_iter().for_each(|made| free(&bench, made)))),
        ("cuMemFreeHost", Box::new(|| drop(pinned))),
        ("cuMemHostUnregister", Box::new(unregister)),
    ];
    for (what, free) in frees {
        fill(&stream, target.address, 0, bytes).expect("fill");
        let gate = Gate::before(&bench, &[&stream]);
        upload(&stream, target.address, &source, 0, bytes).expect("up");
        thread::scope(|scope| {
            let call = Aside::new(scope, free);
            let early = call.early();
            told(what, bytes, early.is_some());
            // An H200 waits in all four. What CUDA leaves open depends on the seed.
            assert!(early.is_none() || what == "cuMemHostUnregister" || managed.is_none(), "{what} waits");
            gate.open();
            early.unwrap_or_else(|| call.late());
        });
        stream.synchronize().expect("healthy");
        assert_eq!(contents(&bench, target.address, bytes), content, "after {what}");
    }
}

#[test]
fn create_and_destroy_calls_return_behind_closed_gate() {
    let bench = Bench::new(harness::device());
    let (stream, bytes) = (bench.stream(), 1 << 20);
    let gate = Gate::before(&bench, &[&stream]);
    let mut memory = vec![0_u8; bytes];
    let mut made = (None, None, false);
    thread::scope(|scope| {
        let start = memory.as_mut_ptr().expose_provenance();
        let (bench, made) = (&bench, &mut made);
        let call = Aside::new(scope, move || {
            made.0 = Some((bench.memory(bytes), bench.pinned(bytes)));
            made.1 = managed(bench, bytes);
            drop(bench.stream());
            bench.context.memory_info().expect("memory info");
            let _bound = bench.context.enter().expect("enter");
            // SAFETY: the vector outlives its registration, which ends below.
            made.2 =
                unsafe { ffi::cuMemHostRegister_v2(ptr::with_exposed_provenance_mut(start), bytes, 0) } == 0;
        });
        let early = call.soon();
        gate.open();
        assert!(early.is_some(), "a call waited for the gate");
    });
    made.1.into_iter().for_each(|address| free(&bench, address));
    let _bound = bench.context.enter().expect("enter");
    // SAFETY: it was registered above, and nothing in flight uses it.
    check("unregister", unsafe { ffi::cuMemHostUnregister(memory.as_mut_ptr().cast()) }).expect("unregister");
    assert!(made.2, "registered");
}
