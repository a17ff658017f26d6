//! `transload costs`: prints the costs that methods are chosen by; `--costs` sets those of a file.

use std::{fs::File, io::Read as _, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::json;
use transload::{
    Runtime, TransferMethod,
    backend::{CostBasis, PathCost},
};

use crate::{
    exit::{Exit, Failure},
    invocation::Invocation,
    output, text,
};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 8 << 20;

/// A cost as it is printed.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    cost: &'a PathCost,
    basis: CostBasis,
}

/// What is read of the output of `costs --json`. Whatever a cost's basis was, it is the user's then.
#[derive(Deserialize)]
struct Costs {
    costs: Vec<PathCost>,
}

pub(crate) fn run(invocation: &Invocation) -> Result<String, Failure> {
    let costs = invocation.runtime.manager().costs();
    let printed: Vec<_> = costs.iter().map(|(cost, basis)| Printed { cost, basis: *basis }).collect();
    invocation.render("costs", &json!({ "costs": printed }), || human(&costs))
}

/// A row for each cost, with the times of some sizes.
fn human(costs: &[(PathCost, CostBasis)]) -> String {
    let row = |(PathCost { path, method, model }, basis): &(PathCost, CostBasis)| {
        let time = |bytes| format!("{:.1?}", model.predict(bytes));
        [
            path.to_string(),
            method.to_string(),
            basis.to_string(),
            time(4 << 10),
            time(1 << 20),
            time(256 << 20),
        ]
    };
    let rows: Vec<_> = costs.iter().map(row).collect();
    let sizes = [4 << 10, 1 << 20, 256 << 20].map(text::bytes);
    let [small, middle, large] = &sizes;
    output::table(["PATH", "METHOD", "BASIS", small, middle, large], 3, &rows)
}

/// Sets the costs of a file. They come before what was measured.
///
/// # Errors
/// If it is no output of `costs --json`, or cannot be read.
pub(crate) fn set(runtime: &Runtime, file: &Path) -> Result<(), Failure> {
    let name = file.display();
    let failed = |error| Failure::caused_by(Exit::Io, format!("cannot read {name}"), error);
    let mut text = Vec::new();
    File::open(file).map_err(failed)?.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
    let refused = |why: String| {
        let text = format!("{name} has no costs: {why}; `transload costs --json` prints some");
        Failure::new(Exit::Input, text)
    };
    if text.len() as u64 > LARGEST {
        return Err(refused(format!("it has more than {LARGEST} bytes")));
    }
    let Costs { costs } = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
    if let Some(wrong) = costs.iter().find(|cost| !TransferMethod::ALL.contains(&cost.method)) {
        return Err(refused(format!("{} is no method of transfers", wrong.method)));
    }
    runtime.manager().set_costs(costs);
    Ok(())
}
