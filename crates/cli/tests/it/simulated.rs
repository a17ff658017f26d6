//! The commands on the software driver: all work, and all output is labelled simulated.

use crate::{Ran, file, transload};

#[track_caller]
fn simulated(arguments: &[&str]) -> Ran {
    let mut all = vec!["--simulate=2", "--simulate-memory=32MiB"];
    all.extend(arguments);
    let ran = transload(&all);
    let printed = if ran.code == Some(0) { &ran.stdout } else { &ran.stderr };
    assert!(printed.contains("simulated"), "not called simulated: {printed}");
    ran
}

#[test]
fn a_file_goes_to_a_device_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, (3 << 20) + 1);
    let text = simulated(&["copy", &file, "--to", "cuda:1", "--chunk", "256KiB"]).succeeded();
    for said in ["Simulated", "× 256 KiB of pinned memory", "13 chunks", "all 3145729 bytes came back equal"]
    {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
    for (extra, kind) in [("--pinned", "pinned"), ("--pageable", "pageable")] {
        let json = simulated(&["copy", &file, "--to", "cuda:0", "--chunk=100001", extra, "--json"]).json();
        assert_eq!(json["verified"], true);
        assert_eq!(json["simulated"], true);
        assert_eq!(json["report"]["simulated"], true);
        assert_eq!(json["report"]["staging"], kind);
        assert_eq!(json["report"]["chunks"], 32);
        let methods = json["report"]["methods"].as_array().unwrap();
        let moved: u64 = methods.iter().map(|method| method["bytes"].as_u64().unwrap()).sum();
        assert_eq!(moved, (3 << 20) + 1);
    }
    let text = simulated(&["copy", &file, "--to", "cuda:0/unified"]).succeeded();
    assert!(text.contains("came back equal"), "{text}");
    simulated(&["copy", &file, "--to", "cpu", "--pinned"]).succeeded();
}

#[test]
fn without_a_number_one_device_is_simulated() {
    let json = transload(&["devices", "--simulate", "--json"]).json();
    assert_eq!(json["simulated"], true);
    assert_eq!(json["devices"].as_array().unwrap().len(), 2);
    assert_eq!(json["devices"][1]["simulated"], true);
    assert_eq!(json["absent"].as_array().unwrap().len(), 0);
}

#[test]
fn devices_plan_and_bench_work() {
    let text = simulated(&["devices"]).succeeded();
    assert!(text.contains("cuda:1") && text.contains("32 MiB"), "{text}");

    let text = simulated(&["plan", "cpu:pinned", "cuda:0", "256MiB"]).succeeded();
    assert!(text.contains("cpu/pinned → cuda:0/device") && text.contains("GB/s"), "{text}");
    let text = simulated(&["plan", "cpu", "cuda:0", "256MiB"]).succeeded();
    assert!(text.contains("HostStaged") && text.contains("uploads by 1024 KiB"), "{text}");
    let json = simulated(&["plan", "cuda:0", "cpu", "1MiB", "--json"]).json();
    assert_eq!((&json["plan"]["lane"], &json["plan"]["simulated"]), (&"cuda:0".into(), &true.into()));

    let json = simulated(&["bench", "--quick", "--json"]).json();
    let rows = json["rows"].as_array().unwrap();
    // Two devices, three sizes, two kinds, two directions.
    assert_eq!(rows.len(), 24);
    assert!(rows.iter().all(|row| row["simulated"] == true && row["verified"] == true));
    let text = simulated(&["bench", "--quick"]).succeeded();
    assert!(text.contains("verified, simulated"), "{text}");
}

#[test]
fn file_larger_than_device_memory_is_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, (32 << 20) + 1);
    simulated(&["copy", &file, "--to", "cuda:0"])
        .failed(4, &["was not copied to cuda:0", "33554433 bytes requested", "free of 33554432"]);
}

#[test]
fn unknown_ordinal_lists_present_ones() {
    simulated(&["plan", "cpu", "cuda:2", "1MiB"])
        .failed(3, &["there is no device cuda:2", "there are cpu, cuda:0, cuda:1"]);
}

#[test]
fn absurd_simulations_are_refused() {
    transload(&["devices", "--simulate=0"]).failed(2, &["1..=64"]);
    transload(&["devices", "--simulate=65"]).failed(2, &["1..=64"]);
    transload(&["devices", "--simulate-memory=1MiB"]).failed(2, &["needs --simulate"]);
}

#[test]
fn bench_without_memory_for_any_size_is_out_of_memory() {
    transload(&["--simulate", "--simulate-memory=4KiB", "bench", "--quick"])
        .failed(4, &["nothing was measured", "4 KiB of 4096 free bytes on cuda:0"]);
}
