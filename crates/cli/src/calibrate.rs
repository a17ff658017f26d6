//! `transload calibrate`: measures each method on this machine, and keeps the times for later runs.

use std::{io::Write, ops::ControlFlow, time::Duration};

use serde_json::{Value, json};
use transload::calibration::{
    Calibrated, CalibrationOptions, ListCalibration, MeasuredList, MeasuredTime, PathCalibration,
    StagingCalibration, Unfinished, UnfinishedReason,
};

use crate::{
    args,
    exit::{Exit, Failure},
    invocation::Invocation,
    output,
    progress::{Progress, SIZES},
    text,
};

/// # Errors
/// Those of the calibration; [`Exit::Io`] if `named`, the user gave the file's name, and it cannot be written.
pub(crate) fn run(invocation: &Invocation, wanted: &args::Calibrate, named: bool) -> Result<String, Failure> {
    let progress = Progress::new(invocation, SIZES);
    let options = CalibrationOptions::new().largest(wanted.largest).progress(move |at| {
        progress.phase(&at.path.to_string());
        progress.set(at.done as u64, at.total as u64);
        ControlFlow::Continue(())
    });
    let options = match wanted.budget {
        Some(seconds) => options.budget(Duration::from_secs(seconds)),
        None => options,
    };
    let calibrated = invocation.runtime.calibrate(&options).map_err(Failure::from);
    // The bar is the options'.
    drop(options);
    let calibrated = invocation.drain_after(calibrated)?;
    let calibration = &calibrated.calibration;
    if let (true, Some(unfinished)) = (calibration.paths.is_empty(), calibration.unfinished.first()) {
        return Err(nothing_measured(unfinished));
    }
    let text = invocation.render("calibrate", &json(&calibrated), || human(&calibrated))?;
    match calibrated.stored {
        Err(error) if named => {
            // So that nothing is lost; nothing else can be done if that fails.
            let _ = writeln!(std::io::stderr(), "{text}");
            Err(Failure::caused_by(Exit::Io, "the calibration was not kept", error))
        }
        _ => Ok(text),
    }
}

/// Returns the failure of a calibration without any path.
fn nothing_measured(Unfinished { path, reason, .. }: &Unfinished) -> Failure {
    let exit = match reason {
        UnfinishedReason::OutOfMemory(_) => Exit::Memory,
        UnfinishedReason::Failed(_) => Exit::Device,
        _ => Exit::Input,
    };
    Failure::new(exit, format!("no path was measured; {path}: {reason}"))
}

fn json(calibrated: &Calibrated) -> Value {
    let crossings = calibrated
        .calibration
        .paths
        .iter()
        .map(|calibrated| json!({ "path": calibrated.path, "crossings": calibrated.crossings() }));
    json!({
        "calibration": calibrated.calibration,
        "crossings": crossings.collect::<Vec<_>>(),
        "stored": calibrated.stored.as_ref().ok().map(|file| file.display().to_string()),
        "not_stored": calibrated.stored.as_ref().err().map(ToString::to_string),
    })
}

fn human(calibrated: &Calibrated) -> String {
    let calibration = &calibrated.calibration;
    let mut text: String = calibration.paths.iter().map(curves).collect();
    text += &lists(&calibration.lists);
    text += &calibration.staging.iter().map(staging).collect::<String>();
    for unfinished in &calibration.unfinished {
        let what = if unfinished.lists_only { " (lists)" } else { "" };
        text += &format!("not finished: {}{what}: {}\n", unfinished.path, unfinished.reason);
    }
    text += &format!("measured in {:.1} s\n", calibration.elapsed.as_secs_f64());
    text += &match &calibrated.stored {
        Ok(file) => format!("kept in {}\n", file.display()),
        Err(error) => format!("not kept: {error}\n"),
    };
    text
}

/// The times of a path, fastest first, and where the fastest method changes.
fn curves(calibrated: &PathCalibration) -> String {
    let mut sizes: Vec<u64> =
        calibrated.methods.iter().flat_map(|curve| &curve.times).map(|time| time.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let row = |bytes: u64| {
        let at = calibrated.methods.iter().filter_map(|curve| {
            let time = curve.times.iter().find(|time| time.bytes == bytes)?;
            Some((curve.method, time))
        });
        let mut all: Vec<_> = at.collect();
        all.sort_by_key(|(_, time)| time.median);
        let (method, fastest) = all.first()?;
        let others = all.iter().skip(1).map(|(method, time)| format!("{method} {:.1?}", time.median));
        let others = others.collect::<Vec<_>>().join(", ");
        Some([
            method.to_string(),
            others,
            text::bytes(bytes),
            format!("{:.1?}", fastest.median),
            noise(fastest),
        ])
    };
    let rows: Vec<_> = sizes.into_iter().filter_map(row).collect();
    let mut text = format!("{}\n", calibrated.path);
    text += &output::table(["FASTEST", "OTHERS", "SIZE", "TIME", "NOISE"], 2, &rows);
    for crossing in calibrated.crossings() {
        text += &format!("{crossing}\n");
    }
    text + "\n"
}

/// The times of lists.
fn lists(measured: &[ListCalibration]) -> String {
    let rows = measured.iter().flat_map(|ListCalibration { path, way, exclusive, times, .. }| {
        let way = text::way(*way, *exclusive);
        times.iter().map(move |MeasuredList { pieces, time, .. }| {
            let shape = format!("{pieces} × {}", text::bytes(time.bytes));
            [path.to_string(), way.clone(), shape, format!("{:.1?}", time.median), noise(time)]
        })
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    output::table(["LISTS", "WAY", "PIECES", "TIME", "NOISE"], 2, &rows) + "\n"
}

/// What staging is divided by over a device's link, and what that gains.
fn staging(found: &StagingCalibration) -> String {
    let mut text = format!("staging of {}: {}\n", found.device, found.tuning);
    for time in &found.times {
        let (bytes, built_in, tuned) = (text::bytes(time.bytes), time.built_in, time.tuned);
        text += &format!("  {bytes} {}: {tuned:.1?} instead of {built_in:.1?}\n", time.path);
    }
    text
}

fn noise(time: &MeasuredTime) -> String {
    let share = time.noise.as_secs_f64() / time.median.as_secs_f64().max(1e-9);
    format!("± {:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_exits_by_what_was_lacking() {
        let exit = |reason: Value| {
            let path = json!({ "src": "cpu/pageable", "dst": "cpu/pageable" });
            let unfinished = json!({ "path": path, "lists_only": false, "reason": reason });
            nothing_measured(&serde_json::from_value(unfinished).unwrap()).exit
        };
        assert_eq!(exit(json!({ "out_of_memory": "too little" })), Exit::Memory);
        assert_eq!(exit(json!({ "failed": "lost" })), Exit::Device);
        assert_eq!(exit(json!("budget")), Exit::Input);
    }
}
