//! A stream waits for work of host threads on the device, not in the submitting thread. A program of its own: while another test
//! frees memory, the thread waits.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

#[path = "it/support/gate.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod gate;
#[path = "shared/host_line.rs"]
mod host_line;
#[path = "it/support/setup.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod setup;

use std::{
    any::Any,
    ptr::NonNull,
    sync::{Arc, Mutex},
    task::{Context, Waker},
};

use transload_core::{
    Access, DeviceId, ErrorKind, Fence, MemoryKind, Operation, Place, Queue, RawBuffer, Reclaimer, Storage,
    Timing, TrySubmitError, Turns, submit, submit_after, try_submit,
};
use transload_cuda_sys::Stream;
use transload_memory::FreeDeferral;
use transload_streams::CudaStream;

use crate::{
    gate::limited,
    host_line::HostLine,
    setup::{Setup, noise},
};

const BYTES: usize = 40_000;

/// Runs the test on a device, unless its driver cannot let streams wait for words.
fn on_device(test: impl FnOnce(&Setup) + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    limited(|| {
        let setup = Setup::new();
        if !Stream::can_wait_words() {
            println!("skipped: the driver has no waits for words");
            return;
        }
        test(&setup);
        setup.finish();
    });
}

fn copy(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> Fence {
    submit(stream, &Operation::Copy { src, dst }, Timing::Off).unwrap()
}

fn content(setup: &Setup, stream: &CudaStream, of: &RawBuffer) -> Vec<u8> {
    let back = setup.pinned(&vec![0; of.len()]);
    copy(stream, of, &back).wait().unwrap();
    back.read().unwrap().to_vec()
}

/// Polls as often as the software driver needs to run everything that is ready.
fn assert_stays_pending(fence: &Fence) {
    assert!((0..100).all(|_| !fence.is_complete()));
}

#[test]
fn copy_after_host_work_does_not_block_the_host() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
        let line = HostLine::writing(&pinned, noise(BYTES, 2));
        let copied = copy(&stream, &pinned, &device);
        assert_stays_pending(&copied);
        assert!(!line.was_waited_for());
        line.open();
        copied.wait().unwrap();
        assert!(content(setup, &stream, &device) == noise(BYTES, 2));
    });
}

#[test]
fn nonblocking_submission_after_host_work_succeeds() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
        let line = HostLine::writing(&pinned, noise(BYTES, 2));
        let operation = Operation::Copy { src: &pinned, dst: &device };
        let attempt = || try_submit(&stream, &operation, Timing::Off, &Turns::default());
        // What the stream's waits need is not set up by a thread that must not block.
        assert!(matches!(attempt(), Err(TrySubmitError::WouldBlock(_))));
        stream.prepare_waits();
        let copied = attempt().unwrap();
        assert_stays_pending(&copied);
        line.open();
        copied.wait().unwrap();
        assert!(content(setup, &stream, &device) == noise(BYTES, 2));
    });
}

#[test]
fn submission_after_a_host_fence_does_not_block() {
    on_device(|setup| {
        let streams = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
        let line = HostLine::new(None);
        let operation = Operation::Copy { src: &pinned, dst: &device };
        // The second of them relies on the stream's earlier wait.
        let [first, second] = [(); 2]
            .map(|()| submit_after(&streams[0], &operation, &[line.fence()], Timing::Measured).unwrap());
        // Another stream is not delayed.
        let other = setup.device(BYTES);
        copy(&streams[1], &setup.pinned(&noise(BYTES, 3)), &other).wait().unwrap();
        assert_stays_pending(&first);
        assert!(!line.was_waited_for());
        line.open();
        second.wait().unwrap();
        first.wait().unwrap();
        assert!(content(setup, &streams[1], &device) == noise(BYTES, 1));
    });
}

/// Ordinary host memory.
struct Pageable(Vec<u128>);

// SAFETY: the bytes are owned, and initialised.
unsafe impl Storage for Pageable {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        self.0.len() * 16
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.0.as_ptr().cast_mut().cast())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn pageable(reclaimer: &Arc<Reclaimer>) -> RawBuffer {
    RawBuffer::new(Box::new(Pageable(vec![0; BYTES / 16])), reclaimer)
}

#[test]
fn copy_of_pageable_memory_waits_on_the_host() {
    on_device(|setup| {
        let reclaimer = Arc::new(Reclaimer::new());
        let stream = CudaStream::new(&setup.device).unwrap();
        let (from, to, device) = (pageable(&reclaimer), pageable(&reclaimer), setup.device(BYTES));
        // The driver reads the source during the call.
        let line = HostLine::writing(&from, noise(BYTES, 2));
        let copied = copy(&stream, &from, &device);
        assert!(line.was_waited_for());
        copied.wait().unwrap();
        assert!(content(setup, &stream, &device) == noise(BYTES, 2));
        // It writes the destination during the call: the host's work would overwrite that.
        let line = HostLine::writing(&to, noise(BYTES, 3));
        copy(&stream, &device, &to).wait().unwrap();
        line.open();
        assert!(*to.read().unwrap() == noise(BYTES, 2));
        // A wait that a fence alone requires.
        let line = HostLine::new(None);
        let operation = Operation::Copy { src: &from, dst: &device };
        submit_after(&stream, &operation, &[line.fence()], Timing::Off).unwrap().wait().unwrap();
        assert!(line.was_waited_for());
        let line = HostLine::writing(&from, noise(BYTES, 4));
        match try_submit(&stream, &operation, Timing::Off, &Turns::default()) {
            Err(TrySubmitError::WouldBlock(_)) => {}
            other => panic!("{other:?}"),
        }
        line.open();
    });
}

