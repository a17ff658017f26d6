//! Reads back what a Perfetto trace of this library contains.

use std::{
    io::{BufRead, Read as _},
    path::{Path, PathBuf},
};

use prost::Message as _;
use transload_core::{Error, ErrorKind, Result};

use super::{
    messages::{AnnotationValue, DebugAnnotation, EventType, TracePacket, TrackEvent},
    perfetto::{ADVICE, BYTES, NOT_DRAWN, RECORDS_LOST, SLICES, TEXTS_CUT, UNFINISHED},
    types::TraceSummary,
};

/// The key of a packet: field 1, with a length.
const PACKET: u8 = 1 << 3 | 2;
/// Most bytes of the first packet, by which a file is known as a trace, and of any other one: a slice may have many arguments.
const LONGEST_FIRST: u64 = 1 << 20;
const LONGEST: u64 = (1 << 28) - 1;

/// What a Perfetto trace of this library contains, also one whose writer was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceContents {
    /// Slices in it.
    pub slices: u64,
    /// What its writer said at the end; `None` if it did not end the trace.
    pub summary: Option<TraceSummary>,
    /// What its writer advised at the end, in words: see [`Advice`](crate::Advice).
    pub advice: Vec<String>,
}

impl TraceContents {
    /// Most traces of one program, or one run of several, with [paths](Self::path) numbered from 1 on.
    pub const FILES: u32 = 64;

    /// Returns the path of the `number`-th trace of a program that was asked to record to `path`: with the number before its extension from the
    /// second on.
    #[must_use]
    pub fn path(path: &Path, number: u32) -> PathBuf {
        if number <= 1 {
            return path.to_owned();
        }
        let mut name = path.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".{number}"));
        if let Some(extension) = path.extension() {
            name.push(".");
            name.push(extension);
        }
        path.with_file_name(name)
    }

    /// Reads a trace to its end, or to a packet that is cut.
    ///
    /// ```
    /// use transload_profiler::{Slice, TraceContents, TraceFormat, TraceOptions, TraceWriter};
    ///
    /// let mut file = Vec::new();
    /// let mut trace = TraceWriter::new(&mut file, TraceFormat::Perfetto, TraceOptions::new())?;
    /// let track = trace.track(None, "host")?;
    /// trace.slice(track, &Slice { name: "submit", begin: 0, end: 5, flow: None, arguments: &[] })?;
    /// let written = trace.finish()?;
    /// let read = TraceContents::read(&file[..])?;
    /// assert_eq!((read.slices, read.summary.map(|it| it.slices)), (1, Some(written.slices)));
    /// # Ok::<(), transload_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if reading fails, [`ErrorKind::InvalidArgument`] if it is no Perfetto trace of this library.
    pub fn read(mut from: impl BufRead) -> Result<Self> {
        let (mut contents, mut packet) = (Self::default(), Vec::new());
        let mut is_first = true;
        while next(&mut from, &mut packet, if is_first { LONGEST_FIRST } else { LONGEST })? {
            let read = TracePacket::decode(&packet[..]).map_err(|error| {
                Error::caused_by(ErrorKind::InvalidArgument, "no trace of this library", error)
            })?;
            if std::mem::take(&mut is_first) && read.sequence_flags.is_none() {
                return Err(foreign());
            }
            match read.track_event {
                Some(event) if event.r#type == Some(EventType::SliceBegin.into()) => contents.slices += 1,
                Some(event) if event.r#type == Some(EventType::Instant.into()) => {
                    contents.summary = Some(summary(&event));
                    contents.advice = advice(&event);
                }
                _ => {}
            }
        }
        if is_first { Err(foreign()) } else { Ok(contents) }
    }
}

fn foreign() -> Error {
    Error::new(ErrorKind::InvalidArgument, "no Perfetto trace of this library")
}

/// Reads a packet of at most so many bytes. `false` at the end, or if it is cut.
fn next(from: &mut impl BufRead, packet: &mut Vec<u8>, most: u64) -> Result<bool> {
    let failed = |error| Error::caused_by(ErrorKind::Io, "reading the trace failed", error);
    let mut byte = || {
        let first = from.fill_buf().map_err(failed)?.first().copied();
        from.consume(usize::from(first.is_some()));
        Ok(first)
    };
    match byte()? {
        None => return Ok(false),
        Some(PACKET) => {}
        Some(_) => return Err(foreign()),
    }
    let (mut length, mut shift) = (0, 0);
    loop {
        let Some(byte) = byte()? else { return Ok(false) };
        length |= u64::from(byte & 0x7F) << shift;
        shift += 7;
        if length > most || shift > 28 {
            return Err(foreign());
        }
        if byte < 0x80 {
            break;
        }
    }
    packet.clear();
    let read = from.take(length).read_to_end(packet).map_err(failed)?;
    Ok(read as u64 == length)
}

fn value<'a>(event: &'a TrackEvent, name: &str) -> Option<&'a AnnotationValue> {
    let of_name = |annotation: &&DebugAnnotation| annotation.name.as_deref() == Some(name);
    event.debug_annotations.iter().find(of_name)?.value.as_ref()
}

fn advice(event: &TrackEvent) -> Vec<String> {
    match value(event, ADVICE) {
        Some(AnnotationValue::Text(lines)) => lines.lines().map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

fn summary(event: &TrackEvent) -> TraceSummary {
    let number = |name: &str| match value(event, name) {
        Some(AnnotationValue::Unsigned(value)) => *value,
        _ => 0,
    };
    TraceSummary {
        slices: number(SLICES),
        slices_not_drawn: number(NOT_DRAWN),
        texts_cut: number(TEXTS_CUT),
        records_lost: number(RECORDS_LOST),
        unfinished: number(UNFINISHED),
        bytes: number(BYTES),
    }
}
