//! The index of the records: of each theme the newest one that measured it, with its verdict, and links to all others.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write as _};

use super::{
    Record, Row,
    render::{MARK, cell},
};
use crate::bench::format::{Direction, number};

/// What is at the end of the name of a record that has the name of another one.
const ORDINALS: [&str; 11] = [
    "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
];
/// Rows of each kind that are shown.
const SHOWN: usize = 6;
/// The themes, each with what the ids of its rows begin with; a row belongs to the first one that it fits. Those of single copies begin with a path, too.
/// `first-use` has none: almost every run measures it.
const THEMES: [(&str, &[&str]); 11] = [
    (
        COPIES,
        &[
            "methods",
            "device-clock",
            "staged",
            "in-place",
            "peer",
            "allocations",
            "submit",
            "wait",
            "await",
            "unbound",
            "threads-8",
            "managed",
        ],
    ),
    ("Choice of methods", &["choice", "choice-2", "choice-8"]),
    ("Lists", &["many", "strided", "cast"]),
    ("Blocks beside compute", &["beside"]),
    ("Loading", &["load"]),
    ("Profiling", &["scaling/profiling", "scaling/trace", "scaling/advice"]),
    ("Scaling", &["scaling"]),
    ("Streams", &["streams", "pytorch/streams"]),
    ("Memory", &["memory", "pytorch/memory"]),
    ("Vulkan by a processor", &["wgpu/0-software", "wgpu/1-software"]),
    ("Vulkan", &["wgpu"]),
];
const COPIES: &str = "Single copies";

/// A record with its rows of one theme.
struct Part<'a> {
    name: &'a String,
    record: &'a Record,
    rows: Vec<&'a Row>,
}

/// Returns the index: of each theme the newest record, then those with tests, then those of no theme.
pub(super) fn index(records: &BTreeMap<String, Record>) -> String {
    let mut out = format!(
        "{MARK}\n# Results on record\n\n\
         Absolute figures hold for the machine that a record names. What carries over are the ratios: both sides of a\n\
         ratio were measured in one run. A row whose name ends in `#2` is a second run of that row. How the rows are\n\
         measured: [streams](streams.md), [memory](memory.md), [scaling](scaling.md). `cargo xtask bench --from FILE.json`\n\
         draws a record as a page with charts, such as [2026-11-30-1xH200-choices](2026-11-30-1xH200-choices.html) of the\n\
         record 2026-11-30-1xH200-table. That page was opened in Chromium 156 in four forms: light, dark, on a screen of 390 px,\n\
         where only tables scroll sideways, in boxes of their own, and in print, where it has 7 pages of A4.\n\n\
         Of each theme a record of the newest day that measured it is shown with these rows: one that is mostly of that theme, if there is one.\n"
    );
    if records.is_empty() {
        out.push_str("\nNothing is on record yet.\n");
        return out;
    }
    for (name, _) in THEMES {
        let parts = records.iter().map(|(of, record)| Part::new(of, record, name));
        let mut parts: Vec<_> = parts.filter(|part| !part.rows.is_empty()).collect();
        parts.sort_by(|a, b| b.recency().cmp(&a.recency()));
        if let Some((newest, others)) = parts.split_first() {
            let _infallible = writeln!(out, "\n## {name}\n");
            newest.write(&mut out);
            links(&mut out, "Others", others.iter().map(|part| part.name));
        }
    }
    let executed = |record: &Record| record.tests.iter().map(|test| test.executed).sum::<u64>();
    let mut tested: Vec<_> = records.iter().filter(|(_, record)| !record.tests.is_empty()).collect();
    tested.sort_by_key(|(name, record)| Reverse((recency(name).0, executed(record))));
    if let Some(((name, record), others)) = tested.split_first() {
        let (hardware, tests) = (cell(&record.hardware), executed(record));
        let _infallible =
            writeln!(out, "\n## Tests\n\n[{name}]({name}.md): {hardware}; {tests} tests executed.");
        links(&mut out, "Others", others.iter().map(|(name, _)| *name));
    }
    let has_theme =
        |record: &Record| record.rows.iter().any(|row| theme(&row.id).is_some()) || !record.tests.is_empty();
    links(
        &mut out,
        "Without a theme",
        records.iter().filter(|(_, record)| !has_theme(record)).map(|(name, _)| name),
    );
    out
}

fn links<'a>(out: &mut String, what: &str, names: impl Iterator<Item = &'a String>) {
    let links: Vec<_> = names.map(|name| format!("[{name}]({name}.md)")).collect();
    if !links.is_empty() {
        let _infallible = writeln!(out, "\n{what}: {}.", links.join(", "));
    }
}

/// Returns what is the greater the newer a record is: its date, then its ordinal.
fn recency(name: &str) -> (&str, usize) {
    let last = name.rsplit('-').next();
    let ordinal = ORDINALS.iter().position(|ordinal| Some(*ordinal) == last).map_or(0, |place| place + 1);
    (name.get(..10).unwrap_or_default(), ordinal)
}

/// Returns the theme of the row with an id.
fn theme(id: &str) -> Option<&'static str> {
    let begins = |with: &&str| id.strip_prefix(*with).is_some_and(|rest| rest.starts_with('/'));
    let path = id.split('/').next().and_then(Direction::of);
    let of = |(name, begin): &(&'static str, &[&str])| begin.iter().any(begins).then_some(*name);
    path.map(|_| COPIES).or_else(|| THEMES.iter().find_map(of))
}

impl<'a> Part<'a> {
    fn new(name: &'a String, record: &'a Record, of: &str) -> Self {
        let rows = record.rows.iter().filter(|row| theme(&row.id) == Some(of)).collect();
        Self { name, record, rows }
    }

