//! Work on one buffer takes effect in submission order, on any streams and through any handles.

use transload_core::{ErrorKind, Pattern};
use transload_streams::CudaStream;

use crate::support::setup::{Setup, noise};

#[test]
fn reader_on_another_stream_sees_earlier_writes() {
    let setup = Setup::new();
    let (writer, reader) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    for round in 0..20 {
        let content = noise(100_000, round);
        let (host, there, back) =
            (setup.pinned(&content), setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        let up = writer.copy_from_host_async(&host, &there);
        let down = reader.copy_to_host_async(&there, &back);
        down.wait().unwrap();
        assert!(*back.read().unwrap() == content[..], "round {round}");
        up.wait().unwrap();
    }
    drop((writer, reader));
    setup.finish();
}

#[test]
fn last_submitted_writer_of_several_streams_wins() {
    let setup = Setup::new();
    let streams: Vec<_> = (0..4).map(|_| CudaStream::new(&setup.device).unwrap()).collect();
    let (there, back) = (setup.device(70_000), setup.pinned(&vec![0; 70_000]));
    for round in 0..25_u8 {
        for (index, stream) in streams.iter().enumerate() {
            drop(stream.memset_async(&there, Pattern::U8(round.wrapping_mul(4) + index as u8)));
        }
        streams[usize::from(round) % 4].copy_to_host_async(&there, &back).wait().unwrap();
        let last = round.wrapping_mul(4) + 3;
        assert!(back.read().unwrap().iter().all(|byte| *byte == last), "round {round}");
    }
    drop(streams);
    drop((there, back));
    setup.finish();
}

#[test]
fn a_writer_waits_for_earlier_readers() {
    let setup = Setup::new();
    let (one, two) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (there, back) = (setup.device(200_000), setup.pinned(&vec![0; 200_000]));
    for round in 0..20 {
        one.memset_async(&there, Pattern::U8(round)).wait().unwrap();
        let read = one.copy_to_host_async(&there, &back);
        let overwrite = two.memset_async(&there, Pattern::U8(0xFF));
        overwrite.wait().unwrap();
        read.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
}

#[test]
fn host_view_waits_or_is_busy_and_blocks_new_work() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(4 << 20, 4);
    let (host, there, back) =
        (setup.pinned(&content), setup.device(4 << 20), setup.pinned(&vec![0; 4 << 20]));
    let up = stream.copy_from_host_async(&host, &there);
    let down = stream.copy_to_host_async(&there, &back);
    // On real hardware it may be complete already; a view of half a copy must not happen.
    match back.try_read() {
        Ok(view) => assert!(*view == content[..]),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Busy),
    }
    let view = back.read().unwrap();
    assert!(*view == content[..]);
    let refused = stream.copy_to_host_async(&there, &back);
    assert_eq!(refused.wait().unwrap_err().kind(), ErrorKind::Busy);
    drop(view);
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    up.wait().unwrap();
    down.wait().unwrap();
}

#[test]
fn dropped_transfer_keeps_memory_alive_until_complete() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let content = noise(3 << 20, 8);
    let (there, back) = (setup.device(3 << 20), setup.pinned(&vec![0; 3 << 20]));
    let host = setup.pinned(&content);
    drop(stream.copy_from_host_async(&host, &there));
    drop(host);
    // New allocations must not get the source while it is being read.
    let _others: Vec<_> = (0..4).map(|seed| setup.pinned(&noise(3 << 20, seed))).collect();
    stream.copy_to_host_async(&there, &back).wait().unwrap();
    assert!(*back.read().unwrap() == content[..]);
    drop((stream, there, back, _others));
    setup.finish();
}

#[test]
fn buffer_shared_by_twelve_threads_has_no_torn_copy() {
    let setup = Setup::new();
    let there = setup.device(50_000);
    std::thread::scope(|scope| {
        for thread in 0..12_u8 {
            let (setup, there) = (&setup, &there);
            scope.spawn(move || {
                let stream = CudaStream::new(&setup.device).unwrap();
                let back = setup.pinned(&[0; 50_000]);
                for _ in 0..50 {
                    drop(stream.memset_async(there, Pattern::U8(thread)));
                    stream.copy_to_host_async(there, &back).wait().unwrap();
                    let view = back.read().unwrap();
                    assert!(view.iter().all(|byte| *byte == view[0]) && view[0] < 12, "a torn copy");
                }
            });
        }
    });
    drop(there);
    setup.finish();
}
