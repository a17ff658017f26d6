//! Promises of the whole page.

use std::{fs, path::Path};

use super::*;
use crate::bench::results::{BreakPoint, Choice, Rejection, ResultRow, hardware_sample, sample};

/// Returns a section by its id.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("<section id=\"{id}\"")).unwrap();
    rest.split_once("</section>").unwrap().0
}

/// Returns the page without what is folded.
fn unfolded(page: &str) -> String {
    let mut out = String::new();
    for (index, part) in page.split("<details").enumerate() {
        out.push_str(if index == 0 { part } else { part.split_once("</details>").unwrap().1 });
    }
    out
}

/// Returns every committed record as results.
fn records() -> Vec<(String, Results)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.map(|file| (file.display().to_string(), Results::read_or_record(&file).unwrap())).collect()
}

fn assert_sound(name: &str, page: &str) {
    for outside in ["http", "src=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(outside), "{name} contains {outside}");
    }
    assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count(), "{name}");
    for svg in page.split("<svg").skip(1) {
        let svg = svg.split_once("</svg>").unwrap().0;
        assert!(svg.contains("<title") && svg.contains("<desc") && !svg.contains("NaN"), "{name}: {svg}");
    }
    for table in page.split("<table").skip(1) {
        let table = table.split_once("</table>").unwrap().0;
        assert!(table.contains("<caption>"), "{name}: {table}");
        let unscoped = table.split("<th").skip(1).filter(|th| !th.starts_with("ead"));
        assert!(
            unscoped.clone().all(|th| th.split('>').next().unwrap().contains("scope=")),
            "{name}: {table}"
        );
    }
    let levels = page.match_indices("<h").filter_map(|(at, _)| page[at + 2..].chars().next()?.to_digit(10));
    let levels: Vec<u32> = levels.collect();
    assert!(levels.first() == Some(&1) && levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{levels:?}");
    let mut ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{name} has an id twice: {ids:?}");
}

#[test]
fn summary_has_the_verdict_and_what_changed_as_one_block_of_markdown() {
    let (earlier, mut results) = (hardware_sample(), hardware_sample());
    assert!(!summary(&results, None).contains("<h3>"));
    for row in results.rows.iter_mut().filter(|row| row.met.is_some()) {
        (row.value, row.p10, row.p90, row.ratio, row.met) = (9.0, 9.0, 9.0, Some(0.75), Some(false));
    }
    results.hardware = "another machine".to_owned();
    let text = summary(&results, Some(&earlier));
    for part in [
        "1 of 1 goals of speed are missed",
        "1 of 5 measurements are worse",
        "Other machine.",
        "<h3>Goals</h3>",
        "<h3>Changes</h3>",
    ] {
        assert!(text.contains(part), "{part} is missing of {text}");
    }
    // A blank line would end the elements and begin Markdown.
    assert!(text.starts_with("<h2>") && text.trim_end().lines().count() == 1, "{text}");
    results.simulated = true;
    assert!(summary(&results, None).contains("This run is simulated."));
}

#[test]
fn verdict_names_a_wrong_choice_and_a_regression() {
    let (earlier, mut results) = (hardware_sample(), hardware_sample());
    assert!(section(&html(&results, Some(&earlier)), "verdict").contains("class=\"verdict\""));
    results.choices[1].method = "DirectCopy".to_owned();
    let row = results.rows.iter_mut().find(|row| row.id.contains("HostStaged/4096")).unwrap();
    (row.value, row.p10, row.p90) = (40.0, 39.0, 41.0);
    let id = row.id.clone();
    let page = html(&results, Some(&earlier));
    let verdict = section(&page, "verdict");
    assert!(verdict.contains("verdict bad"), "{verdict}");
    assert!(verdict.contains("1 of 2 automatic choices"), "{verdict}");
    assert!(verdict.contains("by DirectCopy takes 1.50 times as long as by HostStaged"), "{verdict}");
    assert!(verdict.contains("1 of 5 measurements are worse") && verdict.contains(&id), "{verdict}");
    assert!(section(&page, "choices").contains("wrong: DirectCopy chosen, HostStaged is"));
    assert!(section(&page, "changes").contains(&id));
}

