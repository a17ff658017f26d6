//! Every method on every path, at sizes of one grid: its speed or the reason of its rejection, and the automatic choice.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use transload_core::{Error, ErrorKind, MemoryKind, RawBuffer, TransferMethod, TransferPath, TransferReport};
use transload_transfer::{Crossing, TransferOptions};

use crate::{
    case::{self, GUARD, Location},
    grid::{self, Point},
    memory::Memory,
    row::{Row, Summary},
    rows::{Bench, is_verified},
};

/// Prefix of the rows' ids.
pub const GROUP: &str = "methods/";
/// Uncounted repetitions after the one that shows whether the method is supported.
const WARM_UP: usize = 1;

/// Choices, rejections and failures of methods.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Methods {
    /// Rejected methods.
    pub rejections: Vec<Rejection>,
    /// Methods chosen automatically.
    pub choices: Vec<Choice>,
    /// Sizes at which the chosen method changes.
    pub break_points: Vec<BreakPoint>,
    /// Parts and transfers that failed, as text.
    pub failures: Vec<String>,
}

/// A method rejected on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejection {
    /// The path as in a row's id.
    pub path: String,
    /// The method's name.
    pub method: String,
    /// Bytes of the transfer.
    pub bytes: u64,
    /// The reason.
    pub reason: String,
}

/// The method chosen if all are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The path as in a row's id.
    pub path: String,
    /// Bytes of the transfer.
    pub bytes: u64,
    /// The method's name.
    pub method: String,
}

/// The smallest size from which another method is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakPoint {
    /// The path as in a row's id.
    pub path: String,
    /// Bytes of the transfer.
    pub bytes: u64,
    /// Name of the method below that size.
    pub from: String,
    /// Name of the method from that size on.
    pub to: String,
}

/// Returns the id of a method's row.
#[must_use]
pub fn id(path: &str, method: &str, bytes: u64) -> String {
    format!("{GROUP}{path}/{method}/{bytes}")
}

/// One size on one path, with its buffers.
struct MethodCase {
    path: TransferPath,
    name: String,
    bytes: usize,
    src: RawBuffer,
    dst: RawBuffer,
    /// `dst` and the guard bytes behind it.
    guarded: RawBuffer,
}

