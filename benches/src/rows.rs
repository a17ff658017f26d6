//! The rows of one path: sizes, and the costs of submission, completion and allocation.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use transload_core::{Timing, TransferPath};
use transload_transfer::{CrossBackendTransferManager, TransferOptions};

use crate::{
    allocations,
    case::{Case, Ends, Side, Testbed},
    content::Content,
    grid::{self, Point},
    measure::{Both, in_turns},
    options::Options,
    reference::Reference,
    row::{Goal, Row, Summary},
};

/// Transfers during which allocations are counted, after as many uncounted ones.
const COUNTED: u32 = 1000;

/// What one pinned copy of 4 KiB may take.
const SMALL: Goal = Goal::RatioAtMost(1.08);

/// Shared inputs of all measurements of a run.
pub struct Bench<'a> {
    /// Command-line options.
    pub options: &'a Options,
    /// The transfer manager.
    pub manager: &'a CrossBackendTransferManager,
    /// Environment of the paths.
    pub testbed: &'a dyn Testbed,
    /// Random contents.
    pub content: &'a mut Content,
}

/// Runs one transfer to its end and returns the seconds.
type Run = fn(&Ends<'_>) -> Result<f64>;

/// The common properties of a point's rows.
struct Label {
    path: TransferPath,
    point: Point,
    method: &'static str,
}

impl Bench<'_> {
    /// Measures one point.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn grid(&mut self, path: TransferPath, point: Point) -> Result<Vec<Row>> {
        let repetitions = grid::repetitions(self.options, point.bytes);
        let mut case = Case::new(self.manager, self.testbed, path, point)?;
        let label = self.label(&case, path, point)?;
        let batch = self.batch(point);
        let times = in_turns(&mut case, self.content, repetitions, our_time(batch), their_time(batch))?;
        let bytes = point.bytes as f64;
        if point.is_small() {
            let goal = is_pinned(path).then_some(SMALL).filter(|_| point.bytes == 4096);
            return Ok(vec![self.row(&label, "", "", "us", times.map(|time| time * 1e6), goal)]);
        }
        let goal = is_pinned(path).then_some(Goal::RatioAtLeast(0.99)).filter(|_| point.bytes == 256 << 20);
        let mut rows = vec![self.row(&label, "", "", "GB/s", times.map(|time| bytes / time / 1e9), goal)];
        if self.testbed.has_clock() {
            let rates = in_turns(&mut case, self.content, repetitions, our_clock, their_clock)?
                .map(|time| bytes / time / 1e9);
            let ceiling = goal.map(|_| Goal::AtLeast(55.0));
            rows.push(self.row(
                &label,
                "device-clock/",
                ", by the device's clock",
                "GB/s",
                rates.clone(),
                goal,
            ));
            if goal.is_some() {
                rows.push(self.reference(&label, rates, ceiling));
            }
        }
        Ok(rows)
    }

    /// Measures submission without the wait.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn submitting(&mut self, path: TransferPath, point: Point) -> Result<Vec<Row>> {
        let repetitions = grid::repetitions(self.options, point.bytes);
        let mut case = Case::new(self.manager, self.testbed, path, point)?;
        let label = self.label(&case, path, point)?;
        let times = in_turns(&mut case, self.content, repetitions, our_submission, their_submission)?;
        Ok(vec![self.row(&label, "submit/", ", submission alone", "us", times.map(|time| time * 1e6), None)])
    }

    /// Measures completion by `.await`, by `wait()`, and on a thread without a context.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn completing(&mut self, path: TransferPath, point: Point) -> Result<Vec<Row>> {
        let repetitions = grid::repetitions(self.options, point.bytes);
        let mut case = Case::new(self.manager, self.testbed, path, point)?;
        let label = self.label(&case, path, point)?;
        let (testbed, us) = (self.testbed, |time: f64| time * 1e6);
        let waited = in_turns(&mut case, self.content, repetitions, our_time(1), their_time(1))?.map(us);
        let awaited = in_turns(&mut case, self.content, repetitions, our_await, their_time(1))?.map(us);
        let goal = is_pinned(path).then_some(SMALL);
        let mut rows = vec![
            self.row(&label, "wait/", ", wait()", "us", waited, goal),
            self.row(&label, "await/", ", .await", "us", awaited, goal),
        ];
        if self.testbed.has_clock() {
            let unbound = |ends: &Ends<'_>| {
                testbed.unbind()?;
                let time = our_time(1)(ends);
                testbed.bind()?;
                time
            };
            let unbound = in_turns(&mut case, self.content, repetitions, unbound, their_time(1))?.map(us);
            rows.push(self.row(&label, "unbound/", ", thread without a context", "us", unbound, None));
        }
        Ok(rows)
    }

    /// Counts heap allocations of a warm transfer on all threads.
    ///
    /// # Errors
    /// If the library or the driver fails.
    pub fn allocating(&mut self, path: TransferPath, point: Point) -> Result<Vec<Row>> {
        ensure!(allocations::is_counting(), "this program's allocator does not count");
        let mut case = Case::new(self.manager, self.testbed, path, point)?;
        let label = self.label(&case, path, point)?;
        let mut rows = Vec::new();
        let runs: [(&str, &str, Run); 2] =
            [("", ", wait()", |ends| our_time(1)(ends)), ("await/", ", .await", our_await)];
        for (id, text, transfer) in runs {
            for _ in 0..COUNTED {
                transfer(&case.ends)?;
            }
            let start = self.content.draw();
            case.prepare(Side::Ours, self.content, start)?;
            allocations::explain(self.options.explain_allocations);
            let count = allocations::count(|| {
                (0..COUNTED).try_for_each(|_| transfer(&case.ends).map(|_seconds| ()))
            })?;
            allocations::explain(0);
            let verified = is_verified(case.check(Side::Ours, self.content));
            let each = Summary::single(count as f64 / f64::from(COUNTED));
            let row = Row::new(
                format!("allocations/{id}{}", label.id()),
                format!("{path}, allocations{text}"),
                label.method,
                point.bytes as u64,
                "allocations/transfer",
                each,
            );
            rows.push(row.obtained(self.testbed.is_simulated(), verified).with_goal(Some(Goal::AtMost(0.0))));
        }
        Ok(rows)
    }

    /// Runs one transfer to find the chosen method, and checks its report.
    fn label(&self, case: &Case<'_>, path: TransferPath, point: Point) -> Result<Label> {
        let report = case.ends.submit().wait().context("the first transfer")?;
        ensure!(report.path == path, "a transfer on {path} reports {}", report.path);
        ensure!(report.bytes == point.bytes as u64, "{} bytes were reported", report.bytes);
        let simulated = self.testbed.is_simulated();
        ensure!(
            report.simulated == simulated,
            "a report says simulated: {}, the driver {simulated}",
            report.simulated
        );
        Ok(Label { path, point, method: report.method.name() })
    }

    /// Returns the transfers of one measurement, enough to make reading the clock negligible.
    pub(crate) fn batch(&self, point: Point) -> u32 {
        if self.testbed.device().is_cpu() && point.is_small() { 64 } else { 1 }
    }

    fn row(
        &self,
        label: &Label,
        group: &str,
        text: &str,
        unit: &'static str,
        both: Both,
        goal: Option<Goal>,
    ) -> Row {
        let id = format!("{group}{}", label.id());
        Row::new(id, format!("{}{text}", label.path), label.method, label.point.bytes as u64, unit, both.ours)
            .against(self.testbed.reference_name(), both.reference)
            .obtained(self.testbed.is_simulated(), both.verified)
            .with_goal(goal)
    }

    /// Creates the reference's own row, to show that the reference is not weak.
    fn reference(&self, label: &Label, both: Both, goal: Option<Goal>) -> Row {
        let Label { path, point, .. } = *label;
        let id = format!("reference/{}/raw/{}", grid::name(path), grid::size(point));
        let text = format!("{path}, the reference itself, by the device's clock");
        Row::new(id, text, self.testbed.reference_name(), point.bytes as u64, "GB/s", both.reference)
            .obtained(self.testbed.is_simulated(), both.verified)
            .with_goal(goal)
    }
}

