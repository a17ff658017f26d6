//! The results for people: one aligned line a row.

use crate::{json::Results, row::Row};

/// The whole run as text.
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
    let lines: Vec<[String; 9]> = [header].into_iter().chain(results.rows().iter().map(cells)).collect();
    let widths: [usize; 9] = std::array::from_fn(|column| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    for line in &lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let is_number = matches!(column, 1..=3 | 5 | 6);
            let cell = if is_number { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            text.push_str(&cell);
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out.push_str(&summary(results.rows()));
    out
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

/// Three significant digits, and no more than three decimals.
fn number(value: f64) -> String {
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
    use crate::{machine::Machine, row::Summary};

    #[test]
    fn simulated_rows_say_so_in_header_and_line() {
        let row = Row::new("a/1".to_owned(), "a".to_owned(), "m", 1, "us", Summary::single(1.5));
        let machine = Machine::here("x".to_owned(), None, None);
        let text = text(&Results::new(machine.clone(), vec![row.clone().obtained(true, true)]));
        assert_eq!(text.matches("simulated").count(), 3, "{text}");
        let text = super::text(&Results::new(machine, vec![row.obtained(false, true)]));
        assert!(text.contains("0 simulated") && !text.contains("`simulated`"), "{text}");
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([123.4, 12.34, 1.234, 0.1234, 0.0].map(number), ["123", "12.3", "1.23", "0.123", "0"]);
    }
}