    /// Of one day a record that is mostly of the theme comes before others, then that with the last ordinal, then that with more rows of it.
    fn recency(&self) -> (&str, bool, usize, usize) {
        let (date, ordinal) = recency(self.name);
        (date, 2 * self.rows.len() > self.record.rows.len(), ordinal, self.rows.len())
    }

    fn write(&self, out: &mut String) {
        let of = |met| self.rows.iter().copied().filter(move |row| row.met == Some(met));
        let (met, missed) = (of(true).count(), of(false).count());
        let (name, hardware, rows) = (self.name, cell(&self.record.hardware), self.rows.len());
        let _infallible = write!(out, "[{name}]({name}.md): {hardware}; {rows} rows. ");
        if met + missed == 0 {
            out.push_str("None has a goal.\n");
            return;
        }
        let and_missed = if missed == 0 { String::new() } else { format!(", {missed} missed") };
        let _infallible = writeln!(out, "**{met} of {} goals met{and_missed}.**\n", met + missed);
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

    /// Returns a record of rows with goals.
    fn of(ids: &[&str]) -> Record {
        let mut record = sample();
        let row = record.rows.remove(0);
        let row = |id: &&str| Row { id: (*id).to_owned(), met: Some(true), ..row.clone() };
        record.rows = ids.iter().map(row).collect();
        record.tests.clear();
        record
    }

    fn index_of<const N: usize>(records: [(&str, Record); N]) -> String {
        index(&records.map(|(name, record)| (name.to_owned(), record)).into())
    }

    /// Returns a theme's section.
    fn section<'a>(index: &'a str, theme: &str) -> &'a str {
        index.split("\n## ").find(|section| section.starts_with(theme)).unwrap()
    }

    #[test]
    fn theme_has_the_newest_record_that_measured_it_whatever_its_name() {
        let index = index_of([
            ("2026-11-20-1xH200-load", of(&["load/one/first/load", "many/up/1/a"])),
            (
                "2026-11-21-1xH200-tests-lists-vulkan",
                of(&["many/up/1/a", "many/up/1/b", "first-use/cuda:0/driver/0"]),
            ),
        ]);
        let lists = section(&index, "Lists");
        assert!(
            lists.contains(
                "\n\n[2026-11-21-1xH200-tests-lists-vulkan](2026-11-21-1xH200-tests-lists-vulkan.md): "
            ),
            "{index}"
        );
        // Of its theme alone.
        assert!(lists.contains("; 2 rows. **2 of 2 goals met.**"), "{index}");
        assert!(lists.contains("Others: [2026-11-20-1xH200-load](2026-11-20-1xH200-load.md)."), "{index}");
        assert!(section(&index, "Loading").contains("; 1 rows. **1 of 1 goals met.**"), "{index}");
        assert_eq!(index.matches("\n## ").count(), 2, "{index}");
    }

    #[test]
    fn tests_and_records_of_no_theme_have_links() {
        let tested = Record { rows: Vec::new(), ..sample() };
        let index = index_of([
            ("2026-11-20-h200-a", tested),
            ("2026-11-20-h200-b", of(&["first-use/cuda:0/driver/0"])),
        ]);
        assert!(section(&index, "Tests").contains("12 tests executed."), "{index}");
        assert!(
            index.ends_with("\nWithout a theme: [2026-11-20-h200-b](2026-11-20-h200-b.md).\n"),
            "{index}"
        );
    }

    #[test]
    fn newest_of_a_day_is_mostly_of_the_theme_then_has_the_last_ordinal_then_most_rows() {
        let one = || of(&["scaling/host/64/wait"]);
        let names = [
            "2026-11-27-1xH100-limits-seventh",
            "2026-11-27-1xH200-limits-sixth",
            "2026-11-27-1xH100-more",
            "2026-11-27-2xH200-limits",
            "2026-11-26-2xH200-limits-ninth",
        ];
        let more = of(&["scaling/host/64/wait", "scaling/host/4096/wait"]);
        let mut rows = vec!["scaling/host/64/wait"; 4];
        rows.extend(["load/one/first/load"; 5]);
        let index = index_of([
            ("2026-11-27-1xH100-mostly-loading", of(&rows)),
            (names[0], one()),
            (names[1], one()),
            (names[2], more),
            (names[3], one()),
            (names[4], one()),
        ]);
        let scaling = section(&index, "Scaling");
        let at = |name: &str| scaling.find(&format!("[{name}]")).unwrap();
        assert!(names.map(at).is_sorted(), "{index}");
        assert!(at(names[3]) < at("2026-11-27-1xH100-mostly-loading"), "{index}");
    }

    #[test]
    fn missed_goals_of_a_theme_come_first() {
        let mut record = of(&["load/one/first/load", "load/one/later/load"]);
        record.rows[1].met = Some(false);
        let index = index_of([("2026-11-20-h200-a", record)]);
        assert!(index.contains("**1 of 2 goals met, 1 missed.**"), "{index}");
        assert!(
            index.find("load/one/later").unwrap() < index.find("load/one/first").unwrap_or(usize::MAX),
            "{index}"
        );
    }

    #[test]
    fn theme_is_that_of_the_first_begin_that_fits() {
        let of = |id| theme(id).unwrap_or("none");
        assert_eq!(of("scaling/profiling/clock/off"), "Profiling");
        assert_eq!(of("scaling/host/64/wait"), "Scaling");
        assert_eq!(of("cpu.pinned-to-cuda:0.device/DirectCopy/4096"), COPIES);
        assert_eq!(of("wait/cpu.pinned-to-cuda:0.device/DirectCopy/4096"), COPIES);
        assert_eq!([of("first-use/cuda:0/driver/0"), of("manyfold/1")], ["none", "none"]);
    }
}