impl Label {
    fn id(&self) -> String {
        format!("{}/{}/{}", grid::name(self.path), self.method, grid::size(self.point))
    }
}

/// Returns whether the host's side of a path is pinned.
fn is_pinned(path: TransferPath) -> bool {
    use transload_core::MemoryKind::{Device, Pinned};
    matches!((path.src.kind, path.dst.kind), (Pinned, Device) | (Device, Pinned))
}

/// Returns whether the outcome is `Ok`; prints the error otherwise.
pub(crate) fn is_verified(outcome: Result<()>) -> bool {
    outcome.inspect_err(|error| eprintln!("WRONG BYTES: {error:#}")).is_ok()
}

/// Returns the seconds from submission to observed completion.
fn our_time(batch: u32) -> impl Fn(&Ends<'_>) -> Result<f64> {
    move |ends| {
        let begun = Instant::now();
        for _ in 0..batch {
            ends.copy()?;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(batch))
    }
}

fn their_time(batch: u32) -> impl Fn(&mut dyn Reference) -> Result<f64> {
    move |reference| {
        let begun = Instant::now();
        for _ in 0..batch {
            reference.submit()?;
            reference.finish()?;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(batch))
    }
}

fn our_await(ends: &Ends<'_>) -> Result<f64> {
    let begun = Instant::now();
    pollster::block_on(ends.submit())?;
    Ok(begun.elapsed().as_secs_f64())
}

fn our_submission(ends: &Ends<'_>) -> Result<f64> {
    let begun = Instant::now();
    let transfer = ends.submit();
    let submitted = begun.elapsed();
    transfer.wait()?;
    Ok(submitted.as_secs_f64())
}

fn their_submission(reference: &mut dyn Reference) -> Result<f64> {
    let begun = Instant::now();
    reference.submit()?;
    let submitted = begun.elapsed();
    reference.finish()?;
    Ok(submitted.as_secs_f64())
}

fn our_clock(ends: &Ends<'_>) -> Result<f64> {
    let report = ends.submit_with(&TransferOptions::new().timing(Timing::Measured))?.wait()?;
    Ok(report.moving.context("a measured transfer reports no device time")?.as_secs_f64())
}

fn their_clock(reference: &mut dyn Reference) -> Result<f64> {
    reference.timed()?.context("the reference has no clock")
}
