//! The index of the records: the newest of each theme with its verdict, and links to all others.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    Record, Row,
    render::{MARK, cell},
};
use crate::bench::format::number;

/// What follows a theme in the name of a repeated record.
const ORDINALS: [&str; 11] = [
    "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
];
/// Rows of each kind that are shown.
const SHOWN: usize = 6;

/// Returns the index, the theme with the newest record first.
pub(super) fn index(records: &BTreeMap<String, Record>) -> String {
    let mut out = format!(
        "{MARK}\n# Results on record\n\n\
         Absolute figures hold for the machine that a record names. What carries over are the ratios: both sides of a\n\
         ratio were measured in one run. A row whose name ends in `#2` is a second run of that row. How the rows are\n\
         measured: [streams](streams.md), [memory](memory.md), [scaling](scaling.md). `cargo xtask bench --from FILE.json`\n\
         draws a record as a page with charts,\n\
         such as [2026-11-30-1xH200-choices](2026-11-30-1xH200-choices.html) of the record 2026-11-30-1xH200-table. That page was opened in\n\
         Chromium 156 in four forms: light, dark, on a screen of 390 px, where nothing but tables in boxes of their own scrolls sideways, and in\n\
         print, where it has 7 pages of A4.\n"
    );
    if records.is_empty() {
        out.push_str("\nNothing is on record yet.\n");
        return out;
    }
    let mut themes: Vec<(&str, Vec<(&String, &Record)>)> = Vec::new();
    for (name, record) in records.iter().rev() {
        match themes.iter_mut().find(|(known, _)| *known == theme(name)) {
            Some((_, records)) => records.push((name, record)),
            None => themes.push((theme(name), vec![(name, record)])),
        }
    }
    for (theme, mut records) in themes {
        records.sort_by(|(a, _), (b, _)| recency(b).cmp(&recency(a)));
        let _infallible = writeln!(out, "\n## {}\n", heading(theme));
        if let Some(((name, record), earlier)) = records.split_first() {
            newest(&mut out, name, record);
            if !earlier.is_empty() {
                let links: Vec<_> = earlier.iter().map(|(name, _)| format!("[{name}]({name}.md)")).collect();
                let _infallible = writeln!(out, "\nEarlier: {}.", links.join(", "));
            }
        }
    }
    out
}

/// Returns what is the greater the newer a record is: its date, then its ordinal.
fn recency(name: &str) -> (&str, usize) {
    let last = name.rsplit('-').next();
    let ordinal = ORDINALS.iter().position(|ordinal| Some(*ordinal) == last).map_or(0, |place| place + 1);
    (name.get(..10).unwrap_or_default(), ordinal)
}

/// Returns the theme in `DATE-HARDWARE-THEME-ORDINAL`.
fn theme(name: &str) -> &str {
    let (_, theme) = name.get(11..).and_then(|rest| rest.split_once('-')).unwrap_or(("", name));
    match theme.rsplit_once('-') {
        Some((theme, last)) if ORDINALS.contains(&last) => theme,
        _ => theme,
    }
}

fn heading(theme: &str) -> String {
    let text = theme.replace('-', " ");
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn newest(out: &mut String, name: &str, record: &Record) {
    let of = |met| record.rows.iter().filter(move |row: &&Row| row.met == Some(met));
    let (met, missed) = (of(true).count(), of(false).count());
    let tests: u64 = record.tests.iter().map(|test| test.executed).sum();
    let _infallible = writeln!(
        out,
        "[{name}]({name}.md): {}; {} rows, {tests} tests executed. **{met} of {} goals met{}.**\n",
        cell(&record.hardware),
        record.rows.len(),
        met + missed,
        if missed == 0 { String::new() } else { format!(", {missed} missed") },
    );
    // The first row of each group stands for it.
    let mut headlines: Vec<&Row> = Vec::new();
    for row in of(true).filter(|row| row.ratio.is_some()) {
        if headlines.iter().all(|known| group(known) != group(row)) {
            headlines.push(row);
        }
    }
    out.push_str("| Row | Value | Reference | Goal | Met |\n|---|---:|---:|---|---|\n");
    of(false).take(SHOWN).chain(headlines.into_iter().take(SHOWN)).for_each(|row| line(out, row));
    if missed > SHOWN {
        let _infallible = writeln!(out, "\n{} more missed goals are in the record.", missed - SHOWN);
    }
}

/// Returns the path or the area of a row.
fn group(row: &Row) -> &str {
    row.id.split('/').next().unwrap_or_default()
}

fn line(out: &mut String, row: &Row) {
    let reference = row.reference_value.map_or_else(|| "–".to_owned(), number);
    let _infallible = writeln!(
        out,
        "| {}{} | {} {} | {reference} | {} | {} |",
        cell(&row.id),
        if row.simulated { " (simulated)" } else { "" },
        number(row.value),
        cell(&row.unit),
        row.goal.as_deref().map_or_else(String::new, cell),
        if row.met == Some(false) { "**no**" } else { "yes" },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn index_without_records_says_so() {
        assert!(index(&BTreeMap::new()).contains("Nothing is on record yet."));
    }

    #[test]
    fn index_shows_the_newest_record_of_a_theme_and_links_the_others() {
        let records =
            ["2026-11-20-h200-copies", "2026-11-21-2xh200-copies-second", "2026-11-19-h200-streams"];
        let records = records.map(|name| (name.to_owned(), sample())).into();
        let index = index(&records);
        assert!(
            index.contains(
                "## Copies\n\n[2026-11-21-2xh200-copies-second](2026-11-21-2xh200-copies-second.md): a"
            ),
            "{index}"
        );
        assert!(index.contains("Earlier: [2026-11-20-h200-copies](2026-11-20-h200-copies.md)."), "{index}");
        assert!(index.find("## Copies").unwrap() < index.find("## Streams").unwrap());
        assert!(index.contains("**0 of 2 goals met, 2 missed.**") && index.contains("| **no** |"), "{index}");
    }

    #[test]
    fn newest_of_a_day_is_that_with_the_last_ordinal() {
        let records = [
            "2026-11-27-1xH200-limits-sixth",
            "2026-11-27-1xH100-limits-seventh",
            "2026-11-27-2xH200-limits",
            "2026-11-26-2xH200-limits-ninth",
        ];
        let index = index(&records.map(|name| (name.to_owned(), sample())).into());
        let at = |name: &str| index.find(&format!("[{name}]")).unwrap();
        let [sixth, seventh, first, before] = records.map(at);
        assert!(seventh < sixth && sixth < first && first < before, "{index}");
    }

    #[test]
    fn theme_is_without_date_hardware_and_ordinal() {
        assert_eq!(theme("2026-11-24-1xH200-limits-fourth"), "limits");
        assert_eq!(theme("2026-11-24-1xH200-limits-tenth"), "limits");
        assert_eq!(theme("2026-11-21-2xH200-memory-and-streams"), "memory-and-streams");
    }
}
