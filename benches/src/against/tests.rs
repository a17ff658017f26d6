//! Synthetic runs with planted changes, noise of a process, drift of the machine and slow processes.
//!
//! The noise is that of an H200: two processes of one call differed by up to 0.2 % at 16 MiB, and by 2 % at 4 KiB
//! (docs/benchmarks/2026-11-21-1xH200-five-methods.json).

use clap::Parser as _;

use super::*;

const ROWS: usize = 20;
const SEEDS: u64 = 10;
/// Standard deviations between processes of one program, as shares: of the rate at 16 MiB, and of short times.
const NOISE: [f64; 2] = [0.003, 0.015];
/// Nanoseconds of a submission.
const SUBMISSION: f64 = 3_300.0;

/// A number from 0 to 1, the same in every run of a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal, with the deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

fn options(more: &[&str]) -> Options {
    Options::parse_from([&["transload-bench", "--against", "old"], more].concat())
}

/// Returns a run whose first row is a rate, and the others times. `change` is what the program makes of a time in ns.
fn synthetic(random: &mut Random, drift: f64, change: impl Fn(usize, f64) -> f64) -> Run {
    // One process in twenty is slow altogether.
    let slow = if random.next() < 0.05 { 1.02 } else { 1.0 };
    let rows = (0..ROWS).map(|index| {
        let noise = NOISE[usize::from(index > 0)];
        let time = change(index, SUBMISSION * index.max(1) as f64);
        let time = time * (1.0 + noise * random.normal()) * slow * drift;
        let (unit, value) = if index == 0 { ("GB/s", 1e6 / time) } else { ("ns", time) };
        Sample { id: format!("row/{index}"), unit: unit.to_owned(), value, ..Sample::default() }
    });
    Run {
        simulated: false,
        hardware: "a device".to_owned(),
        driver: None,
        cuda: None,
        cpu: "a processor".to_owned(),
        date: "2026-11-27".to_owned(),
        rows: rows.collect(),
    }
}

/// Compares two programs of which the new one makes `change` of the time of each row.
fn compared(seed: u64, change: impl Fn(usize, f64) -> f64) -> Comparison {
    let (options, mut random, mut turn) = (options(&[]), Random(seed), 0.0);
    let measure = |is_new| {
        turn += 1.0;
        // The machine gets 1 % slower meanwhile.
        let drift = 1.0 + 0.0007 * turn;
        Ok(synthetic(&mut random, drift, |index, time| if is_new { change(index, time) } else { time }))
    };
    let [old, new] = in_turns(&options, measure).unwrap();
    compare(&options, ["old", "new"].map(str::to_owned), &old, &new).unwrap()
}

fn ids(comparison: &Comparison, verdict: Verdict) -> Vec<&str> {
    comparison.rows.iter().filter(|row| row.verdict == verdict).map(|row| row.id.as_str()).collect()
}

#[test]
fn one_program_against_itself_is_clean() {
    let is_clean =
        |seed: &u64| compared(*seed, |_, time| time).rows.iter().all(|row| row.verdict == Verdict::Same);
    assert_eq!((0..SEEDS).filter(is_clean).count() as u64, SEEDS);
}

#[test]
fn planted_share_and_planted_nanoseconds_are_found_alone() {
    // 3 % of a rate, and 300 ns of a submission.
    let planted = |index, time| match index {
        0 => time * 1.03,
        1 => time + 300.0,
        _ => time,
    };
    let are_found = |seed: &u64| {
        let comparison = compared(*seed, planted);
        let mut worse = ids(&comparison, Verdict::Worse);
        worse.sort_unstable();
        worse == ["row/0", "row/1"] && ids(&comparison, Verdict::Better).is_empty()
    };
    assert_eq!((0..SEEDS).filter(are_found).count() as u64, SEEDS);
}

