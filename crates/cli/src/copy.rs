//! `transload copy`: copies a file to a device and back, and compares the bytes.

use std::time::Duration;

use serde_json::{Value, json};
use transload::{MemoryKind, load::LoadOptions};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    load::{TransferSummary, with_chunk, with_progress},
    output, text,
};

pub(crate) fn run(invocation: &Invocation, wanted: &args::Copy) -> Result<String, Failure> {
    let copied = invocation.drain_after(copy(invocation, wanted))?;
    invocation.render("copy", &json(&copied), || human(&copied))
}

fn copy<'a>(invocation: &Invocation, wanted: &'a args::Copy) -> Result<TransferSummary<'a>, Failure> {
    let device = invocation.device(wanted.to.device)?;
    let options = with_chunk(LoadOptions::new(wanted.to).raw(true).verify(true), wanted.chunk);
    let options = match (wanted.pinned, wanted.pageable) {
        (true, _) => options.staging(MemoryKind::Pinned),
        (_, true) => options.staging(MemoryKind::Pageable),
        _ => options,
    };
    let model = with_progress(invocation, &wanted.file, options).map_err(|failure| {
        let hint =
            if wanted.pinned && failure.exit == Exit::Input { " (--pageable works everywhere)" } else { "" };
        failure.during(format!("{} was not copied to {}{hint}", wanted.file.display(), wanted.to))
    })?;
    Ok(TransferSummary { file: &wanted.file, report: model.report().clone(), device_name: device.name })
}

/// Returns the wall times of both directions. They include reading the file, and comparing on the way down.
fn wall_times(copied: &TransferSummary<'_>) -> [Duration; 2] {
    [copied.report.moving(), copied.report.verifying.unwrap_or_default()]
}

fn rate(copied: &TransferSummary<'_>, wall: Duration) -> f64 {
    copied.report.bytes as f64 / wall.as_secs_f64().max(1e-9)
}

fn json(copied: &TransferSummary<'_>) -> Value {
    let [up, down] = wall_times(copied).map(
        |wall| json!({ "wall_seconds": wall.as_secs_f64(), "wall_bytes_per_second": rate(copied, wall) }),
    );
    copied.json(json!({ "up": up, "down": down, "verified": copied.report.verifying.is_some() }))
}

fn human(copied: &TransferSummary<'_>) -> String {
    let (bytes, simulated) = (copied.report.bytes, copied.simulated());
    let describe = |wall: Duration, meanwhile: &str| {
        let (rate, seconds) = (text::rate(rate(copied, wall)), wall.as_secs_f64());
        format!("{rate} by wall clock ({seconds:.3} s, {meanwhile} included){simulated}")
    };
    let [up, down] = wall_times(copied);
    let mut facts = vec![
        ("file", copied.file(bytes)),
        ("to", copied.to()),
        ("through", copied.through()),
        ("up", describe(up, "reading the file")),
        ("down", describe(down, "reading and comparing the file")),
    ];
    facts.extend(copied.methods());
    facts.push(("verified", format!("all {bytes} bytes came back equal")));
    output::facts(&facts)
}