#[test]
fn card_of_a_direction_has_rate_share_time_and_change() {
    let path = "cpu.pageable-to-cuda:0.device";
    let small = |value: f64| {
        let mut row = hardware_sample().rows.remove(0);
        row.id = format!("{path}/DirectCopy/4096");
        (row.value, row.p10, row.p90) = (value, value, value);
        row.reference_value = Some(6.25);
        row
    };
    let (mut earlier, mut results) = (hardware_sample(), hardware_sample());
    // A larger copy than the sample's, which the card names.
    let large = |value: f64, ratio: f64| {
        let mut row = hardware_sample().rows.pop().unwrap();
        (row.id, row.bytes) = (format!("{path}/HostStaged/{}", 64 << 20), 64 << 20);
        (row.value, row.p10, row.p90, row.ratio) = (value, value, value, Some(ratio));
        row
    };
    earlier.rows.extend([small(10.0), large(50.0, 1.0)]);
    results.rows.extend([small(8.0), large(43.75, 0.875)]);
    let page = html(&results, Some(&earlier));
    let cards = section(&page, "directions");
    let names = ["Host → device", "Device → host", "Device → device", "Host → host"];
    assert!(names.iter().all(|name| cards.contains(&format!("<h3>{name}</h3>"))), "{cards}");
    let card = cards.split("<li>").nth(1).unwrap();
    let parts = [
        "43.8\u{a0}GB/s</p>",
        "64 MiB, ",
        "<dt>Of the raw rate</dt><dd>87.5\u{a0}%</dd>",
        "<dt>Time of 4 KiB</dt><dd>8.00\u{a0}µs (raw 6.25\u{a0}µs)</dd>",
        "<dt>Since the earlier run</dt><dd>rate −12\u{a0}%, time of 4 KiB −20\u{a0}%</dd>",
    ];
    for part in parts {
        assert!(card.contains(part), "{part} is missing of {card}");
    }
    let card = cards.split("<li>").nth(2).unwrap();
    assert!(card.contains("Not measured in this run."), "{card}");
    let alone = html(&results, None);
    assert!(section(&alone, "directions").contains("<dt>Since the earlier run</dt><dd>none given</dd>"));
}

#[test]
fn failed_part_and_unverified_bytes_are_named_first() {
    let mut results = hardware_sample();
    results.failures.push("many, up:\n\nout of <memory>".to_owned());
    (results.rows[0].bytes, results.rows[0].verified) = (4096, false);
    let verdict = section(&html(&results, None), "verdict").to_owned();
    let said = format!(
        "2 parts failed</strong>: many, up: out of &lt;memory&gt;; {}: its bytes",
        results.rows[0].id
    );
    assert!(verdict.contains("verdict bad\"><strong>") && verdict.contains(&said), "{verdict}");
    let text = summary(&results, None);
    assert!(text.contains("2 parts failed") && text.trim_end().lines().count() == 1, "{text}");
}

#[test]
fn missed_goals_come_first_and_make_the_verdict_bad() {
    let mut results = hardware_sample();
    let met = results.rows.pop().unwrap();
    let missed = ResultRow { id: "slow/1".to_owned(), ratio: Some(0.5), met: Some(false), ..met.clone() };
    results.rows.extend([met.clone(), missed]);
    let page = html(&results, None);
    assert!(section(&page, "verdict").contains("1 of 2 goals of speed are missed"));
    let goals = section(&page, "goals");
    assert!(goals.contains("slow/1") && goals.contains("1 goal is met: see "), "{goals}");
    // Among all rows, and once.
    assert!(!goals.contains(&met.id) && section(&page, "rows").contains("x reference: met"), "{page}");
}

#[test]
fn reference_is_named_in_the_goals_and_in_a_charts_description() {
    let mut results = hardware_sample();
    let row = results.rows.iter_mut().find(|row| row.met.is_some()).unwrap();
    (row.value, row.p10, row.p90, row.ratio, row.met) = (9.0, 9.0, 9.0, Some(0.75), Some(false));
    let page = html(&results, None);
    assert!(section(&page, "goals").contains("<td>raw driver: 12.0\u{a0}GB/s</td>"), "{page}");
    assert!(section(&page, "paths").contains(". Reference raw driver: 12 at 1 MiB</desc>"), "{page}");
}

