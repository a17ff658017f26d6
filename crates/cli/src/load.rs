//! `transload load`: a model's tensors onto a device, with what was moved how and how fast.

use std::{collections::BTreeMap, fs, io, path::Path, sync::Arc};

use serde::Serialize;
use transload::load::{LoadOptions, LoadPhase, LoadReport, LoadedModel, LoadedTensor, MethodCount};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    output,
    progress::Progress,
    text,
};

#[derive(Serialize)]
struct Loaded {
    #[serde(flatten)]
    moved: Moved,
    file_bytes: u64,
    tensors: usize,
    segments: usize,
    /// By the host's clock: from the call until the last byte was in place, the file's reading included.
    wall_seconds: f64,
    wall_bytes_per_second: f64,
    /// The part of it before the first byte was read: header, allocations, first use of the device.
    preparing_seconds: f64,
    /// Reading back and comparing; not part of the wall clock's time.
    verifying_seconds: Option<f64>,
    checksums: bool,
    verified: bool,
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<Vec<Tensor>>,
}

/// What was moved where, and how.
#[derive(Serialize)]
pub(crate) struct Moved {
    file: String,
    /// Of all tensors.
    pub(crate) bytes: u64,
    to: String,
    device_name: String,
    /// 0 where the file was read straight to its place.
    buffers: usize,
    buffer_bytes: usize,
    buffer_kind: Option<String>,
    chunks: u64,
    methods: Vec<Method>,
    simulated_device: bool,
}

#[derive(Serialize)]
struct Method {
    method: &'static str,
    chunks: u64,
    /// Gaps between tensors included.
    bytes: u64,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: usize,
    /// XXH3, 64 bits, as 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Load) -> Result<String, Failure> {
    let loaded = invocation.drained(load(invocation, wanted))?;
    invocation.render("load", &loaded, || loaded.human())
}

/// The model itself is given back before the result is printed: the command shows that, how and how fast.
fn load(invocation: &Invocation, wanted: &args::Load) -> Result<Loaded, Failure> {
    let place = wanted.kind.map_or(Ok(wanted.to), |kind| text::with_kind(wanted.to, kind));
    let place = place.map_err(|valid| Failure::new(Exit::Input, format!("--kind: {valid}")))?;
    let device = invocation.device(place.device)?;
    let options = LoadOptions::new(place)
        .chunk(usize::try_from(wanted.chunk).unwrap_or(usize::MAX))
        .checksum(wanted.checksum)
        .verify(wanted.verify);
    let model = with_progress(invocation, &wanted.file, options)
        .map_err(|failure| failure.during(&format!("{} was not loaded to {place}", wanted.file.display())))?;
    Ok(Loaded::new(wanted, &model, device.name))
}

/// Loads a file, with a bar for a person who looks at it.
pub(crate) fn with_progress(
    invocation: &Invocation,
    file: &Path,
    options: LoadOptions,
) -> Result<LoadedModel, Failure> {
    check_readable(file)?;
    let progress = Arc::new(Progress::new(invocation));
    let options = options.progress(move |so_far| {
        progress.phase(if so_far.phase == LoadPhase::ReadingBack { "down" } else { "up" });
        progress.set(so_far.bytes, so_far.total);
    });
    Ok(invocation.runtime.load(file, &options)?)
}

/// A file that is missing or may not be read is wrong input rather than a failure of reading. Looks before it opens: opening
/// a pipe would wait for a writer.
fn check_readable(path: &Path) -> Result<(), Failure> {
    let opened = fs::metadata(path)
        .and_then(|metadata| if metadata.is_file() { fs::File::open(path).map(drop) } else { Ok(()) });
    opened.map_err(|error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Exit::Input,
            _ => Exit::Io,
        };
        let text = format!("cannot open {}: {error}; a readable regular file is valid", path.display());
        Failure::new(exit, text)
    })
}

impl Moved {
    pub(crate) fn new(file: &Path, report: &LoadReport, device_name: String) -> Self {
        let method = |count: &MethodCount| Method {
            method: count.method.name(),
            chunks: count.chunks,
            bytes: count.bytes,
        };
        Self {
            file: file.display().to_string(),
            bytes: report.bytes,
            to: report.place.to_string(),
            device_name,
            buffers: report.buffers,
            buffer_bytes: report.buffer_bytes,
            buffer_kind: report.staging.map(|kind| kind.to_string()),
            chunks: report.chunks,
            methods: report.methods.iter().map(method).collect(),
            simulated_device: report.simulated,
        }
    }

