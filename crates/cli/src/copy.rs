//! `transload copy`: a file's bytes to a device and back, compared byte by byte.

use std::time::Duration;

use serde::Serialize;
use transload::{MemoryKind, load::LoadOptions};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    load::{Method, methods, through, with_progress},
    output, text,
};

#[derive(Serialize)]
struct Copied {
    file: String,
    bytes: u64,
    to: String,
    device_name: String,
    /// 0 where the file was read straight to its place.
    buffers: usize,
    buffer_bytes: usize,
    buffer_kind: Option<String>,
    chunks: u64,
    methods: Vec<Method>,
    up: Rate,
    down: Rate,
    verified: bool,
    simulated_device: bool,
}

/// One direction, by the host's clock: the file is read meanwhile, and on the way down compared.
#[derive(Serialize)]
struct Rate {
    wall_seconds: f64,
    wall_bytes_per_second: f64,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Copy) -> Result<String, Failure> {
    let outcome = copy(invocation, wanted);
    // Also after a failure nothing stays behind; the first error counts.
    let drained = invocation.runtime.drain();
    let copied = outcome?;
    drained?;
    invocation.render("copy", &copied, || copied.human())
}

fn copy(invocation: &Invocation, wanted: &args::Copy) -> Result<Copied, Failure> {
    let device = invocation.device(wanted.to.device)?;
    let options = LoadOptions::new(wanted.to)
        .raw(true)
        .verify(true)
        .chunk(usize::try_from(wanted.chunk).unwrap_or(usize::MAX));
    let options = match (wanted.pinned, wanted.pageable) {
        (true, _) => options.staging(MemoryKind::Pinned),
        (_, true) => options.staging(MemoryKind::Pageable),
        _ => options,
    };
    let model = with_progress(invocation, &wanted.file, options).map_err(|failure| {
        let hint =
            if wanted.pinned && failure.exit == Exit::Input { " (--pageable works everywhere)" } else { "" };
        failure.during(&format!("{} was not copied to {}{hint}", wanted.file.display(), wanted.to))
    })?;
    let report = model.report();
    Ok(Copied {
        file: wanted.file.display().to_string(),
        bytes: report.bytes,
        to: wanted.to.to_string(),
        device_name: device.name,
        buffers: report.buffers,
        buffer_bytes: report.buffer_bytes,
        buffer_kind: report.staging.map(|kind| kind.to_string()),
        chunks: report.chunks,
        methods: methods(report),
        up: Rate::new(report.moving(), report.bytes),
        down: Rate::new(report.verifying.unwrap_or_default(), report.bytes),
        verified: report.verifying.is_some(),
        simulated_device: report.simulated,
    })
}

impl Rate {
    fn new(wall: Duration, bytes: u64) -> Self {
        let wall_seconds = wall.as_secs_f64();
        Self { wall_seconds, wall_bytes_per_second: bytes as f64 / wall_seconds.max(1e-9) }
    }

    fn human(&self, meanwhile: &str, simulated: &str) -> String {
        let rate = text::rate(self.wall_bytes_per_second);
        format!("{rate} by wall clock ({:.3} s, {meanwhile} included){simulated}", self.wall_seconds)
    }
}

impl Copied {
    fn human(&self) -> String {
        let simulated = if self.simulated_device { " (simulated)" } else { "" };
        let mut facts = vec![
            ("file", format!("{}, {} ({} bytes)", self.file, text::bytes(self.bytes), self.bytes)),
            ("to", format!("{}, {}{simulated}", self.to, self.device_name)),
            ("through", through(self.buffer_kind.as_deref(), self.buffers, self.buffer_bytes, self.chunks)),
            ("up", self.up.human("reading the file", simulated)),
            ("down", self.down.human("reading and comparing the file", simulated)),
        ];
        facts.extend(self.methods.iter().map(|method| ("method", method.human(simulated))));
        facts.push(("verified", format!("all {} bytes came back equal", self.bytes)));
        output::facts(&facts)
    }
}
