//! Compares the built-in cost table with the newest benchmark record: automatic choice takes the fastest measured
//! method.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;
use transload::{DeviceId, MemoryKind, Place, TransferMethod, TransferOptions, backend::TransferPath};
use transload_cuda_sim::harness;

use crate::setup::Setup;

/// Allowed excess of a choice over the fastest recorded method.
const TOLERANCE: f64 = 1.03;

/// Records of the same day, oldest first, as their names do not tell. Unlisted ones are newer.
const SAME_DAY: [&str; 6] = [
    "2026-11-21-1xH200-five-methods.json",
    "2026-11-21-2xH200-five-methods.json",
    "2026-11-21-2xH200-streams.json",
    "2026-11-21-2xH200-memory.json",
    "2026-11-21-2xH200-memory-and-streams.json",
    "2026-11-23-1xH200-limits.json",
];

/// Microseconds by path and size, then by method.
type Measured = BTreeMap<(String, u64), BTreeMap<String, f64>>;

/// The rows `methods/PATH/METHOD/BYTES`, of each path from its newest record; the mean of several runs.
fn on_record() -> Measured {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    let names =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut records: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
    let day = |name: &str| name.get(..10).map(str::to_owned);
    let position = |name: &str| SAME_DAY.iter().position(|known| *known == name).unwrap_or(usize::MAX);
    records.sort_by_key(|name| (day(name), position(name), name.clone()));
    let mut measured = Measured::new();
    for name in records {
        let record: Value = serde_json::from_slice(&std::fs::read(folder.join(&name)).unwrap()).unwrap();
        let mut runs: BTreeMap<(String, u64, String), Vec<f64>> = BTreeMap::new();
        for row in record["rows"].as_array().unwrap() {
            let id = row["id"].as_str().unwrap().split('#').next().unwrap();
            let ["methods", path, method, bytes] = id.split('/').collect::<Vec<_>>()[..] else { continue };
            let (bytes, value) = (bytes.parse::<u64>().unwrap(), row["value"].as_f64().unwrap());
            let micros = match row["unit"].as_str().unwrap() {
                "us" => value,
                "GB/s" => bytes as f64 / value / 1e3,
                unit => panic!("{name}: {id} is in {unit}"),
            };
            runs.entry((path.to_owned(), bytes, method.to_owned())).or_default().push(micros);
        }
        let paths: Vec<String> = runs.keys().map(|(path, ..)| path.clone()).collect();
        measured.retain(|(path, _), _| !paths.contains(path));
        for ((path, bytes, method), micros) in runs {
            let mean = micros.iter().sum::<f64>() / micros.len() as f64;
            measured.entry((path, bytes)).or_default().insert(method, mean);
        }
    }
    measured
}

/// `cpu.pageable-to-cuda:0.device` with the devices of the setup.
fn path(name: &str, setup: &Setup) -> TransferPath {
    let place = |text: &str| {
        let (device, kind) = text.split_once('.').unwrap();
        let device = match device {
            "cpu" => DeviceId::Cpu,
            "cuda:0" => setup.devices[0],
            "cuda:1" => setup.devices[1],
            other => panic!("a device of no machine on record: {other}"),
        };
        let kinds = [
            MemoryKind::Pageable,
            MemoryKind::Pinned,
            MemoryKind::Mapped,
            MemoryKind::Device,
            MemoryKind::Unified,
        ];
        let kind = kinds.into_iter().find(|known| known.to_string() == kind).unwrap();
        Place::new(device, kind)
    };
    let (src, dst) = name.split_once("-to-").unwrap();
    TransferPath::new(place(src), place(dst))
}

#[test]
fn built_in_choices_are_the_fastest_on_record() {
    let device = || harness::device_with(|builder| builder);
    let (Some(first), Some(second)) = (device(), device()) else { return };
    let setup = Setup::over([first, second]);
    let measured = on_record();
    let several = measured.values().filter(|methods| methods.len() > 1).count();
    assert!(several >= 40, "only {several} choices are on record");
    let mut misses = Vec::new();
    for ((name, bytes), methods) in &measured {
        let path = path(name, &setup);
        let plan = setup.manager.plan(path.src, path.dst, *bytes, &TransferOptions::new()).unwrap();
        assert!(plan.to_string().contains("built-in table, not measured here"), "{plan}");
        let fastest = methods.values().copied().fold(f64::INFINITY, f64::min);
        match methods.get(plan.method.name()) {
            Some(micros) if *micros <= fastest * TOLERANCE => {}
            taken => {
                misses.push(format!("{name}, {bytes} bytes: {} takes {taken:?} of {methods:?}", plan.method))
            }
        }
    }
    assert!(
        misses.is_empty(),
        "{} of {} choices are stale:\n{}",
        misses.len(),
        measured.len(),
        misses.join("\n")
    );
    setup.finish();
}

#[test]
fn built_in_predictions_are_near_the_record() {
    let device = || harness::device_with(|builder| builder);
    let (Some(first), Some(second)) = (device(), device()) else { return };
    let setup = Setup::over([first, second]);
    let mut misses = Vec::new();
    for ((name, bytes), methods) in on_record() {
        let path = path(&name, &setup);
        for method in TransferMethod::ALL {
            let Some(micros) = methods.get(method.name()) else { continue };
            let options = TransferOptions::new().only(method);
            let plan = setup.manager.plan(path.src, path.dst, bytes, &options).unwrap();
            let ratio = plan.predicted.as_secs_f64() * 1e6 / micros;
            if !(0.66..=1.5).contains(&ratio) {
                misses.push(format!(
                    "{name}, {bytes} bytes by {method}: {:?}, measured {micros:.1} µs",
                    plan.predicted
                ));
            }
        }
    }
    assert!(misses.is_empty(), "{}", misses.join("\n"));
    setup.finish();
}