#[test]
fn change_smaller_than_what_processes_differ_by_is_found_beside_its_reference() {
    // In one process in two, each call takes 1 µs more, as on an H200 (docs/benchmarks/README.md).
    let found = |seed: u64, planted: f64| {
        let (options, mut random) = (options(&[]), Random(seed));
        let measure = |is_new| {
            let mode = if random.next() < 0.5 { 1_000.0 } else { 0.0 };
            let mut run = synthetic(&mut random, 1.0, |_, time| time);
            let change = if is_new { planted } else { 0.0 };
            for row in run.rows.iter_mut().skip(1) {
                row.value = row.value / 10.0 + mode + change;
                row.reference_value = Some(1_600.0 + mode);
            }
            Ok(run)
        };
        let [old, new] = in_turns(&options, measure).unwrap();
        let comparison = compare(&options, ["old", "new"].map(str::to_owned), &old, &new).unwrap();
        ids(&comparison, Verdict::Worse).contains(&"row/10")
    };
    assert_eq!((0..SEEDS).filter(|seed| found(*seed, 300.0)).count() as u64, SEEDS);
    assert_eq!((0..SEEDS).filter(|seed| found(*seed, 0.0)).count(), 0);
}

/// Compares a row of 100 and its reference of 50 with what they are now, in seven processes each with noise of 1.
fn beside_reference(own_reference: bool, now: (f64, f64)) -> Comparison {
    let of = |(value, reference): (f64, f64)| -> Vec<Run> {
        let run = |process: i32| {
            let mut run = synthetic(&mut Random(1), 1.0, |_, time| time);
            let noise = f64::from(process % 3 - 1);
            let (id, unit) = ("urgent/pinned/beside-low".to_owned(), "us".to_owned());
            let (reference, reference_value) = (Some("idle".to_owned()), Some(reference + noise));
            let value = value + noise;
            run.rows =
                vec![Sample { id, unit, value, reference_value, reference, own_reference, goal: None }];
            run
        };
        (0..7).map(run).collect()
    };
    compare(&options(&[]), ["old", "new"].map(str::to_owned), &of((100.0, 50.0)), &of(now)).unwrap()
}

#[test]
fn library_that_slows_down_a_row_and_its_own_reference_is_worse() {
    let (row, reference) = ("urgent/pinned/beside-low", "urgent/pinned/beside-low: idle");
    let both = beside_reference(true, (130.0, 80.0));
    let mut worse = ids(&both, Verdict::Worse);
    worse.sort_unstable();
    assert_eq!(worse, [row, reference]);
    assert!(both.rows.iter().all(|row| !row.adjusted));
    assert_eq!(ids(&beside_reference(true, (100.0, 80.0)), Verdict::Worse), [reference]);
    // What a reference of the driver differs by is the process's.
    assert_eq!(ids(&beside_reference(false, (130.0, 80.0)), Verdict::Worse), Vec::<&str>::new());
}

#[test]
fn improvement_is_no_regression() {
    let comparison = compared(3, |index, time| if index == 0 { time * 0.9 } else { time });
    assert_eq!(
        (ids(&comparison, Verdict::Better), ids(&comparison, Verdict::Worse)),
        (vec!["row/0"], vec![])
    );
    let ratio = comparison.rows[0].ratio.unwrap()[0];
    assert!((1.08..1.14).contains(&ratio), "{ratio}");
}

#[test]
fn programs_run_in_turns_and_more_often_for_more_rows() {
    let mut order = Vec::new();
    let runs = in_turns(&options(&[]), |is_new| {
        order.push(is_new);
        let mut run = synthetic(&mut Random(1), 1.0, |_, time| time);
        run.rows = (0..3_000).map(|index| Sample { id: index.to_string(), ..run.rows[0].clone() }).collect();
        Ok(run)
    });
    assert_eq!(order[..8], [false, true, true, false, false, true, true, false]);
    assert_eq!(runs.unwrap().map(|runs| runs.len()), [14, 14]);
}

#[test]
fn rows_of_one_program_are_named_and_rows_of_the_driver_are_left_out() {
    let run = |ids: &[&str]| {
        let mut run = synthetic(&mut Random(1), 1.0, |_, time| time);
        run.rows = ids.iter().map(|id| Sample { id: (*id).to_owned(), ..run.rows[0].clone() }).collect();
        run
    };
    let [old, new] = [["a", "b", "reference/a/1", "a/raw-list"], ["a", "c", "reference/a/1", "a#2"]];
    let names = || ["old", "new"].map(str::to_owned);
    let found = compare(&options(&[]), names(), &[run(&old)], &[run(&new)]).unwrap();
    assert_eq!(
        (found.gone.clone(), found.added.clone(), found.rows.len()),
        (vec!["b".to_owned()], vec!["c".to_owned()], 1)
    );
    assert!(found.text().contains("in the new program alone: 1 rows: c"), "{}", found.text());
    assert!(found.is_worse() && found.text().contains("better: 0; missing: 1"), "{}", found.text());
    assert!(compare(&options(&["--rows", "x"]), names(), &[run(&old)], &[run(&new)]).is_err());
}

