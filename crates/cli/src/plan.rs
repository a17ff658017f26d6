//! `transload plan`: shows how bytes would be moved, and why.

use serde_json::json;
use transload::{
    ErrorKind, Plan, Result, TransferMethod, TransferOptions,
    backend::{Alternative, CostBasis},
    calibration::{Crossing, StagingTuning},
};

use crate::{args, exit::Failure, invocation::Invocation, output, text};

pub(crate) fn run(invocation: &Invocation, wanted: &args::Plan) -> Result<String, Failure> {
    for place in [wanted.from, wanted.to] {
        invocation.device(place.device)?;
    }
    let (manager, options) = (invocation.runtime.manager(), TransferOptions::new());
    if let Some(pieces) = wanted.pieces {
        let list = (pieces, wanted.size);
        let plan = manager.plan_many(wanted.from, wanted.to, list, wanted.exclusive)?;
        return invocation.render("plan", &json!({ "list": plan }), || format!("{plan}\n"));
    }
    let plan = manager.plan(wanted.from, wanted.to, wanted.size, &options)?;
    // That of two devices has built-in values.
    let is_tuned = plan.method == TransferMethod::HostStaged
        && (plan.path.src.device.is_cpu() || plan.path.dst.device.is_cpu());
    let staging = if is_tuned { Some(manager.staging_tuning(plan.lane)?) } else { None };
    let mut result = json!({
        "plan": plan,
        "predicted_bytes_per_second": rate(&plan),
        "staging": staging.map(|(tuning, basis)| json!({ "tuning": tuning, "basis": basis })),
    });
    if !wanted.curve {
        return invocation.render("plan", &result, || human(&plan, staging));
    }
    let plans = (4..16).map(|step| manager.plan(wanted.from, wanted.to, 1 << (2 * step), &options));
    // Of sizes that both devices allocate.
    let is_offered =
        |plan: &Result<Plan>| !matches!(plan, Err(error) if error.kind() == ErrorKind::OutOfRange);
    let plans = plans.take_while(is_offered).collect::<Result<Vec<_>>>()?;
    let crossings = manager.crossings(wanted.from, wanted.to, &options)?;
    result = output::merged([result, json!({ "curve": plans, "crossings": crossings })]);
    invocation.render("plan", &result, || human(&plan, staging) + "\n" + &curve(&plans, &crossings))
}

/// The method of each size, and where it changes.
fn curve(plans: &[Plan], crossings: &[Crossing]) -> String {
    let row = |plan: &Plan| {
        let others =
            plan.alternatives.iter().map(|other| format!("{} {:.1?}", other.method, other.predicted));
        let others = others.collect::<Vec<_>>().join(", ");
        let rate = rate(plan).map_or("unknown".to_owned(), text::rate);
        [plan.method.to_string(), others, text::bytes(plan.bytes), format!("{:.1?}", plan.predicted), rate]
    };
    let rows: Vec<_> = plans.iter().map(row).collect();
    let mut text = output::table(["METHOD", "OTHERS", "SIZE", "PREDICTED", "RATE"], 2, &rows);
    for crossing in crossings {
        text += &format!("{crossing}\n");
    }
    text
}

/// Returns bytes per second; `None` if no time is predicted.
fn rate(plan: &Plan) -> Option<f64> {
    let seconds = plan.predicted.as_secs_f64();
    (seconds > 0.0).then(|| plan.bytes as f64 / seconds)
}

fn human(plan: &Plan, staging: Option<(StagingTuning, CostBasis)>) -> String {
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
    if let Some((tuning, basis)) = staging {
        facts.push(("staging", format!("{tuning} ({basis})")));
    }
    for other in &plan.alternatives {
        let method = other.method.name();
        let Alternative { predicted, basis, reason, .. } = other;
        facts.push(("other", format!("{method}: {predicted:.1?} ({basis}), {reason}")));
    }
    for rejected in &plan.rejected {
        facts.push(("rejected", format!("{}: {}", rejected.method.name(), rejected.reason)));
    }
    output::facts(&facts)
}
