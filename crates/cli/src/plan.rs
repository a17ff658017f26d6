//! `transload plan`: shows how bytes would be moved, and why.

use serde_json::json;
use transload::{Plan, TransferOptions};

use crate::{args, exit::Failure, invocation::Invocation, output, text};

pub(crate) fn run(invocation: &Invocation, wanted: &args::Plan) -> Result<String, Failure> {
    for place in [wanted.from, wanted.to] {
        invocation.device(place.device)?;
    }
    let plan =
        invocation.runtime.manager().plan(wanted.from, wanted.to, wanted.size, &TransferOptions::new())?;
    let result = json!({ "plan": plan, "predicted_bytes_per_second": rate(&plan) });
    invocation.render("plan", &result, || human(&plan))
}

/// Returns bytes per second; `None` if no time is predicted.
fn rate(plan: &Plan) -> Option<f64> {
    let seconds = plan.predicted.as_secs_f64();
    (seconds > 0.0).then(|| plan.bytes as f64 / seconds)
}

fn human(plan: &Plan) -> String {
    let (from, to, bytes) = (plan.path.src, plan.path.dst, plan.bytes);
    let simulated = if plan.simulated { " (simulated)" } else { "" };
    let lanes = text::count(plan.lanes.into(), "lane");
    let chunks = text::count(plan.chunks.into(), "chunk");
    let rate = rate(plan).map_or("unknown".to_owned(), text::rate);
    let mut facts = vec![
        ("path", format!("{from} → {to}, {} ({bytes} bytes)", text::bytes(bytes))),
        ("method", plan.method.name().to_owned()),
        ("lane", format!("a queue of {}{simulated}; {lanes} in all, {chunks}", plan.lane)),
        ("predicted", format!("{:.1?}, {rate}", plan.predicted)),
        ("basis", plan.basis.to_string()),
    ];
    for other in &plan.alternatives {
        let method = other.method.name();
        facts.push(("slower", format!("{method}: {:.1?} ({})", other.predicted, other.basis)));
    }
    for rejected in &plan.rejected {
        facts.push(("rejected", format!("{}: {}", rejected.method.name(), rejected.reason)));
    }
    output::facts(&facts)
}