#[test]
fn other_machine_informs_only() {
    let (mut earlier, results) = (hardware_sample(), hardware_sample());
    earlier.hardware = "another".to_owned();
    earlier.rows.iter_mut().filter(|row| row.unit == "us").for_each(|row| row.value /= 3.0);
    let page = html(&results, Some(&earlier));
    assert!(section(&page, "verdict").contains("inform only"), "{}", section(&page, "verdict"));
    assert!(section(&page, "verdict").contains("class=\"verdict\""));
    assert!(section(&page, "changes").contains("devices: another then"));
}

#[test]
fn simulated_run_shows_no_rate_or_time_of_what_is_simulated() {
    let mut results = sample();
    let mut time = results.rows[0].clone();
    (time.id, time.unit, time.value) = ("methods/p/DirectCopy/4096".to_owned(), "us".to_owned(), 123.25);
    let mut count = time.clone();
    (count.id, count.unit, count.value) = ("a/count".to_owned(), "allocations/transfer".to_owned(), 2.0);
    results.rows.extend([time, count]);
    let page = html(&results, Some(&sample()));
    for hidden in ["GB/s", "123", "µs", "38.0", "19.0", "<svg"] {
        assert!(!page.contains(hidden), "{hidden}");
    }
    assert!(page.contains("<strong>Simulated. </strong>") && page.contains("2.00\u{a0}allocations/transfer"));
    assert!(section(&page, "choices").contains("DirectCopy") && page.contains("compared"));
}

#[test]
fn simulated_run_shows_rates_of_the_real_host() {
    let mut results = sample();
    let mut host = hardware_sample().rows;
    host.iter_mut().for_each(|row| row.id = row.id.replace("cuda:0.device", "cpu.pinned"));
    results.rows.extend(host);
    let page = html(&results, None);
    assert!(section(&page, "directions").contains("18.0\u{a0}GB/s"));
    assert!(section(&page, "paths").contains("<svg"));
}

#[test]
fn text_of_a_results_file_is_escaped() {
    let mut results = hardware_sample();
    let evil = "<script>\"&";
    for row in &mut results.rows {
        row.id = row.id.replace("DirectCopy", evil).replace("cpu.pageable", &format!("cpu.{evil}"));
        row.reference = row.reference.as_ref().map(|_| evil.to_owned());
        (row.path, row.method) = (evil.to_owned(), evil.to_owned());
    }
    for choice in &mut results.choices {
        (choice.path, choice.method) =
            (choice.path.replace("cpu.pageable", &format!("cpu.{evil}")), evil.to_owned());
    }
    (results.hardware, results.command) = (evil.to_owned(), evil.to_owned());
    let [path, method, reason] = [evil; 3].map(str::to_owned);
    results.rejections = vec![Rejection { path, bytes: 1, method, reason }];
    assert_sound("escaped", &html(&results, Some(&hardware_sample())));
}

#[test]
fn break_points_and_rejections_are_in_the_chart_and_in_words() {
    let mut results = hardware_sample();
    let [from, to] = ["DirectCopy", "HostStaged"].map(str::to_owned);
    results.break_points =
        vec![BreakPoint { path: results.choices[0].path.clone(), bytes: 64 << 10, from, to }];
    let page = html(&results, None);
    let paths = section(&page, "paths");
    assert!(paths.contains("The choice changes at 64 KiB from DirectCopy to HostStaged"), "{paths}");
    // 10/8 at 4 KiB and 12/18 at 1 MiB: 35 % of the way in the logarithm.
    assert!(paths.contains("this run's times changes at 28.6 KiB"), "{paths}");
    assert!(paths.contains(">plan</text>") && paths.contains(">best</text>"));
    assert!(paths.contains("PeerToPeer at 4 KiB (one side is the host)"));
}

