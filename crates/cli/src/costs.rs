//! `transload costs`: prints the costs that methods, and the ways of lists, are chosen by; `--costs` sets those of a file.

use std::{fs::File, io::Read as _, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::json;
use transload::{
    Runtime, TransferMethod,
    backend::{CostBasis, ListCost, PathCost},
};

use crate::{
    exit::{Exit, Failure},
    invocation::Invocation,
    load::check_readable,
    output, text,
};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 8 << 20;

/// A cost as it is printed.
#[derive(Serialize)]
struct Printed<'a, T> {
    #[serde(flatten)]
    cost: &'a T,
    basis: CostBasis,
}

/// What is read of the output of `costs --json`. Whatever a cost's basis was, it is the user's then.
#[derive(Deserialize)]
struct Costs {
    costs: Vec<PathCost>,
    #[serde(default)]
    lists: Vec<ListCost>,
}

pub(crate) fn run(invocation: &Invocation) -> Result<String, Failure> {
    let manager = invocation.runtime.manager();
    let (costs, lists) = (manager.costs(), manager.list_costs());
    let json = json!({ "costs": printed(&costs), "lists": printed(&lists) });
    invocation.render("costs", &json, || human(&costs) + &human_lists(&lists))
}

fn printed<T>(costs: &[(T, CostBasis)]) -> Vec<Printed<'_, T>> {
    costs.iter().map(|(cost, basis)| Printed { cost, basis: *basis }).collect()
}

/// A row for the costs of each path's lists by one way, with the times of 1,000 pieces of some lengths.
fn human_lists(costs: &[(ListCost, CostBasis)]) -> String {
    if costs.is_empty() {
        return String::new();
    }
    let row = |(ListCost { path, way, exclusive, model }, basis): &(ListCost, CostBasis)| {
        let time = |bytes: u64| format!("{:.1?}", model.predict(1000, 1000 * bytes));
        let (small, middle, large) = (time(4 << 10), time(64 << 10), time(1 << 20));
        [path.to_string(), text::way(*way, *exclusive), basis.to_string(), small, middle, large]
    };
    let rows: Vec<_> = costs.iter().map(row).collect();
    let sizes = [4 << 10, 64 << 10, 1 << 20].map(|bytes| format!("1000 × {}", text::bytes(bytes)));
    let [small, middle, large] = &sizes;
    "\n".to_owned() + &output::table(["LISTS", "WAY", "BASIS", small, middle, large], 3, &rows)
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
    check_readable(file)?;
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
    let Costs { costs, lists } = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
    if let Some(wrong) = costs.iter().find(|cost| !TransferMethod::ALL.contains(&cost.method)) {
        return Err(refused(format!("{} is no method of transfers", wrong.method)));
    }
    runtime.manager().set_costs(costs);
    runtime.manager().set_list_costs(lists);
    Ok(())
}
