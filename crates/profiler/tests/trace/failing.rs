//! A failed write is a typed error of that call and of all later ones.

use std::io::{Error, ErrorKind, Result, Write};

use transload_profiler::{TraceFormat, TraceOptions, TraceWriter};

use super::{example, slice, written};

/// A disk with room for a number of bytes, and for any number after it was full once.
struct Disk<'a> {
    bytes: &'a mut Vec<u8>,
    room: usize,
    flushes: bool,
}

impl Write for Disk<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let length = bytes.len().min(self.room);
        if length == 0 {
            self.room = usize::MAX;
            return Err(Error::new(ErrorKind::StorageFull, "no space left"));
        }
        self.bytes.extend_from_slice(&bytes[..length]);
        self.room -= length;
        Ok(length)
    }

    fn flush(&mut self) -> Result<()> {
        if self.flushes { Ok(()) } else { Err(Error::new(ErrorKind::StorageFull, "no space left")) }
    }
}

#[test]
fn full_disk_is_an_error_of_every_later_call() {
    for format in [TraceFormat::Perfetto, TraceFormat::Chrome] {
        let options = TraceOptions::new().slices(2);
        let (whole, _) = written(format, options.clone(), |trace| example(trace).unwrap());
        for room in 0..whole.len() {
            let mut bytes = Vec::new();
            let disk = Disk { bytes: &mut bytes, room, flushes: true };
            let check = |error: transload_core::Error| {
                assert_eq!(error.kind(), transload_core::ErrorKind::Io);
                assert!(error.to_string().ends_with(": no space left"), "{error}");
            };
            match TraceWriter::new(disk, format, options.clone()) {
                Err(error) => check(error),
                Ok(mut trace) => {
                    if let Err(error) = example(&mut trace) {
                        check(error);
                        check(trace.track(None, "later").unwrap_err());
                    }
                    check(trace.finish().unwrap_err());
                }
            }
            assert_eq!(bytes, whole[..room]);
        }
    }
}

#[test]
fn slice_after_a_failure_reports_it() {
    let mut bytes = Vec::new();
    let disk = Disk { bytes: &mut bytes, room: 100, flushes: true };
    let mut trace = TraceWriter::new(disk, TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let track = trace.track(None, "t").unwrap();
    let failed = (0..100).filter_map(|at| trace.slice(track, &slice("a", at, at)).err()).collect::<Vec<_>>();
    drop(trace);
    assert_eq!(bytes.len(), 100);
    assert!(failed.len() > 90 && failed.iter().all(|error| error.to_string() == failed[0].to_string()));
}

#[test]
fn failed_flush_is_reported_by_finish() {
    let mut bytes = Vec::new();
    let disk = Disk { bytes: &mut bytes, room: 10_000, flushes: false };
    let trace = TraceWriter::new(disk, TraceFormat::Chrome, TraceOptions::new()).unwrap();
    assert_eq!(trace.finish().unwrap_err().kind(), transload_core::ErrorKind::Io);
}
