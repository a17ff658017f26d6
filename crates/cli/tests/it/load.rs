//! `transload load` on the host, on the software driver, and with invalid files.

use std::{fs, path::Path};

use crate::transload;

/// A header with its length, followed by data.
fn write(path: &Path, header: &str, data: &[u8]) -> String {
    let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
    fs::write(path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Two tensors: 3 bytes `abc`, and 2 × 300 000 halves.
fn model(folder: &tempfile::TempDir) -> String {
    let header = r#"{"__metadata__":{"format":"pt"},"abc":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"F16","shape":[2,300000],"data_offsets":[3,1200003]}}"#;
    let mut data = b"abc".to_vec();
    data.extend((0..1_200_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8));
    write(&folder.path().join("model.safetensors"), header, &data)
}

#[test]
fn a_model_is_loaded_to_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder);
    let text =
        transload(&["load", &file, "--to", "cpu", "--chunk", "100000", "--verify", "--list"]).succeeded();
    for said in [
        "2 tensors, 1.1 MiB (1200003 bytes)",
        "cpu/pageable",
        "1 allocation",
        "nothing: read straight to its place, in 13 chunks",
        "wall clock",
        "of all 2 tensors bytes came back equal",
        "TENSOR",
        "[2, 300000]",
    ] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }

    let json = transload(&["load", &file, "--to", "cpu", "--checksum", "--json", "--list"]).json();
    assert_eq!((&json["command"], &json["simulated"]), (&"load".into(), &false.into()));
    assert_eq!((&json["report"]["bytes"], &json["report"]["tensors"]), (&1_200_003.into(), &2.into()));
    assert_eq!(json["list"][0]["checksum"], "78af5f94892f3950", "XXH3 of `abc`");
    assert_eq!(json["list"][1]["dtype"], "F16");
    assert_eq!(json["metadata"]["format"], "pt");
    assert!(json["wall_bytes_per_second"].as_f64().unwrap() > 0.0);

    let text = transload(&["load", &file, "--to", "cpu"]).succeeded();
    assert!(text.contains("not asked for; --checksum") && !text.contains("TENSOR"), "{text}");
}

#[test]
fn invalid_models_are_refused_with_cause() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let load = || transload(&["load", path.to_str().unwrap(), "--to", "cpu", "--checksum"]);
    load().failed(2, &["cannot open", "regular file is needed"]);
    fs::write(&path, b"").unwrap();
    load().failed(2, &["is not a valid safetensors file: it has 0 bytes"]);
    fs::write(&path, b"a text and no model").unwrap();
    load().failed(
        2,
        &["was not loaded to cpu/pageable", "is not a valid safetensors file", "at most 100000000"],
    );
    write(&path, r#"{"x":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}}"#, b"x");
    load().failed(2, &["unknown variant `F7`, expected one of `BOOL`"]);
    write(&path, r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, b"1234567");
    load().failed(2, &["but the file has 7: it is truncated"]);
    write(&path, r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}"#, b"1234567");
    load().failed(2, &["has 8 bytes, but its offsets 0 to 7 hold 7; both must agree"]);
    transload(&["load", folder.path().to_str().unwrap(), "--to", "cpu"]).failed(2, &["is a directory"]);
}

#[test]
fn invalid_places_are_refused_with_valid_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder);
    transload(&["load", &file, "--to", "cuda:0"]).failed(3, &["there is no device cuda:0"]);
    transload(&["load", &file]).failed(2, &["--to"]);
    transload(&["load", &file, "--to", "cpu", "--kind", "device"])
        .failed(2, &["--kind", "expected cpu/pageable"]);
    transload(&["load", &file, "--to", "cpu", "--kind", "fast"]).failed(2, &["expected pageable, pinned"]);
    transload(&["load", &file, "--to", "cpu", "--chunk", "0"]).failed(2, &["a size is"]);
    let text = transload(&["load", "--help"]).succeeded();
    assert!(text.contains("Exit codes:") && text.contains("--checksum"), "{text}");
}

/// A sparse file: it has a length but no content.
#[cfg(target_os = "linux")]
#[test]
fn model_larger_than_host_memory_is_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let header = r#"{"x":{"dtype":"U8","shape":[8796093022208],"data_offsets":[0,8796093022208]}}"#;
    let file = write(&path, header, b"");
    let longer = fs::File::options().write(true).open(&path).unwrap();
    if longer.set_len(8 + header.len() as u64 + (1 << 43)).is_err() {
        println!("skipped: this file system has no file of that size");
        return;
    }
    transload(&["load", &file, "--to", "cpu"]).failed(4, &["8796093022208 bytes requested", " free of "]);
}

#[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
#[test]
fn model_on_simulated_device_is_labelled_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let file = model(&folder);
    let simulated =
        ["--simulate", "--simulate-memory=2MiB", "load", &file, "--to", "cuda:0", "--chunk=64KiB"];
    let with = |extra: &[&'static str]| transload(&[&simulated[..], extra].concat());
    let text = with(&["--checksum", "--verify", "--list"]).succeeded();
    for said in [
        "simulated: a software driver",
        "cuda:0/device, Simulated",
        "of pinned memory",
        "checksums and bytes",
    ] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
    let clock = text.lines().find(|line| line.starts_with("wall clock")).unwrap();
    assert!(clock.contains("simulated"), "{clock}");

    let json = with(&["--kind", "unified", "--checksum", "--json"]).json();
    assert_eq!((&json["simulated"], &json["report"]["simulated"]), (&true.into(), &true.into()));
    assert_eq!(json["report"]["place"], "cuda:0/unified");
    assert!(json.get("list").is_none());
    let small = ["--simulate", "--simulate-memory=1MiB", "load", &file, "--to", "cuda:0"];
    transload(&small).failed(4, &["(simulated)", "1200256 bytes requested, 1048576 free of 1048576"]);
}
