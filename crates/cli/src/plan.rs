//! `transload plan`: how bytes would be moved, and why so.

use std::time::Duration;

use serde::Serialize;
use transload::{Plan, TransferOptions};

use crate::{args, exit::Failure, invocation::Invocation, output, text};

#[derive(Serialize)]
struct Planned {
    from: String,
    to: String,
    bytes: u64,
    method: &'static str,
    lane: String,
    lanes: u32,
    chunks: u32,
    predicted_seconds: f64,
    predicted_bytes_per_second: Option<f64>,
    basis: String,
    alternatives: Vec<Alternative>,
    rejected: Vec<Rejected>,
    /// Whether the lane is a simulated device's.
    simulated_lane: bool,
}

#[derive(Serialize)]
struct Alternative {
    method: &'static str,
    predicted_seconds: f64,
    basis: String,
}

#[derive(Serialize)]
struct Rejected {
    method: &'static str,
    reason: String,
}

pub(crate) fn run(invocation: &Invocation, wanted: &args::Plan) -> Result<String, Failure> {
    for place in [wanted.from, wanted.to] {
        invocation.device(place.device)?;
    }
    let plan =
        invocation.runtime.manager().plan(wanted.from, wanted.to, wanted.size, &TransferOptions::new())?;
    let planned = Planned::new(&plan);
    invocation.render("plan", &planned, || planned.human(plan.predicted))
}

impl Planned {
    fn new(plan: &Plan) -> Self {
        let seconds = plan.predicted.as_secs_f64();
        Self {
            from: plan.path.src.to_string(),
            to: plan.path.dst.to_string(),
            bytes: plan.bytes,
            method: plan.method.name(),
            lane: plan.lane.to_string(),
            lanes: plan.lanes,
            chunks: plan.chunks,
            predicted_seconds: seconds,
            predicted_bytes_per_second: (seconds > 0.0).then(|| plan.bytes as f64 / seconds),
            basis: plan.basis.to_string(),
            alternatives: plan
                .alternatives
                .iter()
                .map(|other| Alternative {
                    method: other.method.name(),
                    predicted_seconds: other.predicted.as_secs_f64(),
                    basis: other.basis.to_string(),
                })
                .collect(),
            rejected: plan
                .rejected
                .iter()
                .map(|rejected| Rejected {
                    method: rejected.method.name(),
                    reason: rejected.reason.to_string(),
                })
                .collect(),
            simulated_lane: plan.simulated,
        }
    }

    fn human(&self, predicted: Duration) -> String {
        let rate = self.predicted_bytes_per_second.map_or("unknown".to_owned(), text::rate);
        let simulated = if self.simulated_lane { " (simulated)" } else { "" };
        let mut facts = vec![
            (
                "path",
                format!("{} → {}, {} ({} bytes)", self.from, self.to, text::bytes(self.bytes), self.bytes),
            ),
            ("method", self.method.to_owned()),
            (
                "lane",
                format!(
                    "a queue of {}{simulated}; {} in all, {}",
                    self.lane,
                    text::count(self.lanes.into(), "lane"),
                    text::count(self.chunks.into(), "chunk")
                ),
            ),
            ("predicted", format!("{predicted:.1?}, {rate}")),
            ("basis", self.basis.clone()),
        ];
        for other in &self.alternatives {
            let slower = Duration::try_from_secs_f64(other.predicted_seconds).unwrap_or(Duration::MAX);
            facts.push(("slower", format!("{}: {slower:.1?} ({})", other.method, other.basis)));
        }
        for rejected in &self.rejected {
            facts.push(("rejected", format!("{}: {}", rejected.method, rejected.reason)));
        }
        output::facts(&facts)
    }
}
