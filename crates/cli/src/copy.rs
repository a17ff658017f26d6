//! `transload copy`: a file's bytes to a device and back, compared byte by byte.

use std::time::Duration;

use serde::Serialize;
use transload::{MemoryKind, load::LoadOptions};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    load::{Moved, with_progress},
    output, text,
};

#[derive(Serialize)]
struct Copied {
    #[serde(flatten)]
    moved: Moved,
    up: Rate,
    down: Rate,
    verified: bool,
}

/// One direction, by the host's clock: the file is read meanwhile, and on the way down compared.
#[derive(Serialize)]
struct Rate {
    wall_seconds: f64,
    wall_bytes_per_second: f64,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Copy) -> Result<String, Failure> {
    let copied = invocation.drained(copy(invocation, wanted))?;
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
        moved: Moved::new(&wanted.file, report, device.name),
        up: Rate::new(report.moving(), report.bytes),
        down: Rate::new(report.verifying.unwrap_or_default(), report.bytes),
        verified: report.verifying.is_some(),
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
        let (moved, simulated) = (&self.moved, self.moved.simulated());
        let mut facts = vec![
            ("file", moved.file(moved.bytes)),
            ("to", moved.to()),
            ("through", moved.through()),
            ("up", self.up.human("reading the file", simulated)),
            ("down", self.down.human("reading and comparing the file", simulated)),
        ];
        facts.extend(moved.methods());
        facts.push(("verified", format!("all {} bytes came back equal", moved.bytes)));
        output::facts(&facts)
    }
}