#[test]
fn names_of_upright_lines_have_room() {
    let mut results = hardware_sample();
    let [from, to] = ["DirectCopy", "HostStaged"].map(str::to_owned);
    let path = results.choices[0].path.clone();
    let at =
        |kib: u64| BreakPoint { path: path.clone(), bytes: kib << 10, from: from.clone(), to: to.clone() };
    results.break_points = [16, 64, 68, 72, 300].map(at).into();
    let page = html(&results, None);
    for chart in section(&page, "paths").split("<svg").skip(1) {
        assert_eq!(chart.matches("class=\"plan\"").count(), 5, "{chart}");
        let x = |text: &str| text.rsplit_once("x=\"").unwrap().1.split('"').next().unwrap().parse().unwrap();
        let places: Vec<f64> = chart.match_indices(">plan</text>").map(|(at, _)| x(&chart[..at])).collect();
        assert_eq!(places.len(), 3, "{chart}");
        assert!(places.windows(2).all(|pair| pair[1] >= pair[0] + 30.0), "{places:?}");
    }
}

#[test]
fn goal_of_zero_is_missed_by_no_percentage() {
    let mut results = hardware_sample();
    let row = results.rows.iter_mut().find(|row| row.met.is_some()).unwrap();
    (row.unit, row.value, row.p10, row.p90) = ("paths".to_owned(), 7.0, 7.0, 7.0);
    (row.goal, row.met) = (Some("<= 0 paths".to_owned()), Some(false));
    let page = html(&results, None);
    let goals = section(&page, "goals");
    assert!(goals.contains(">missed</td>") && !goals.contains("inf"), "{goals}");
}

#[test]
fn first_screen_is_the_verdict_and_the_command_is_last() {
    let mut results = hardware_sample();
    results.command = "transload-bench --only each,of,many".to_owned();
    let page = html(&results, None);
    assert!(page.find("--only each").unwrap() > page.find("<section id=\"rows\"").unwrap(), "{page}");
    assert!(summary(&results, None).contains("--only each"));
}

