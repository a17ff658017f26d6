//! Tables for people, and JSON objects for programs.

use serde_json::{Map, Value};

/// Formats rows with headings, with columns as wide as their widest cells. Columns from `right` on are right-aligned.
pub(crate) fn table<const N: usize>(headings: [&str; N], right: usize, rows: &[[String; N]]) -> String {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut lines = String::new();
    for row in std::iter::once(&headings.map(str::to_owned)).chain(rows) {
        let cells = row.iter().zip(widths).enumerate().map(|(index, (cell, width))| {
            if index >= right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        lines += cells.collect::<Vec<_>>().join("  ").trim_end();
        lines.push('\n');
    }
    lines
}

/// Returns one object with the members of both.
pub(crate) fn merged(objects: [Value; 2]) -> Value {
    let members = objects.into_iter().filter_map(|object| match object {
        Value::Object(members) => Some(members),
        _ => None,
    });
    Value::Object(members.flatten().collect::<Map<_, _>>())
}

/// Formats named values, one per line.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

#[cfg(test)]
#[path = "../tests/unit/output.rs"]
mod tests;
