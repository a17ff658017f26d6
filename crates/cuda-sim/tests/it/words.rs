//! Streams that wait for a word which the host writes, and that write words for the host.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use transload_core::host_access::{self, HostAccess};
use transload_cuda_sim::harness;
use transload_cuda_sys::{Event, EventTiming, Stream};

use crate::raw::{Bench, Pinned, contents, download, fill, upload};

fn word(of: &Pinned) -> &AtomicU32 {
    // SAFETY: the memory is aligned, and the host accesses these bytes by atomic operations only.
    unsafe { AtomicU32::from_ptr(of.pointer().cast()) }
}

fn wait(stream: &Stream, of: &Pinned, value: u32) {
    // SAFETY: the tests write the word and wait for the stream before they free it. With unified addressing the addresses agree.
    unsafe { stream.wait_word(of.address() as u64, value) }.expect("wait");
}

/// Writes memory as a host thread does.
fn write(to: &mut Pinned, value: u8) {
    host_access::note(to.address(), to.bytes, HostAccess::Write);
    to.bytes_mut().fill(value);
}

fn bench() -> Option<Bench> {
    let bench = Bench::new(harness::device());
    if !Stream::can_wait_words() {
        println!("skipped: the driver has no waits for words");
        return None;
    }
    Some(bench)
}

#[test]
fn stream_and_its_followers_wait_for_the_word() {
    let Some(bench) = bench() else { return };
    let (first, second, free) = (bench.stream(), bench.stream(), bench.stream());
    let (words, mut from, to) = (bench.pinned(128), bench.pinned(10_000), bench.pinned(10_000));
    let (memory, other) = (bench.memory(10_000), bench.memory(64));
    let event = Event::new(&bench.context, EventTiming::Disabled).expect("event");
    for value in 1..=3_u8 {
        wait(&first, &words, value.into());
        upload(&first, memory.address, &from, 0, 10_000).expect("up");
        event.record(&first).expect("record");
        second.wait_event(&event).expect("wait");
        download(&second, &to, 0, memory.address, 10_000).expect("down");
        // Other streams go on.
        upload(&free, other.address, &words, 64, 64).expect("up");
        free.synchronize().expect("healthy");
        assert!((0..50).all(|_| !second.is_idle().expect("healthy")));
        write(&mut from, value);
        let written = word(&words);
        thread::scope(|scope| {
            scope.spawn(move || written.store(value.into(), Ordering::Release));
            second.synchronize().expect("healthy");
        });
        assert_eq!(to.snapshot(), vec![value; 10_000]);
    }
    assert_eq!(contents(&bench, memory.address, 10_000), vec![3; 10_000]);
}

#[test]
fn word_compares_in_a_circle() {
    let Some(bench) = bench() else { return };
    let (stream, words) = (bench.stream(), bench.pinned(128));
    for (has, wants) in [(5, 5), (6, 5), (3, u32::MAX - 2), (0, 0x8000_0001), (u32::MAX, u32::MAX)] {
        word(&words).store(has, Ordering::Release);
        wait(&stream, &words, wants);
        stream.synchronize().expect("healthy");
    }
    for (has, wants) in [(4, 5), (u32::MAX, 0), (u32::MAX - 2, 3)] {
        word(&words).store(has, Ordering::Release);
        wait(&stream, &words, wants);
        assert!((0..50).all(|_| !stream.is_idle().expect("healthy")));
        word(&words).store(wants, Ordering::Release);
        stream.synchronize().expect("healthy");
    }
}

#[test]
fn written_word_tells_of_the_work_before() {
    const BYTES: usize = 10_000;
    let bench = Bench::new(harness::device());
    if !Stream::can_write_words() {
        println!("skipped: the driver does not write words");
        return;
    }
    let (stream, words, to, memory) =
        (bench.stream(), bench.pinned(128), bench.pinned(BYTES), bench.memory(BYTES));
    for value in 1..=20_u8 {
        fill(&stream, memory.address, value, BYTES).expect("fill");
        download(&stream, &to, 0, memory.address, BYTES).expect("down");
        // SAFETY: the test waits for the stream before it frees the word. With unified addressing the addresses agree.
        unsafe { stream.write_word(words.address() as u64, value.into()) }.expect("write");
        let is_written = || word(&words).load(Ordering::Acquire) == value.into();
        if (0..1_000_000).any(|_| is_written()) {
            host_access::note(words.address(), size_of::<u32>(), HostAccess::Read);
        } else {
            // The software driver runs the work in some calls only.
            stream.synchronize().expect("healthy");
            assert!(is_written());
        }
        assert_eq!(to.snapshot(), vec![value; BYTES]);
    }
}