impl Bench<'_> {
    /// Measures all methods on one path.
    ///
    /// # Errors
    /// If the library or the driver fails, except by rejecting a method.
    pub fn methods(&mut self, path: TransferPath, methods: &mut Methods) -> Result<Vec<Row>> {
        let sizes = grid::method_sizes(self.options);
        let largest = sizes.iter().copied().max().unwrap_or_default();
        let allocate = |place, bytes| case::allocate(self.manager, self.testbed, place, bytes);
        let both =
            allocate(path.src, largest).and_then(|src| Ok((src, allocate(path.dst, largest + GUARD)?)));
        let (src, dst) = match both {
            Ok(both) => both,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let all = sizes.iter().flat_map(|bytes| TransferMethod::ALL.map(|method| (*bytes, method)));
                let name = grid::name(path);
                let rejection = |(bytes, method)| reject(&name, method, bytes, error.to_string());
                methods.rejections.extend(all.map(rejection));
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        let mut rows = Vec::new();
        for bytes in sizes {
            let case = MethodCase {
                path,
                name: grid::name(path),
                bytes,
                src: src.slice(..bytes)?,
                dst: dst.slice(..bytes)?,
                guarded: dst.slice(..bytes + GUARD)?,
            };
            let mut is_rejected_by_all = true;
            for method in TransferMethod::ALL {
                let attempt = self.try_method(&case, method)?;
                is_rejected_by_all &= matches!(attempt, Attempt::Rejected(_));
                match attempt {
                    Attempt::Measured(row) => rows.push(*row),
                    Attempt::Rejected(reason) => {
                        methods.rejections.push(reject(&case.name, method, bytes, reason));
                    }
                    Attempt::Failed(error) => {
                        let text = format!("{}: {error}", id(&case.name, method.name(), bytes as u64));
                        methods.failures.push(text);
                        let reason = format!("FAILED: {error}");
                        methods.rejections.push(reject(&case.name, method, bytes, reason));
                    }
                }
            }
            let (path, bytes) = (case.name.clone(), bytes as u64);
            match self.send(&case, &TransferOptions::new())?.1 {
                Ok(report) => {
                    methods.choices.push(Choice { path, bytes, method: report.method.name().to_owned() });
                }
                // Each has a rejection.
                Err(error) if error.kind() == ErrorKind::Unsupported && is_rejected_by_all => {}
                Err(error) => {
                    methods.failures.push(format!("{}: {error}", id(&path, "automatic choice", bytes)));
                }
            }
        }
        let break_point = |crossing: Crossing| BreakPoint {
            path: grid::name(path),
            bytes: crossing.bytes,
            from: crossing.from.name().to_owned(),
            to: crossing.to.name().to_owned(),
        };
        match self.manager.crossings(path.src, path.dst, &TransferOptions::new()) {
            Ok(crossings) => methods.break_points.extend(crossings.into_iter().map(break_point)),
            // No method at all: each has a rejection.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error.into()),
        }
        Ok(rows)
    }

    /// One method at one point.
    fn try_method(&mut self, case: &MethodCase, method: TransferMethod) -> Result<Attempt> {
        if let Some(reason) = self.reason(case, method) {
            return Ok(Attempt::Rejected(reason));
        }
        let options = TransferOptions::new().only(method);
        match self.send(case, &options)?.1 {
            Ok(report) => ensure!(report.method == method, "{method} was asked for, {} taken", report.method),
            // What a method finds out only when it is to be taken is known from then on.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Attempt::Rejected(self.reason(case, method).unwrap_or_else(|| error.to_string())));
            }
            Err(error) => return Ok(Attempt::Failed(error)),
        }
        match self.measured(case, method) {
            Ok(row) => Ok(Attempt::Measured(Box::new(row))),
            Err(error) => match error.downcast::<Error>() {
                Ok(error) => Ok(Attempt::Failed(error)),
                Err(error) => Err(error),
            },
        }
    }

    fn measured(&mut self, case: &MethodCase, method: TransferMethod) -> Result<Row> {
        let MethodCase { path, bytes, .. } = *case;
        let options = TransferOptions::new().only(method);
        let (point, repetitions) = (Point::aligned(bytes), grid::method_repetitions(self.options, bytes));
        let batch = if has_unified(path) { 1 } else { self.batch(point) };
        let start = self.content.draw();
        let expected = self.content.part(start, bytes);
        let (src, dst) = (Memory::Ours(case.src.clone()), Memory::Ours(case.guarded.clone()));
        let mut times = Vec::with_capacity(repetitions);
        for repetition in 0..WARM_UP + repetitions {
            // The last repetition is verified.
            if repetition + 1 == WARM_UP + repetitions {
                self.migrate(case, Location::Host)?;
                src.write(0, expected)?;
                dst.poison()?;
            }
            let mut seconds = 0.0;
            for _ in 0..batch {
                let (took, answer) = self.send(case, &options)?;
                answer?;
                seconds += took;
            }
            if repetition >= WARM_UP {
                times.push(seconds / f64::from(batch));
            }
        }
        self.migrate(case, Location::Host)?;
        let verified = is_verified(
            dst.compare(0, expected).with_context(|| format!("{path} by {method}, {bytes} bytes")),
        );
        let (unit, values) = if point.is_small() {
            ("us", times.iter().map(|time| time * 1e6).collect())
        } else {
            ("GB/s", times.iter().map(|time| bytes as f64 / time / 1e9).collect::<Vec<_>>())
        };
        let id = id(&case.name, method.name(), bytes as u64);
        let row = Row::new(
            id,
            format!("{path}, every method"),
            method.name(),
            bytes as u64,
            unit,
            Summary::of(&values),
        );
        Ok(row.obtained(self.testbed.is_simulated(), verified))
    }

    /// Runs one transfer and returns the seconds from its submission to its observed completion. First migrates managed
    /// memory to its initial location.
    fn send(
        &self,
        case: &MethodCase,
        options: &TransferOptions,
    ) -> Result<(f64, Result<TransferReport, Error>)> {
        self.migrate(case, initial_location(case.path))?;
        let begun = Instant::now();
        let report = self.manager.copy(&case.src, &case.dst).options(*options).wait();
        Ok((begun.elapsed().as_secs_f64(), report))
    }

    fn migrate(&self, case: &MethodCase, location: Location) -> Result<()> {
        for buffer in [&case.src, &case.guarded] {
            if buffer.place().kind == MemoryKind::Unified {
                self.testbed.migrate(Memory::Ours(buffer.clone()).address()?, buffer.len(), location)?;
            }
        }
        Ok(())
    }

    /// Returns the planner's reason for rejecting a method, if any.
    fn reason(&self, case: &MethodCase, method: TransferMethod) -> Option<String> {
        let TransferPath { src, dst } = case.path;
        match self.manager.plan(src, dst, case.bytes as u64, &TransferOptions::new()) {
            Ok(plan) => {
                let rejected = plan.rejected.iter().find(|rejected| rejected.method == method);
                rejected.map(|rejected| rejected.reason.to_string())
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => Some(error.to_string()),
            Err(_) => None,
        }
    }
}

enum Attempt {
    Measured(Box<Row>),
    Rejected(String),
    Failed(Error),
}

fn reject(path: &str, method: TransferMethod, bytes: usize, reason: String) -> Rejection {
    Rejection { path: path.to_owned(), method: method.name().to_owned(), bytes: bytes as u64, reason }
}

fn has_unified(path: TransferPath) -> bool {
    [path.src, path.dst].iter().any(|place| place.kind == MemoryKind::Unified)
}

/// Returns where managed memory resides before a transfer: on the device only if the destination is the host.
fn initial_location(path: TransferPath) -> Location {
    if path.dst.device.is_cpu() { Location::Device } else { Location::Host }
}
