//! `transload copy`: a file's bytes to a device and back, compared byte by byte.

mod file;
mod pipeline;
pub(crate) mod progress;
#[cfg(test)]
mod tests;

use std::{fs::File, path::Path};

use serde::Serialize;
use transload::{DeviceInfo, Error, MemoryKind, MemoryShortage, Runtime};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    output, text,
};
use file::{Source, Stamp};
use pipeline::{Leg, Pipeline};
use progress::Progress;

#[derive(Serialize)]
struct Copied {
    file: String,
    bytes: u64,
    to: String,
    device_name: String,
    buffers: usize,
    buffer_bytes: usize,
    buffer_kind: String,
    up: Rates,
    down: Rates,
    verified: bool,
    simulated_device: bool,
}

/// One direction. Wall clock: the whole pipeline, in which the file is read (and on the way down compared).
#[derive(Serialize)]
struct Rates {
    method: Option<&'static str>,
    chunks: u64,
    wall_seconds: f64,
    wall_bytes_per_second: f64,
    /// The sum of the copies' times by the device's clock. Copies that were in flight together count the link's time
    /// twice. Null, as is the next, where the host's own threads copied: no device has a clock for that.
    device_seconds_sum: Option<f64>,
    /// The rate of the fastest copy by the device's clock.
    device_best_bytes_per_second: Option<f64>,
    /// For people: the rate of the fastest copy, where the host timed it.
    #[serde(skip)]
    host_best_bytes_per_second: Option<f64>,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Copy) -> Result<String, Failure> {
    let outcome = copy(invocation, wanted);
    // Also after a failure nothing stays behind; the first error counts.
    let drained = invocation.runtime.drain();
    let copied = outcome?;
    drained?;
    invocation.render("copy", &copied, || copied.human())
}

/// Fails as `copy` does where a file is missing, may not be read, is empty or no regular file.
pub(crate) fn check_readable(path: &Path) -> Result<(), Failure> {
    Source::open(path).map(drop)
}

fn copy(invocation: &Invocation, wanted: &args::Copy) -> Result<Copied, Failure> {
    let runtime = &invocation.runtime;
    let (mut source, stamp) = Source::open(&wanted.file)?;
    let device = invocation.device(wanted.to.device)?;
    let len = room_for(runtime, wanted, source.len())?;
    let mut pipeline = Pipeline::new(runtime, wanted.to, len, wanted.chunk, ring_kind(wanted, &device))?;
    let progress = Progress::new(invocation, source.len());

    progress.phase("up");
    let up = pipeline.send(&mut source, &progress)?;
    source.check(stamp, source.len())?;
    progress.phase("down");
    let down = pipeline.receive(&mut source, &progress).map_err(|failure| blame(failure, &source, stamp))?;
    source.check(stamp, source.len())?;

    let (buffers, buffer_bytes, kind) = pipeline.ring();
    Ok(Copied {
        file: wanted.file.display().to_string(),
        bytes: source.len(),
        to: wanted.to.to_string(),
        device_name: device.name,
        buffers,
        buffer_bytes,
        buffer_kind: kind.map(|kind| kind.to_string()).unwrap_or_default(),
        up: Rates::new(&up, source.len()),
        down: Rates::new(&down, source.len()),
        verified: true,
        simulated_device: device.simulated,
    })
}

/// Bytes that differ are the file's doing where it was written to meanwhile.
fn blame(failure: Failure, source: &Source<File>, stamp: Stamp) -> Failure {
    match source.check(stamp, source.len()) {
        Err(changed) if failure.exit == Exit::Differs => changed.into(),
        _ => failure,
    }
}

/// The kind of the host's buffers: what was asked for, else pinned where the device offers it.
fn ring_kind(wanted: &args::Copy, device: &DeviceInfo) -> MemoryKind {
    let offered = device.kinds.contains(&MemoryKind::Pinned);
    if wanted.pinned || (offered && !wanted.pageable) { MemoryKind::Pinned } else { MemoryKind::Pageable }
}

/// Refuses a file that does not fit before anything is allocated.
fn room_for(runtime: &Runtime, wanted: &args::Copy, len: u64) -> Result<usize, Failure> {
    let place = wanted.to;
    let memory = runtime.manager().backend(place.device)?.memory_info(place.device);
    // Where the free memory is not known, the allocation tells.
    let free = memory.as_ref().map_or(u64::MAX, |memory| memory.free).min(isize::MAX as u64);
    match usize::try_from(len) {
        Ok(bytes) if len <= free => Ok(bytes),
        _ => {
            let total = memory.ok().map(|memory| memory.total);
            let shortage = MemoryShortage { requested: len, free: Some(free), total };
            let name = wanted.file.display();
            let what = format!("{name} has {len} bytes, and at most {free} fit on {} now", place.device);
            Err(Failure::from(Error::out_of_memory(place, shortage)).during(&what))
        }
    }
}

impl Rates {
    fn new(leg: &Leg, bytes: u64) -> Self {
        let wall_seconds = leg.wall.as_secs_f64();
        let by_device = !leg.timed_on_host;
        Self {
            method: leg.method.map(|method| method.name()),
            chunks: leg.chunks,
            wall_seconds,
            wall_bytes_per_second: bytes as f64 / wall_seconds.max(1e-9),
            device_seconds_sum: leg.moving.filter(|_| by_device).map(|time| time.as_secs_f64()),
            device_best_bytes_per_second: leg.best.filter(|_| by_device),
            host_best_bytes_per_second: leg.best.filter(|_| !by_device),
        }
    }

    fn human(&self, meanwhile: &str, simulated: &str) -> String {
        let mut text = format!(
            "{} by wall clock ({:.3} s, {meanwhile} included)",
            text::rate(self.wall_bytes_per_second),
            self.wall_seconds
        );
        if let Some(rate) = self.device_best_bytes_per_second {
            text += &format!("; the fastest copy {} by the device's clock", text::rate(rate));
        }
        if let Some(rate) = self.host_best_bytes_per_second {
            text += &format!("; the fastest copy {}, timed on the host", text::rate(rate));
        }
        if let Some(method) = self.method {
            text += &format!("; {method}, {}", text::count(self.chunks, "chunk"));
        }
        text + simulated
    }
}

impl Copied {
    fn human(&self) -> String {
        let simulated = if self.simulated_device { " (simulated)" } else { "" };
        output::facts(&[
            ("file", format!("{}, {} ({} bytes)", self.file, text::bytes(self.bytes), self.bytes)),
            ("to", format!("{}, {}{simulated}", self.to, self.device_name)),
            (
                "through",
                format!(
                    "{} × {} of {} memory",
                    self.buffers,
                    text::bytes(self.buffer_bytes as u64),
                    self.buffer_kind
                ),
            ),
            ("up", self.up.human("reading the file", simulated)),
            ("down", self.down.human("reading and comparing the file", simulated)),
            ("verified", format!("all {} bytes came back equal", self.bytes)),
        ])
    }
}
