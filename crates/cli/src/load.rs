//! `transload load`: loads a model onto a device and reports methods and rates.

use std::{collections::BTreeMap, fs, io, path::Path, sync::Arc};

use serde_json::{Value, json};
use transload::load::{LoadOptions, LoadPhase, LoadReport, LoadedModel, LoadedTensor};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    output,
    progress::{BYTES, Progress},
    text,
};

struct Loaded<'a> {
    wanted: &'a args::Load,
    summary: TransferSummary<'a>,
    metadata: BTreeMap<String, String>,
    /// Each tensor, if wanted.
    list: Value,
    rows: Vec<[String; 5]>,
}

/// The transferred bytes, their destination and methods.
pub(crate) struct TransferSummary<'a> {
    pub(crate) file: &'a Path,
    pub(crate) report: LoadReport,
    pub(crate) device_name: String,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Load) -> Result<String, Failure> {
    let loaded = invocation.drain_after(load(invocation, wanted))?;
    invocation.render("load", &loaded.json(), || loaded.human())
}

/// Frees the model before the result is printed: the command only reports.
fn load<'a>(invocation: &Invocation, wanted: &'a args::Load) -> Result<Loaded<'a>, Failure> {
    let place = wanted.kind.map_or(Ok(wanted.to), |kind| text::with_kind(wanted.to, kind));
    let place = place.map_err(|valid| Failure::new(Exit::Input, format!("--kind: {valid}")))?;
    let device = invocation.device(place.device)?;
    let options = LoadOptions::new(place).checksum(wanted.checksum).verify(wanted.verify);
    let options = with_chunk(options, wanted.chunk);
    let model = with_progress(invocation, &wanted.file, options)
        .map_err(|failure| failure.during(format!("{} was not loaded to {place}", wanted.file.display())))?;
    let summary =
        TransferSummary { file: &wanted.file, report: model.report().clone(), device_name: device.name };
    let tensors: &[LoadedTensor] = if wanted.list { model.tensors() } else { &[] };
    let (list, rows) = (json!(tensors), tensors.iter().map(row).collect());
    Ok(Loaded { wanted, summary, metadata: model.metadata().clone(), list, rows })
}

/// Sets the size of a chunk, if given.
pub(crate) fn with_chunk(options: LoadOptions, chunk: Option<u64>) -> LoadOptions {
    match chunk {
        Some(bytes) => options.chunk(usize::try_from(bytes).unwrap_or(usize::MAX)),
        None => options,
    }
}

/// Loads a file with a progress bar.
pub(crate) fn with_progress(
    invocation: &Invocation,
    file: &Path,
    options: LoadOptions,
) -> Result<LoadedModel, Failure> {
    check_readable(file)?;
    let progress = Arc::new(Progress::new(invocation, BYTES));
    let options = options.progress(move |so_far| {
        progress.phase(if so_far.phase == LoadPhase::ReadingBack { "down" } else { "up" });
        progress.set(so_far.bytes, so_far.total);
    });
    Ok(invocation.runtime.load(file, &options)?)
}

/// Checks the file: a missing or unreadable one is invalid input rather than a read error. Does not open a pipe, which
/// would wait for a writer.
pub(crate) fn check_readable(path: &Path) -> Result<(), Failure> {
    let opened = fs::metadata(path)
        .and_then(|metadata| if metadata.is_file() { fs::File::open(path).map(drop) } else { Ok(()) });
    opened.map_err(|error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::PermissionDenied => Exit::Input,
            _ => Exit::Io,
        };
        let what = format!("cannot open {}; a readable regular file is needed", path.display());
        Failure::caused_by(exit, what, error)
    })
}

