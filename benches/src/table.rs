//! The results as an aligned text table.

use transload_core::TransferMethod;

use crate::{
    json::Results,
    methods::{self, Choice},
    row::Row,
};

/// Formats a run as text.
#[must_use]
pub fn text(results: &Results) -> String {
    let machine = results.machine();
    let unknown = "unknown".to_owned();
    let mut out = format!(
        "\n{}; driver {}, CUDA {}\n{}; {}\n",
        machine.hardware,
        machine.driver.as_ref().unwrap_or(&unknown),
        machine.cuda.as_ref().unwrap_or(&unknown),
        machine.cpu,
        machine.date,
    );
    if results.is_simulated() {
        out.push_str(
            "Rows marked `simulated` come from the software driver: they say nothing about any hardware.\n",
        );
    }
    out.push('\n');
    let header = ["row", "value", "p10", "p90", "unit", "reference", "ratio", "goal", ""].map(str::to_owned);
    let lines: Vec<[String; 9]> = [header]
        .into_iter()
        .chain(results.rows().iter().filter(|row| !row.id.starts_with(methods::GROUP)).map(cells))
        .collect();
    aligned(&mut out, &lines, |column| matches!(column, 1..=3 | 5 | 6));
    every_method(&mut out, results);
    out.push_str(&summary(results.rows()));
    out
}

pub(crate) fn aligned<const N: usize>(
    out: &mut String,
    lines: &[[String; N]],
    is_number: impl Fn(usize) -> bool,
) {
    let widths: [usize; N] = std::array::from_fn(|column| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    for line in lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let is_number = is_number(column);
            let cell = if is_number { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            text.push_str(&cell);
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
}

/// Appends a table with the methods as columns, followed by the reasons of rejections.
fn every_method(out: &mut String, results: &Results) {
    let found = results.methods();
    let mut points: Vec<(&str, u64)> = Vec::new();
    let chosen = found.choices.iter().map(|choice| (choice.path.as_str(), choice.bytes));
    for point in
        chosen.chain(found.rejections.iter().map(|rejected| (rejected.path.as_str(), rejected.bytes)))
    {
        if !points.contains(&point) {
            points.push(point);
        }
    }
    if points.is_empty() {
        return;
    }
    let mut reasons: Vec<&str> = Vec::new();
    let [a, b, c, d, e] = TransferMethod::ALL.map(|method| method.name().to_owned());
    let mut lines = vec![["path".to_owned(), "size".to_owned(), a, b, c, d, e, String::new()]];
    for (path, bytes) in points {
        let mut simulated = "";
        let [a, b, c, d, e] = TransferMethod::ALL.map(|method| {
            let id = methods::id(path, method.name(), bytes);
            if let Some(row) = results.rows().iter().find(|row| row.id == id) {
                simulated = if row.simulated { "simulated" } else { simulated };
                let choice = Choice { path: path.to_owned(), bytes, method: method.name().to_owned() };
                let star = if found.choices.contains(&choice) { "*" } else { " " };
                return format!("{} {}{star}", number(row.value), row.unit);
            }
            let is_it = |rejected: &&methods::Rejection| {
                rejected.path == path && rejected.bytes == bytes && rejected.method == method.name()
            };
            let Some(rejected) = found.rejections.iter().find(is_it) else { return String::new() };
            let known = reasons.iter().position(|reason| *reason == rejected.reason).unwrap_or_else(|| {
                reasons.push(&rejected.reason);
                reasons.len() - 1
            });
            format!("[{}] ", known + 1)
        });
        lines.push([path.to_owned(), size(bytes), a, b, c, d, e, simulated.to_owned()]);
    }
    out.push_str("\nEvery method (*: chosen automatically, [n]: rejected for this reason)\n");
    aligned(out, &lines, |column| (1..=6).contains(&column));
    for (number, reason) in reasons.iter().enumerate() {
        out.push_str(&format!("[{}] {reason}\n", number + 1));
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn cells(row: &Row) -> [String; 9] {
    let optional = |value: Option<f64>| value.map_or(String::new(), number);
    let goal = match (&row.goal, row.met) {
        (Some(goal), Some(true)) => format!("{goal}: met"),
        (Some(goal), _) => format!("{goal}: MISSED"),
        _ => String::new(),
    };
    [
        row.id.clone(),
        number(row.value),
        number(row.p10),
        number(row.p90),
        row.unit.to_owned(),
        optional(row.reference_value),
        optional(row.ratio),
        goal,
        if row.simulated { "simulated".to_owned() } else { String::new() },
    ]
}

fn summary(rows: &[Row]) -> String {
    let simulated = rows.iter().filter(|row| row.simulated).count();
    let verified = rows.iter().filter(|row| row.verified).count();
    let goals = rows.iter().filter(|row| row.met.is_some()).count();
    let met = rows.iter().filter(|row| row.met == Some(true)).count();
    format!(
        "\n{} rows, {verified} with every byte compared, {simulated} simulated; {met} of {goals} goals met\n",
        rows.len()
    )
}

/// Formats three significant digits, at most three decimals.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Machine, methods::Methods, row::Summary};

    #[test]
    fn simulated_rows_are_marked_in_header_and_line() {
        let row = Row::new("a/1".to_owned(), "a".to_owned(), "m", 1, "us", Summary::single(1.5));
        let machine = Machine::here("x".to_owned(), None, None);
        let text =
            text(&Results::new(machine.clone(), vec![row.clone().obtained(true, true)], Methods::default()));
        assert_eq!(text.matches("simulated").count(), 3, "{text}");
        let text = super::text(&Results::new(machine, vec![row.obtained(false, true)], Methods::default()));
        assert!(text.contains("0 simulated") && !text.contains("`simulated`"), "{text}");
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([123.4, 12.34, 1.234, 0.1234, 0.0].map(number), ["123", "12.3", "1.23", "0.123", "0"]);
    }

    #[test]
    fn choice_has_a_star_and_rejection_a_reason() {
        let row = Row::new(
            methods::id("a", "DirectCopy", 4096),
            "a".to_owned(),
            "",
            4096,
            "us",
            Summary::single(1.5),
        );
        let rejection = |method: TransferMethod| methods::Rejection {
            path: "a".to_owned(),
            method: method.name().to_owned(),
            bytes: 4096,
            reason: "no way".to_owned(),
        };
        let choice = Choice { path: "a".to_owned(), bytes: 4096, method: "DirectCopy".to_owned() };
        let found = Methods {
            rejections: TransferMethod::ALL[1..].iter().copied().map(rejection).collect(),
            choices: vec![choice],
            break_points: Vec::new(),
            failures: Vec::new(),
        };
        let machine = Machine::here("x".to_owned(), None, None);
        let text = text(&Results::new(machine, vec![row.obtained(true, true)], found));
        assert!(text.contains("a     4 KiB    1.50 us*"), "{text}");
        assert_eq!((text.matches("[1] ").count(), text.matches("[1] no way").count()), (5, 1), "{text}");
        assert!(text.lines().any(|line| line.starts_with("a ") && line.ends_with("simulated")), "{text}");
    }
}