    /// What is put behind a figure of a simulated device.
    pub(crate) fn simulated(&self) -> &'static str {
        if self.simulated_device { " (simulated)" } else { "" }
    }

    pub(crate) fn file(&self, bytes: u64) -> String {
        format!("{}, {} ({bytes} bytes)", self.file, text::bytes(bytes))
    }

    pub(crate) fn to(&self) -> String {
        format!("{}, {}{}", self.to, self.device_name, self.simulated())
    }

    /// Which host memory the bytes went through.
    pub(crate) fn through(&self) -> String {
        match &self.buffer_kind {
            Some(kind) => {
                format!("{} × {} of {kind} memory", self.buffers, text::bytes(self.buffer_bytes as u64))
            }
            None if self.chunks > 0 => {
                format!("nothing: read straight to its place, in {}", text::count(self.chunks, "chunk"))
            }
            None => "nothing: there were no bytes to read".to_owned(),
        }
    }

    pub(crate) fn methods(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.methods.iter().map(|Method { method, chunks, bytes }| {
            let (chunks, bytes) = (text::count(*chunks, "chunk"), text::bytes(*bytes));
            ("method", format!("{method}: {chunks}, {bytes}{}", self.simulated()))
        })
    }
}

impl Loaded {
    fn new(wanted: &args::Load, model: &LoadedModel, device_name: String) -> Self {
        let report: &LoadReport = model.report();
        Self {
            moved: Moved::new(&wanted.file, report, device_name),
            file_bytes: report.file_bytes,
            tensors: report.tensors,
            segments: report.segments,
            wall_seconds: report.wall.as_secs_f64(),
            wall_bytes_per_second: report.bytes_per_second(),
            preparing_seconds: report.preparing.as_secs_f64(),
            verifying_seconds: report.verifying.map(|time| time.as_secs_f64()),
            checksums: wanted.checksum,
            verified: wanted.verify,
            metadata: model.metadata().clone(),
            list: wanted.list.then(|| model.tensors().iter().map(Tensor::new).collect()),
        }
    }

    fn human(&self) -> String {
        let Self { moved, tensors, segments, .. } = self;
        let simulated = moved.simulated();
        let of_tensors = format!("{} ({} bytes)", text::bytes(moved.bytes), moved.bytes);
        let mut facts = vec![
            ("file", moved.file(self.file_bytes)),
            ("tensors", format!("{}, {of_tensors}", text::count(*tensors as u64, "tensor"))),
            ("to", format!("{}; {}", moved.to(), text::count(*segments as u64, "allocation"))),
            ("through", moved.through()),
            (
                "wall clock",
                format!(
                    "{} ({:.3} s, of which {:.3} s before the first byte; reading the file included){simulated}",
                    text::rate(self.wall_bytes_per_second),
                    self.wall_seconds,
                    self.preparing_seconds
                ),
            ),
        ];
        facts.extend(moved.methods());
        facts.push(("checked", self.checked()));
        let mut text = output::facts(&facts);
        if let Some(list) = &self.list {
            let rows: Vec<_> = list.iter().map(Tensor::row).collect();
            text += "\n";
            text += &output::table(["TENSOR", "TYPE", "SHAPE", "CHECKSUM", "BYTES"], 4, &rows);
        }
        text
    }

    fn checked(&self) -> String {
        let how = match (self.checksums, self.verified) {
            (true, true) => "checksums and bytes came back equal",
            (true, false) => "checksums came back equal",
            (false, true) => "bytes came back equal",
            (false, false) => return "not asked for; --checksum or --verify read everything back".to_owned(),
        };
        let seconds = self.verifying_seconds.unwrap_or(0.0);
        format!("of all {} tensors {how} ({seconds:.3} s more)", self.tensors)
    }
}

impl Tensor {
    fn new(tensor: &LoadedTensor) -> Self {
        Self {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype().to_string(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.buffer().len(),
            checksum: tensor.checksum().map(|checksum| format!("{checksum:016x}")),
        }
    }

    fn row(&self) -> [String; 5] {
        [
            // A terminal must not be driven by a file.
            self.name.escape_debug().to_string(),
            self.dtype.clone(),
            format!("{:?}", self.shape),
            self.checksum.clone().unwrap_or_else(|| "-".to_owned()),
            self.bytes.to_string(),
        ]
    }
}