#[test]
fn sections_come_in_the_order_in_which_they_are_asked_for() {
    let page = html(&hardware_sample(), Some(&hardware_sample()));
    let ids = page.split("<section id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let order = ["verdict", "directions", "choices", "paths", "goals", "changes", "rows"];
    assert_eq!(ids.collect::<Vec<_>>(), order);
}

#[test]
fn page_has_what_phones_printers_keyboards_and_readers_need() {
    let page = html(&hardware_sample(), None);
    assert!(
        page.contains("<html lang=\"en\"")
            && page.contains("content=\"width=device-width, initial-scale=1\"")
    );
    assert!(STYLE.contains("@media print{") && STYLE.contains("@media(max-width:500px){"));
    // The first thing that a keyboard reaches leads to the verdict.
    let first = page.split("<a ").nth(1).unwrap();
    assert!(first.starts_with("class=\"skip\" href=\"#verdict\""), "{first}");
    assert!(rule(&page, ":focus-visible").contains("outline:"));
    for table in page.split("<table").take(page.matches("<table").count()) {
        let region = table.rsplit_once("<div").unwrap().1;
        assert!(region.contains("tabindex=\"0\"") && region.contains("aria-label="), "{region}");
    }
}

/// Returns the relative luminance of a colour such as `#15181c` or `#fff`, by WCAG 2.2.
fn luminance(colour: &str) -> f64 {
    let digits = colour.strip_prefix('#').unwrap();
    let width = digits.len() / 3;
    let part = |index: usize| {
        let digits = digits[index * width..(index + 1) * width].repeat(3 - width);
        let value = f64::from(u8::from_str_radix(&digits, 16).unwrap()) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
}

#[test]
fn text_and_lines_stand_out_on_light_and_on_dark() {
    let (light, rest) = STYLE.split_once("@media screen and (prefers-color-scheme:dark){").unwrap();
    let dark = rest.split_once("}}").unwrap().0;
    for palette in [light, dark] {
        let colour = |name: &str| {
            let (_, rest) = palette.split_once(&format!("--{name}:")).unwrap();
            luminance(rest.split([';', '}']).next().unwrap())
        };
        let contrast = |one: &str, other: &str| {
            let (one, other) = (colour(one), colour(other));
            (one.max(other) + 0.05) / (one.min(other) + 0.05)
        };
        for name in ["fg", "dim", "good", "bad", "d", "s", "p", "u", "z", "x"] {
            for background in ["bg", "soft"] {
                let found = contrast(name, background);
                assert!(found >= 4.5, "--{name} on --{background}: {found:.2}");
            }
        }
        assert!(contrast("fg", "warn") >= 4.5);
    }
}

#[test]
fn first_column_stays_while_a_table_scrolls() {
    let page = html(&hardware_sample(), None);
    let column = rule(&page, ".scroll th:first-child");
    assert!(column.contains("position:sticky;left:0") && column.contains("background:var(--bg)"), "{column}");
}

#[test]
fn row_is_in_a_chart_or_among_all_rows() {
    let mut results = hardware_sample();
    let of_method = results.rows[0].clone();
    assert!(of_method.id.starts_with("methods/"));
    let has =
        |results: &Results, id: &str| section(&html(results, None), "rows").contains(&format!(">{id}<"));
    assert!(!has(&results, &of_method.id));
    // None has room for these: a second run, a row with a goal, bytes that were not compared.
    let id = format!("{}#2", of_method.id);
    results.rows.push(ResultRow { id: id.clone(), ..of_method.clone() });
    assert!(has(&results, &id));
    results.rows[0] = ResultRow { goal: Some(">= 1 GB/s".to_owned()), met: Some(true), ..of_method.clone() };
    assert!(has(&results, &of_method.id));
    results.rows[0] = ResultRow { bytes: 4096, verified: false, ..of_method.clone() };
    assert!(has(&results, &of_method.id));
    // One size makes no chart.
    results.rows = vec![of_method.clone()];
    assert!(has(&results, &of_method.id));
}

/// Returns the points of the shape of a class in a chart.
fn points(chart: &str, class: &str) -> Vec<(f64, f64)> {
    let shape = chart.split('<').find(|shape| shape.contains(&format!("class=\"{class}\""))).unwrap();
    let text = shape.split_once("points=\"").unwrap().1.split_once('"').unwrap().0;
    let point = |point: &str| {
        let (x, y) = point.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    text.split(' ').map(point).collect()
}

/// Returns the declarations of a rule of the page's style.
fn rule<'a>(page: &'a str, selector: &str) -> &'a str {
    page.split_once(&format!("{selector}{{")).unwrap().1.split_once('}').unwrap().0
}

#[test]
fn chart_has_ranges_broken_references_and_a_thick_line_along_the_chosen_methods() {
    let mut results = hardware_sample();
    let with_reference = ResultRow {
        bytes: 4096,
        value: 8.0,
        unit: "us".to_owned(),
        reference_value: Some(7.0),
        ..results.rows[4].clone()
    };
    results.rows.push(with_reference);
    let page = html(&results, None);
    for chart in section(&page, "paths").split("<svg").skip(1) {
        let lines = ["line m-d", "line m-s"].map(|class| points(chart, class));
        for (line, band) in lines.iter().zip(["band f m-d", "band f m-s"]) {
            // From the one end of the range to the other, and back.
            let band = points(chart, band);
            assert_eq!((line.len(), band.len()), (2, 4), "{chart}");
            for (index, (x, y)) in line.iter().enumerate() {
                let ends = [band[index], band[3 - index]];
                assert!(ends.iter().all(|end| end.0 == *x), "{chart}");
                assert!((ends[0].1 - y) * (ends[1].1 - y) < 0.0, "the line lies within its range: {chart}");
            }
        }
        assert_eq!(points(chart, "chosen"), [lines[0][0], lines[1][1]], "{chart}");
        assert_eq!(points(chart, "ref").len(), 2, "{chart}");
        assert!(chart.contains("class=\"ref\" stroke-dasharray=\"7 4\""), "{chart}");
    }
    let width = |selector| -> f64 {
        let (_, width) = rule(&page, selector).split_once("stroke-width:").unwrap();
        width.split(';').next().unwrap().parse().unwrap()
    };
    assert!(width("svg .chosen") >= 3.0 * width("svg .line"));
    let visible = |selector| {
        !["display:none", "opacity:0;", "visibility"].iter().any(|it| rule(&page, selector).contains(it))
    };
    assert!(["svg .chosen", "svg .band", "svg .ref"].into_iter().all(visible));
    assert!(
        rule(&page, "svg .chosen").contains("stroke:var(") && rule(&page, "svg .ref").contains("stroke:var(")
    );
}

#[test]
fn wrong_choices_alone_are_hatched() {
    let mut results = hardware_sample();
    let hatched = |page: &str| section(page, "choices").matches(" wrong\"").count();
    assert_eq!(hatched(&html(&results, None)), 0);
    results.choices[1].method = "DirectCopy".to_owned();
    let page = html(&results, None);
    assert!(section(&page, "choices").contains("<td class=\"m-d wrong\" title=\"wrong: DirectCopy chosen"));
    assert_eq!(hatched(&page), 1);
    assert!(rule(&page, "td.wrong").contains("background-image:repeating-linear-gradient("));
}

#[test]
fn run_of_every_power_of_two_is_drawn_with_few_letters_and_intervals() {
    let mut results = hardware_sample();
    let (like, choice, rejection) =
        (results.rows[0].clone(), results.choices[0].clone(), results.rejections[0].clone());
    let sizes = || (8..=28).map(|power| 1_u64 << power);
    let id = |bytes| format!("methods/{}/DirectCopy/{bytes}", choice.path);
    results.rows = sizes().map(|bytes| ResultRow { id: id(bytes), bytes, ..like.clone() }).collect();
    results.choices = sizes().map(|bytes| Choice { bytes, ..choice.clone() }).collect();
    let rejected = sizes().filter(|bytes| *bytes <= 1024 || *bytes == 1 << 20);
    results.rejections = rejected.map(|bytes| Rejection { bytes, ..rejection.clone() }).collect();
    let page = html(&results, None);
    assert_sound("dense", &page);
    let paths = section(&page, "paths");
    assert!(paths.contains("PeerToPeer at 256 B to 1 KiB, 1 MiB (one side is the host)"), "{paths}");
    let [rate, _time] = paths.split("<svg").skip(1).collect::<Vec<_>>()[..] else { panic!("{paths}") };
    assert_eq!(rate.matches("class=\"mark\"").count(), 7);
    let line = rate.split_once("class=\"line m-d\" points=\"").unwrap().1.split_once('"').unwrap().0;
    assert_eq!(line.split(' ').count(), 21, "each size is a point of the line");
}

#[test]
fn every_record_is_drawn_soundly_and_short() {
    let records = records();
    let (_, newest) = records.iter().max_by(|a, b| a.0.cmp(&b.0)).unwrap();
    for (name, results) in &records {
        let page = html(results, Some(newest));
        assert_sound(name, &page);
        // Each of the 12 pages that it may fill in print holds some 60 lines, or 6 charts.
        let open = unfolded(&page);
        let lines = open.matches("<tr").count() + open.matches("<li").count();
        assert!(lines <= 400, "{name} has {lines} rows and items that are not folded");
        assert!(open.matches("<svg").count() <= 36, "{name}");
        assert!(page.len() <= 400_000, "{name} has {} bytes", page.len());
    }
}

#[test]
fn goal_that_the_spread_reaches_is_not_missed() {
    let mut results = hardware_sample();
    let row = results.rows.iter_mut().find(|row| row.met.is_some()).unwrap();
    (row.met, row.goal, row.ratio) = (Some(false), Some(">= 4 GB/s".to_owned()), None);
    (row.value, row.p10, row.p90) = (3.5, 3.0, 4.1);
    let near = summary(&results, None);
    assert!(near.contains("0 of 1 goals of speed are met") && near.contains("reaches the other"), "{near}");
    assert!(!near.contains("missed"), "{near}");
    let row = results.rows.iter_mut().find(|row| row.met.is_some()).unwrap();
    row.p90 = 3.9;
    assert!(summary(&results, None).contains("1 of 1 goals of speed are missed"));
}
