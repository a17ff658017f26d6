//! The HTML report of one run: charts and a table for each path.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    chart::{self, Points, Series, escape, number, size},
    results::{ResultRow, Results},
};

const STYLE: &str = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.5em 0 2em}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child,td.text{text-align:left}.simulated{background:#fff3cd;padding:.5em 1em}";

/// Returns the page, without external resources.
pub(crate) fn html(results: &Results) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n");
    let _infallible = writeln!(out, "<title>Transload: measured paths</title><style>{STYLE}</style>");
    out.push_str("<h1>Transload: measured paths</h1>\n");
    facts(&mut out, results);
    for (path, rows) in by_path(&results.rows) {
        let _infallible = writeln!(out, "<h2>{}</h2>", escape(path));
        for (unit, series) in series_by_unit(&rows) {
            // A chart needs at least two points.
            if series.iter().any(|line| line.points.len() > 1) {
                out.push_str(&chart::svg(path, unit, &series));
            }
        }
        table(&mut out, &rows);
    }
    out.push_str("</html>\n");
    out
}

fn facts(out: &mut String, results: &Results) {
    if results.simulated {
        out.push_str(
            "<p class=\"simulated\"><strong>Some rows are simulated:</strong> they come from the software driver and \
             say nothing about any hardware.</p>\n",
        );
    }
    let unknown = || "unknown".to_owned();
    let facts = [
        ("Hardware", results.hardware.clone()),
        ("Driver", results.driver.clone().unwrap_or_else(unknown)),
        ("CUDA", results.cuda.clone().unwrap_or_else(unknown)),
        ("CPU", results.cpu.clone()),
        ("Date", results.date.clone()),
        ("Commit", results.commit.clone().unwrap_or_else(unknown)),
        ("Command", results.command.clone()),
    ];
    out.push_str("<table>");
    for (name, value) in facts {
        let _infallible = write!(out, "<tr><th>{name}</th><td class=\"text\">{}</td></tr>", escape(&value));
    }
    out.push_str("</table>\n");
}

fn by_path(rows: &[ResultRow]) -> BTreeMap<&str, Vec<&ResultRow>> {
    let mut paths: BTreeMap<&str, Vec<&ResultRow>> = BTreeMap::new();
    for row in rows {
        paths.entry(&row.path).or_default().push(row);
    }
    for rows in paths.values_mut() {
        rows.sort_by(|a, b| (&a.method, &a.unit, a.bytes).cmp(&(&b.method, &b.unit, b.bytes)));
    }
    paths
}

/// For each unit the lines to draw: each method, and dashed what it is compared with.
fn series_by_unit<'a>(rows: &[&'a ResultRow]) -> BTreeMap<&'a str, Vec<Series>> {
    let mut lines: BTreeMap<(&str, bool, String), Points> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.bytes > 0) {
        let label = |name: &str| format!("{name}{}", if row.simulated { " (simulated)" } else { "" });
        lines.entry((&row.unit, false, label(&row.method))).or_default().push((row.bytes, row.value));
        if let (Some(reference), Some(value)) = (&row.reference, row.reference_value) {
            lines.entry((&row.unit, true, label(reference))).or_default().push((row.bytes, value));
        }
    }
    let mut units: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    for ((unit, is_reference, label), mut points) in lines {
        points.sort_by_key(|point| point.0);
        units.entry(unit).or_default().push(Series { label, points, is_reference });
    }
    units
}

fn table(out: &mut String, rows: &[&ResultRow]) {
    out.push_str(
        "<table><tr><th>Method</th><th>Size</th><th>Value</th><th>p10</th><th>p50</th><th>p90</th><th>Unit</th>\
         <th>Reference</th><th>Ratio</th><th>Goal</th><th>Met</th><th>Verified</th><th></th></tr>\n",
    );
    for row in rows {
        let optional = |value: Option<f64>| value.map_or("–".to_owned(), number);
        let _infallible = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&row.method),
            size(row.bytes),
            number(row.value),
            number(row.p10),
            number(row.p50),
            number(row.p90),
            escape(&row.unit),
            optional(row.reference_value),
            optional(row.ratio),
            escape(row.goal.as_deref().unwrap_or("–")),
            row.met.map_or("–", |met| if met { "yes" } else { "no" }),
            if row.verified { "yes" } else { "no" },
            if row.simulated { "simulated" } else { "" },
        );
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::sample;

    #[test]
    fn simulated_rows_are_labelled_in_table_and_chart() {
        let page = html(&sample());
        assert_eq!(page.matches("<td>simulated</td>").count(), 2);
        assert!(page.contains("DirectCopy (simulated)") && page.contains("raw (simulated)"));
        assert!(page.contains("Some rows are simulated"));
    }

    #[test]
    fn hardware_run_does_not_mention_simulation() {
        let mut results = sample();
        results.simulated = false;
        results.rows.iter_mut().for_each(|row| row.simulated = false);
        let page = html(&results);
        assert!(!page.contains("rows are simulated") && !page.contains("(simulated)"));
    }

    #[test]
    fn input_text_is_escaped() {
        assert!(html(&sample()).contains("a &lt;machine&gt;"));
    }
}