#[test]
fn row_is_compared_whatever_method_was_chosen_and_missing_from_one_process_is_missing() {
    let run = |rows: &[(&str, f64)]| {
        let mut run = synthetic(&mut Random(1), 1.0, |_, time| time);
        let row =
            |(id, value): &(&str, f64)| Sample { id: (*id).to_owned(), value: *value, ..run.rows[1].clone() };
        run.rows = rows.iter().map(row).collect();
        run
    };
    let path = "cpu.pageable-to-cuda:0.device";
    let [then, now] = ["DirectCopy", "HostStaged"].map(|method| format!("submit/{path}/{method}/4096"));
    let asked = format!("methods/{path}/DirectCopy/4096");
    let wrong = format!("choice/wrong/{path}/4096/HostStaged");
    let old: Vec<Run> = (0..7).map(|_| run(&[(&then, 1.0), (&asked, 1.0), (&wrong, 1.0)])).collect();
    let mut new: Vec<Run> = (0..7).map(|_| run(&[(&now, 2.0), (&asked, 1.0)])).collect();
    let names = || ["old", "new"].map(str::to_owned);
    let found = compare(&options(&[]), names(), &old, &new).unwrap();
    assert_eq!((ids(&found, Verdict::Worse), found.gone.clone()), (vec![now.as_str()], vec![]));
    assert!(found.text().contains(&format!("with another method chosen: 1 rows: {now} ({then} then)")));
    new[3].rows.pop();
    assert_eq!(compare(&options(&[]), names(), &old, &new).unwrap().gone, [asked]);
}

#[test]
fn rows_of_the_library_next_to_raw_ones_are_compared() {
    let mut run = synthetic(&mut Random(1), 1.0, |_, time| time);
    for (id, is_ours) in [
        ("wgpu/0/raw-up/4096/pageable", true),
        ("wgpu/0/memcpy/4096/mapped", true),
        ("many/up/4096/raw-list", false),
    ] {
        run.rows[1].id = id.to_owned();
        assert_eq!(is_compared(&run.rows[1], &options(&[])), is_ours, "{id}");
    }
    #[cfg(feature = "wgpu")]
    assert!(arguments(&options(&["--software-adapters"])).contains(&"--software-adapters".to_owned()));
}

#[test]
fn row_with_another_unit_is_another_row() {
    let run = |unit: &str| {
        let mut run = synthetic(&mut Random(1), 1.0, |_, time| time);
        run.rows.truncate(2);
        run.rows[1].unit = unit.to_owned();
        run
    };
    let [old, new] = ["us", "ms"].map(|unit| (0..7).map(|_| run(unit)).collect::<Vec<_>>());
    let found = compare(&options(&[]), ["old", "new"].map(str::to_owned), &old, &new).unwrap();
    let other = vec!["row/1".to_owned()];
    assert_eq!((found.gone, found.added, found.rows.len()), (other.clone(), other, 1));
}

#[test]
fn markdown_has_the_verdict_and_the_changed_rows() {
    let text = compared(5, |index, time| if index == 7 { time * 2.0 } else { time }).markdown();
    assert!(text.contains("**worse by 1 % or more: 1 of 20 rows; better: 0**"), "{text}");
    let row = text.lines().find(|line| line.starts_with("| worse | row/7 | ")).unwrap();
    assert_eq!(row.matches(" | ").count(), 7, "{row}");
    assert!(!text.contains("row/8"), "{text}");
}

#[test]
fn folder_stands_for_its_program_and_the_commit_of_its_manifest() {
    let folder = env::temp_dir().join(format!("transload-against-test-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let absent = program(&folder).unwrap_err().to_string();
    assert!(absent.contains("name one, or a folder that has it"), "{absent}");
    let file = folder.join(format!("transload-bench{}", env::consts::EXE_SUFFIX));
    fs::write(&file, "").unwrap();
    let found = program(&folder).unwrap();
    assert_eq!(found, program(&file).unwrap());
    assert_eq!(described(&found), found.display().to_string());
    fs::write(folder.join("manifest.json"), r#"{"commit": "0123abcd", "modified": true}"#).unwrap();
    assert_eq!(described(&found), format!("{} (commit 0123abcd, with changes)", found.display()));
    fs::remove_dir_all(&folder).unwrap();
}