#[test]
fn failed_host_work_fails_the_copy_of_its_bytes() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
        let line = HostLine::writing(&pinned, noise(BYTES, 2));
        let copied = copy(&stream, &pinned, &device);
        line.fail();
        assert_eq!(copied.wait().unwrap_err().kind(), ErrorKind::SourceFailed);
        // The stream goes on.
        copy(&stream, &setup.pinned(&noise(BYTES, 3)), &device).wait().unwrap();
        assert!(content(setup, &stream, &device) == noise(BYTES, 3));
    });
}

#[test]
fn everything_may_be_dropped_while_a_stream_waits() {
    on_device(|setup| {
        let line = {
            let stream = CudaStream::new(&setup.device).unwrap();
            let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
            let line = HostLine::writing(&pinned, noise(BYTES, 2));
            let _copied = copy(&stream, &pinned, &device);
            line
        };
        // Allocating and dropping go on meanwhile.
        drop((setup.pinned(&[1]), setup.device(1)));
        line.open();
    });
}

#[test]
fn many_waits_reuse_words_and_then_block() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        for round in 0..3_u64 {
            // No frees are in progress.
            setup.memory.drain().unwrap();
            let parts: Vec<_> = (0..70).map(|_| (setup.pinned(&[0; 64]), setup.device(64))).collect();
            let writing = |(part, (pinned, _)): (u64, &(RawBuffer, RawBuffer))| {
                HostLine::writing(pinned, noise(64, round * 100 + part))
            };
            let lines: Vec<_> = (0..).zip(&parts).map(writing).collect();
            let copies: Vec<_> = parts.iter().map(|(from, to)| copy(&stream, from, to)).collect();
            assert_eq!(lines.iter().filter(|line| line.was_waited_for()).count(), 70 - 64);
            assert_stays_pending(&copies[69]);
            // In any order.
            lines.iter().rev().for_each(|line| line.open());
            copies.iter().for_each(|copied| copied.wait().unwrap());
            for (part, (_, device)) in (0..).zip(&parts) {
                assert!(content(setup, &stream, device) == noise(64, round * 100 + part), "{part}");
            }
        }
    });
}

#[test]
fn awaited_use_after_host_work_blocks_no_thread() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        let pinned = setup.pinned(&noise(BYTES, 1));
        let line = HostLine::writing(&pinned, noise(BYTES, 2));
        let mut using = Box::pin(stream.use_buffer_async(&pinned, Access::Read));
        assert!(using.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(!line.was_waited_for());
        line.open();
        pollster::block_on(using).unwrap().end().unwrap();
        assert!(*pinned.read().unwrap() == noise(BYTES, 2));
    });
}

#[test]
fn refused_word_wait_blocks_instead() {
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    const NOT_SUPPORTED: u32 = 801;
    on_device(|setup| {
        let Some(sim) = setup.test.sim() else { return };
        let stream = CudaStream::new(&setup.device).unwrap();
        sim.fail_call(Some("cuStreamWaitValue32_v2"), 1, NOT_SUPPORTED);
        for round in 2..4 {
            let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
            let line = HostLine::writing(&pinned, noise(BYTES, round));
            copy(&stream, &pinned, &device).wait().unwrap();
            // The second copy does not try again.
            assert!(line.was_waited_for());
            assert!(content(setup, &stream, &device) == noise(BYTES, round));
        }
    });
}

#[test]
fn nonblocking_submission_keeps_its_word_from_other_threads() {
    on_device(|setup| {
        let [stream, other] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        [&stream, &other].into_iter().for_each(Queue::prepare_waits);
        let lines = [(); 65].map(|()| HostLine::new(None));
        // The stream says so before a submission; then others take all words.
        assert!(stream.can_wait_for(&lines[0].fence()));
        assert_eq!(lines[1..].iter().filter(|line| other.can_wait_for(&line.fence())).count(), 63);
        let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
        let operation = Operation::Copy { src: &pinned, dst: &device };
        let copied = submit_after(&stream, &operation, &[lines[0].fence()], Timing::Off).unwrap();
        assert_stays_pending(&copied);
        assert!(!lines[0].was_waited_for());
        lines.iter().for_each(|line| line.open());
        copied.wait().unwrap();
        assert!(content(setup, &stream, &device) == noise(BYTES, 1));
    });
}

#[test]
fn stream_without_device_waits_blocks_instead() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        stream.clone().set_device_waits(false);
        let (pinned, device) = (setup.pinned(&noise(BYTES, 1)), setup.device(BYTES));
        let line = HostLine::writing(&pinned, noise(BYTES, 2));
        copy(&stream, &pinned, &device).wait().unwrap();
        assert!(line.was_waited_for());
        assert!(content(setup, &stream, &device) == noise(BYTES, 2));
    });
}

#[test]
fn frees_that_wait_for_the_device_are_not_starved() {
    on_device(|setup| {
        let stream = CudaStream::new(&setup.device).unwrap();
        let device = setup.device(64);
        let blocks = |number| {
            let pinned = setup.pinned(&[0; 64]);
            let line = HostLine::writing(&pinned, noise(64, number));
            let copied = copy(&stream, &pinned, &device);
            let blocks = line.was_waited_for();
            (line, copied, blocks)
        };
        let (first, ..) = blocks(1);
        // Its free waits for the first line.
        drop(setup.pinned(&[0; 64]));
        while FreeDeferral::can_begin() {
            std::thread::yield_now();
        }
        let (_, second, was_blocked) = blocks(2);
        assert!(was_blocked);
        first.open();
        second.wait().unwrap();
        assert!(content(setup, &stream, &device) == noise(64, 2));
    });
}
