//! What changed, as text and as Markdown.

use std::{fs::OpenOptions, io::Write as _, path::Path};

use anyhow::{Context as _, Result};

use super::{ALPHA, ComparedRow, Comparison, Verdict};
use crate::table;

/// Rows of one program alone that are named.
const NAMED: usize = 10;

impl Comparison {
    /// Returns the table of rows that changed, worse ones first, and the verdict.
    pub(super) fn text(&self) -> String {
        let head = ["", "row", "old", "new", "unit", "ratio", "interval", "p"].map(str::to_owned);
        let lines: Vec<_> = [head].into_iter().chain(self.changed().map(cells)).collect();
        let mut out = self.about();
        if lines.len() > 1 {
            table::aligned(&mut out, &lines, |column| matches!(column, 2 | 3 | 5 | 7));
        }
        out + &format!("\n{}\n", self.verdict())
    }

    /// Returns the same for a page of a workflow's run.
    pub(super) fn markdown(&self) -> String {
        let mut out = format!("### Old against new\n\n**{}**\n\n", self.verdict());
        if self.changed().next().is_some() {
            out.push_str(
                "| | row | old | new | unit | ratio | interval | p |\n|---|---|--:|--:|---|--:|---|--:|\n",
            );
        }
        for row in self.changed() {
            out.push_str(&format!("| {} |\n", cells(row).join(" | ")));
        }
        out + &format!("\n```\n{}```\n", self.about())
    }

    fn changed(&self) -> impl Iterator<Item = &ComparedRow> {
        self.rows.iter().filter(|row| row.verdict != Verdict::Same)
    }

    fn verdict(&self) -> String {
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let missing = match self.gone.len() {
            0 => String::new(),
            gone => format!("; missing: {gone}"),
        };
        format!(
            "worse by {} % or more: {} of {} rows; better: {}",
            100.0 * self.least_change,
            count(Verdict::Worse),
            self.rows.len(),
            count(Verdict::Better)
        ) + &missing
    }

    fn about(&self) -> String {
        let processes = self.rows.first().map_or(0, |row| row.old.len());
        let mut out = format!(
            "old: {}\nnew: {}\n{}; {}; {}\n{processes} processes of each program in turns; medians of the processes; ratio new to old with its \
             interval at 95 %, without what differs in a process as its reference does; p is corrected for {} rows, and a row counts as changed at {ALPHA} or less\n",
            self.old,
            self.new,
            self.hardware,
            self.cpu,
            self.date,
            self.rows.len()
        );
        if self.simulated {
            out.push_str(
                "Rows of the software driver are among them: their times say nothing about any hardware.\n",
            );
        }
        let otherwise =
            |row: &ComparedRow| row.old_id.as_ref().map(|then| format!("{} ({then} then)", row.id));
        let otherwise: Vec<String> = self.rows.iter().filter_map(otherwise).collect();
        for (what, ids) in [
            ("in the old program alone", &self.gone),
            ("in the new program alone", &self.added),
            ("with another method chosen", &otherwise),
        ] {
            if !ids.is_empty() {
                let more = if ids.len() > NAMED { ", …" } else { "" };
                let named: Vec<&str> = ids.iter().take(NAMED).map(String::as_str).collect();
                out.push_str(&format!("{what}: {} rows: {}{more}\n", ids.len(), named.join(", ")));
            }
        }
        out
    }
}

fn cells(row: &ComparedRow) -> [String; 8] {
    let median = |values: &[f64]| table::number(crate::row::Summary::of(values).p50);
    let [ratio, interval] = match row.ratio {
        Some([ratio, low, high]) => [format!("{ratio:.3}"), format!("{low:.3} to {high:.3}")],
        None => ["", ""].map(str::to_owned),
    };
    let (verdict, p) = match row.verdict {
        Verdict::Worse => ("worse", row.p_worse),
        Verdict::Better => ("better", row.p_better),
        Verdict::Same => ("same", row.p_worse.min(row.p_better)),
    };
    let (old, new) = (median(&row.old), median(&row.new));
    [verdict.to_owned(), row.id.clone(), old, new, row.unit.clone(), ratio, interval, format!("{p:.4}")]
}

/// Appends to a file, as the steps of a workflow share one.
pub(super) fn append(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("writing {}", path.display()))
}