impl TransferSummary<'_> {
    /// Returns the summary merged with `more`.
    pub(crate) fn json(&self, more: Value) -> Value {
        let Self { file, report, device_name } = self;
        let file = file.display().to_string();
        output::merged([json!({ "file": file, "device_name": device_name, "report": report }), more])
    }

    /// Returns the suffix for figures of a simulated device.
    pub(crate) fn simulated(&self) -> &'static str {
        if self.report.simulated { " (simulated)" } else { "" }
    }

    pub(crate) fn file(&self, bytes: u64) -> String {
        format!("{}, {} ({bytes} bytes)", self.file.display(), text::bytes(bytes))
    }

    pub(crate) fn to(&self) -> String {
        format!("{}, {}{}", self.report.place, self.device_name, self.simulated())
    }

    /// Describes the host memory that the bytes were staged in.
    pub(crate) fn through(&self) -> String {
        let LoadReport { staging, buffers, buffer_bytes, chunks, .. } = self.report;
        match staging {
            Some(kind) => format!("{buffers} × {} of {kind} memory", text::bytes(buffer_bytes as u64)),
            None if chunks > 0 => {
                format!("nothing: read straight to its place, in {}", text::count(chunks, "chunk"))
            }
            None => "nothing: there were no bytes to read".to_owned(),
        }
    }

    pub(crate) fn methods(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.report.methods.iter().map(|count| {
            let (chunks, bytes) = (text::count(count.chunks, "chunk"), text::bytes(count.bytes));
            ("method", format!("{}: {chunks}, {bytes}{}", count.method.name(), self.simulated()))
        })
    }
}

impl Loaded<'_> {
    fn json(&self) -> Value {
        let Self { wanted, summary, metadata, list, .. } = self;
        let mut loaded = summary.json(json!({
            "wall_bytes_per_second": summary.report.bytes_per_second(),
            "checksums": wanted.checksum,
            "verified": wanted.verify,
            "metadata": metadata,
        }));
        if wanted.list {
            loaded["list"] = list.clone();
        }
        loaded
    }

    fn human(&self) -> String {
        let Self { summary, wanted, rows, .. } = self;
        let (report, simulated) = (&summary.report, summary.simulated());
        let LoadReport { bytes, file_bytes, tensors, segments, wall, preparing, .. } = report;
        let mut facts = vec![
            ("file", summary.file(*file_bytes)),
            (
                "tensors",
                format!(
                    "{}, {} ({bytes} bytes)",
                    text::count(*tensors as u64, "tensor"),
                    text::bytes(*bytes)
                ),
            ),
            ("to", format!("{}; {}", summary.to(), text::count(*segments as u64, "allocation"))),
            ("through", summary.through()),
            (
                "wall clock",
                format!(
                    "{} ({:.3} s, of which {:.3} s before the first byte; reading the file included){simulated}",
                    text::rate(report.bytes_per_second()),
                    wall.as_secs_f64(),
                    preparing.as_secs_f64()
                ),
            ),
        ];
        facts.extend(summary.methods());
        facts.push(("checked", self.checked()));
        let mut text = output::facts(&facts);
        if wanted.list {
            text += "\n";
            text += &output::table(["TENSOR", "TYPE", "SHAPE", "CHECKSUM", "BYTES"], 4, rows);
        }
        text
    }

    fn checked(&self) -> String {
        let how = match (self.wanted.checksum, self.wanted.verify) {
            (true, true) => "checksums and bytes came back equal",
            (true, false) => "checksums came back equal",
            (false, true) => "bytes came back equal",
            (false, false) => return "not asked for; --checksum or --verify read everything back".to_owned(),
        };
        let LoadReport { tensors, verifying, .. } = &self.summary.report;
        format!("of all {tensors} tensors {how} ({:.3} s more)", verifying.unwrap_or_default().as_secs_f64())
    }
}

fn row(tensor: &LoadedTensor) -> [String; 5] {
    [
        // Names in a file must not control the terminal.
        tensor.name().escape_debug().to_string(),
        tensor.dtype().to_string(),
        format!("{:?}", tensor.shape()),
        tensor.checksum().map_or_else(|| "-".to_owned(), |checksum| format!("{checksum:016x}")),
        tensor.buffer().len().to_string(),
    ]
}
