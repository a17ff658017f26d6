//! A disk that is full in the middle of a trace: the error is told at its end, what was written opens, and the program goes on.

use std::{
    io::{self, BufWriter, ErrorKind, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
};
use transload_profiler::{TraceContents, TraceFormat, TraceOptions};

use crate::{Written, timing_all};

const BYTES: usize = 1000;

/// A disk with room for a number of bytes.
struct Disk {
    written: Written,
    room: usize,
    is_full: Arc<AtomicBool>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(self.room);
        if length == 0 && !bytes.is_empty() {
            self.is_full.store(true, Ordering::Relaxed);
            return Err(io::Error::new(ErrorKind::StorageFull, "no space left"));
        }
        self.room -= length;
        self.written.write(&bytes[..length])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the slices in what was written of a trace.
fn slices(format: TraceFormat, bytes: &[u8]) -> u64 {
    if format == TraceFormat::Perfetto {
        let contents = TraceContents::read(bytes).unwrap();
        assert_eq!(contents.summary, None);
        return contents.slices;
    }
    // As a viewer does: it takes all whole events of a file without its end.
    let lines =
        bytes.split(|&byte| byte == b'\n').skip(1).map(|line| line.strip_suffix(b",").unwrap_or(line));
    let events: Vec<_> = lines.map(serde_json::from_slice::<serde_json::Value>).collect();
    assert!(events.iter().rev().skip(1).all(Result::is_ok), "only the last event may be cut");
    events.iter().flatten().filter(|event| event["ph"] == "X").count() as u64
}

#[test]
fn full_disk_ends_the_trace_and_nothing_else() {
    let backend = CpuBackend::new().unwrap();
    let profiler = timing_all();
    profiler.attach(&(backend.clone() as _)).unwrap();
    profiler.enable().unwrap();
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let mut copies = 0_u64;
    let mut copy = || {
        let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
        let (src, dst) = (allocate(), allocate());
        copies += 1;
        src.write().unwrap().fill(copies as u8);
        submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap().wait().unwrap();
        assert!(dst.read().unwrap().iter().all(|byte| *byte == copies as u8));
        copies
    };
    for (format, is_buffered) in [
        (TraceFormat::Perfetto, false),
        (TraceFormat::Chrome, false),
        (TraceFormat::Perfetto, true),
        (TraceFormat::Chrome, true),
    ] {
        for room in [2000, 10_001, 100_003] {
            let (written, is_full) = (Written::default(), Arc::new(AtomicBool::new(false)));
            let disk = Disk { written: written.clone(), room, is_full: Arc::clone(&is_full) };
            let out: Box<dyn Write + Send> =
                if is_buffered { Box::new(BufWriter::new(disk)) } else { Box::new(disk) };
            profiler.start_trace(out, format, TraceOptions::new()).unwrap();
            while !is_full.load(Ordering::Relaxed) {
                copy();
                drop(profiler.get_stream_report(&*queue));
            }
            let copied = copy();
            let counted = profiler.get_stream_report(&*queue).unwrap();
            assert_eq!((counted.operations(), counted.kinds[0].running.count), (copied, copied), "{counted}");
            let error = profiler.finish_trace().unwrap_err();
            assert_eq!(error.kind(), transload_core::ErrorKind::Io);
            assert!(error.to_string().ends_with(": no space left"), "{error}");
            let bytes = written.0.lock();
            assert_eq!(bytes.len(), room);
            assert!(slices(format, &bytes) > room as u64 / 1000, "{format:?} of {room} bytes");
        }
    }
    // A later trace is whole.
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    copy();
    let summary = profiler.finish_trace().unwrap();
    let contents = TraceContents::read(&written.0.lock()[..]).unwrap();
    assert_eq!(
        (contents.slices, contents.summary.map(|it| it.slices)),
        (summary.slices, Some(summary.slices))
    );
    assert!(summary.slices > 0);
}

#[test]
fn disk_that_is_full_at_once_begins_no_trace() {
    let profiler = timing_all();
    profiler.enable().unwrap();
    for room in [0, 1] {
        let disk = Disk { written: Written::default(), room, is_full: Arc::default() };
        let error = profiler.start_trace(disk, TraceFormat::Perfetto, TraceOptions::new()).unwrap_err();
        assert_eq!(error.kind(), transload_core::ErrorKind::Io);
    }
    let none = profiler.finish_trace().unwrap_err();
    assert_eq!(none.kind(), transload_core::ErrorKind::InvalidArgument);
    profiler.start_trace(io::sink(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    profiler.finish_trace().unwrap();
}
