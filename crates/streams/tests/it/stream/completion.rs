//! Completion: blocking waits, awaiting on any executor, durations measured by the device.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use transload_core::{Operation, Pattern, Queue, Timing, submit};
use transload_streams::{CudaEvent, CudaStream};

use crate::support::setup::{Setup, noise};

#[test]
fn a_transfer_is_awaited_by_any_executor() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(500_000, 2);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(500_000), setup.pinned(&vec![0; 500_000]));
    pollster::block_on(async {
        let up = stream.copy_from_host_async(&host, &there);
        let down = stream.copy_to_host_async(&there, &back);
        // In reverse order of submission.
        assert_eq!(down.await.unwrap().bytes, 500_000);
        up.await.unwrap();
    });
    assert!(*back.read().unwrap() == content[..]);
    drop((host, there, back, stream));
    setup.finish();
}

#[test]
fn a_thousand_transfers_awaited_at_once_all_complete() {
    let setup = Setup::new();
    let streams: Vec<_> = (0..4).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
    let there = setup.device(1000 * 16);
    let transfers: Vec<_> = (0..1000)
        .map(|n| {
            streams[n % 4].memset_async(&there.slice(n * 16..(n + 1) * 16).unwrap(), Pattern::U8(n as u8))
        })
        .collect();
    let mut done = 0;
    pollster::block_on(async {
        for transfer in transfers {
            transfer.await.unwrap();
            done += 1;
        }
    });
    assert_eq!(done, 1000);
    let back = setup.pinned(&[0; 16_000]);
    streams[0].copy_to_host_async(&there, &back).wait().unwrap();
    assert!(
        back.read()
            .unwrap()
            .chunks(16)
            .enumerate()
            .all(|(n, chunk)| chunk.iter().all(|byte| *byte == n as u8))
    );
}

/// Wakes by unparking, and counts.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn reactor_wakes_a_task_without_polling() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&vec![1; 8 << 20]), setup.device(8 << 20));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut transfer = pin!(stream.copy_from_host_async(&host, &there));
    // Parks between polls, so a missing wake hangs.
    let report = loop {
        match transfer.as_mut().poll(&mut context) {
            Poll::Ready(outcome) => break outcome.unwrap(),
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(report.bytes, 8 << 20);
    // A second poll returns an error instead of panicking.
    assert!(matches!(transfer.as_mut().poll(&mut context), Poll::Ready(Err(_))));
}

#[test]
fn only_a_measured_operation_returns_a_duration_once() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&vec![1; 1 << 20]), setup.device(1 << 20));
    let copy = Operation::Copy { src: &host, dst: &there };
    let measured = submit(&stream, &copy, Timing::Measured).unwrap();
    let plain = submit(&stream, &copy, Timing::Off).unwrap();
    plain.wait().unwrap();
    let duration = stream.timeline().take_duration(measured.point()).unwrap().unwrap();
    // 1 MiB over any link takes more than a microsecond and less than a second.
    assert!((1e-6..1.0).contains(&duration.as_secs_f64()), "{duration:?}");
    assert_eq!(stream.timeline().take_duration(measured.point()).unwrap(), None);
    assert_eq!(stream.timeline().take_duration(plain.point()).unwrap(), None);
}

#[test]
fn outstanding_work_is_counted_and_ends_at_zero() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let there = setup.device(1000);
    assert_eq!(stream.outstanding(), 0);
    let transfers: Vec<_> = (0..5).map(|_| stream.memset_async(&there, Pattern::U8(1))).collect();
    // Not polled yet, so nothing is known to be complete.
    assert_eq!(stream.outstanding(), 5);
    transfers.into_iter().for_each(|transfer| drop(transfer.wait().unwrap()));
    assert_eq!(stream.outstanding(), 0);
    assert!(stream.is_ready().unwrap());
}

#[test]
fn event_completes_with_its_work_and_measures_time() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&vec![1; 4 << 20]), setup.device(4 << 20));
    let (start, end) = (CudaEvent::new(&setup.device).unwrap(), CudaEvent::new(&setup.device).unwrap());
    assert!(end.is_done().unwrap(), "an event never recorded is done");
    start.record(&stream).unwrap();
    drop(stream.copy_from_host_async(&host, &there));
    end.record(&stream).unwrap();
    let other = CudaStream::new(&setup.device).unwrap();
    other.wait_event(&end).unwrap();
    other.synchronize().unwrap();
    assert!(end.is_done().unwrap(), "another stream waited for it");
    assert!(end.elapsed_since(&start).unwrap().as_nanos() > 0);
}
