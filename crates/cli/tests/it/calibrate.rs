//! `transload calibrate`, and the runs that use what it keeps. Each process has the cache directory of a test.

use std::{fs, path::Path, process::Stdio};

use crate::{Ran, command, transload};

/// Few sizes: this measures nothing that counts.
const QUICK: [&str; 5] = ["calibrate", "--largest", "64KiB", "--budget", "60"];

fn cached(cache: &Path, arguments: &[&str]) -> Ran {
    Ran::new(command(arguments).env("XDG_CACHE_HOME", cache).output().unwrap())
}

/// Returns the files of the cache, other than locks.
fn files(cache: &Path) -> Vec<String> {
    let Ok(folder) = fs::read_dir(cache.join("transload")) else { return Vec::new() };
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.ends_with(".lock")).collect()
}

#[test]
fn calibration_is_kept_in_cache_and_used_by_later_runs() {
    let cache = tempfile::tempdir().unwrap();
    let plan = || cached(cache.path(), &["plan", "cpu", "cpu", "1MiB", "--json"]).json();
    assert_eq!(plan()["plan"]["basis"], "built_in");
    let text = cached(cache.path(), &QUICK).succeeded();
    for said in
        ["cpu/pageable → cpu/pageable", "FASTEST", "DirectCopy", "64 KiB", "± ", "kept in ", "measured in "]
    {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
    let found = files(cache.path());
    assert!(found.len() == 1 && found[0].starts_with("calibration-"), "{found:?}");
    assert_eq!(plan()["plan"]["basis"], "measured");
    let text = cached(cache.path(), &["plan", "cpu", "cpu", "1MiB", "--curve"]).succeeded();
    for said in ["measured here", "PREDICTED", "256 B", "1 GiB"] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
    // A damaged one is ignored and replaced.
    let file = cache.path().join("transload").join(&found[0]);
    fs::write(&file, "{").unwrap();
    assert_eq!(plan()["plan"]["basis"], "built_in");
    let json = cached(cache.path(), &[&QUICK[..], &["--json"]].concat()).json();
    assert_eq!(json["stored"], file.to_str().unwrap());
    assert_eq!(json["calibration"]["paths"][0]["methods"][0]["method"], "DirectCopy");
    assert_eq!(plan()["plan"]["basis"], "measured");
}

#[test]
fn printed_costs_are_set_again_and_come_before_measured_ones() {
    let cache = tempfile::tempdir().unwrap();
    cached(cache.path(), &QUICK).succeeded();
    let text = cached(cache.path(), &["costs"]).succeeded();
    for said in ["cpu/pageable → cpu/pageable", "DirectCopy", "measured here", "1 MiB"] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
    let mut json = cached(cache.path(), &["costs", "--json"]).json();
    let mine = json["costs"].as_array_mut().unwrap();
    mine.retain(|cost| cost["path"]["src"] == "cpu/pageable" && cost["path"]["dst"] == "cpu/pageable");
    assert_eq!(mine[0]["basis"], "measured");
    mine[0]["model"] =
        serde_json::json!([{ "bytes": 0, "seconds": 7.0 }, { "bytes": 1 << 30, "seconds": 7.0 }]);
    let file = cache.path().join("mine.json");
    fs::write(&file, json.to_string()).unwrap();
    let named = ["--costs", file.to_str().unwrap(), "plan", "cpu", "cpu", "4096", "--json"];
    let plan = cached(cache.path(), &named).json();
    assert_eq!((&plan["plan"]["basis"], &plan["plan"]["predicted_seconds"]), (&"user".into(), &7.0.into()));
    let method = r#"{"costs":[{"path":{"src":"cpu/pageable","dst":"cpu/pageable"},"method":"Fill","model":[{"bytes":0,"seconds":1},{"bytes":1,"seconds":1}]}]}"#;
    for (wrong, why) in [
        ("{", "has no costs"),
        (r#"{"costs":[{}]}"#, "missing field"),
        (method, "no method of transfers"),
        (&method.replace(":1}", ":-1}"), "not negative"),
    ] {
        fs::write(&file, wrong).unwrap();
        cached(cache.path(), &named).failed(2, &["mine.json", why]);
    }
    fs::remove_file(&file).unwrap();
    cached(cache.path(), &named).failed(2, &["cannot open", "mine.json"]);
}

#[test]
fn named_file_is_used_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("here.json");
    let named = ["--calibration", file.to_str().unwrap()];
    let plan = ["plan", "cpu", "cpu", "4096"];
    let refused = |exit, said: &str| {
        let valid = "`transload calibrate --calibration FILE` writes one";
        transload(&[&named[..], &plan].concat()).failed(exit, &["here.json", said, valid]);
    };
    refused(2, "there is no file");
    fs::create_dir(&file).unwrap();
    refused(2, "is no regular file");
    fs::remove_dir(&file).unwrap();
    fs::write(&file, "{").unwrap();
    refused(2, "is no calibration: EOF");
    let too_long = folder.path().join("long".repeat(100));
    for (missing, said) in [(file.join("below"), "there is no file"), (too_long, "longlong")] {
        transload(&[&["--calibration", missing.to_str().unwrap()], &plan[..]].concat()).failed(2, &[said]);
    }
    fs::remove_file(&file).unwrap();
    let text = transload(&[&named[..], &QUICK].concat()).succeeded();
    assert!(text.contains("kept in "), "{text}");
    assert!(transload(&[&named[..], &plan].concat()).succeeded().contains("measured here"));
    let other = fs::read_to_string(&file).unwrap().replacen("\"library\":\"", "\"library\":\"not ", 1);
    fs::write(&file, other).unwrap();
    refused(2, "it was measured with version \"not ");
    fs::remove_file(&file).unwrap();
    for (other, replaced) in [
        (&b"\x08\0\0\0\0\0\0\0{}"[..], false),
        (b"{", false),
        (b"{\"format\":\"pt\"}", false),
        (b"{\"format\":9,\"nodes\":[]}", false),
        (b"", true),
        (b"{\"format\":9", true),
        (b"{\"format\":9,\"key\":{\"library\":\"0.0.1\",\"co", true),
    ] {
        fs::write(&file, other).unwrap();
        let ran = transload(&[&named[..], &QUICK].concat());
        if replaced {
            ran.succeeded();
        } else {
            ran.failed(2, &["here.json is no calibration, and is not replaced"]);
            assert_eq!(fs::read(&file).unwrap(), other);
        }
    }
    transload(&["calibrate", "--budget", "0"]).failed(2, &["1..=3600"]);
    transload(&["calibrate", "--largest", "512"]).failed(2, &["valid are at least 1024"]);
}

#[test]
fn several_processes_at_once_leave_one_whole_file() {
    let cache = tempfile::tempdir().unwrap();
    let start = |_| {
        let mut one = command(&QUICK);
        one.env("XDG_CACHE_HOME", cache.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..4).map(start).collect();
    let ends = all.into_iter().map(|child| Ran::new(child.wait_with_output().unwrap()));
    let (done, busy): (Vec<_>, Vec<_>) = ends.partition(|ran| ran.code == Some(0));
    assert!(!done.is_empty());
    for ran in busy {
        ran.failed(3, &["another process calibrates this machine now"]);
    }
    assert_eq!(files(cache.path()).len(), 1);
    let plan = cached(cache.path(), &["plan", "cpu", "cpu", "1MiB"]).succeeded();
    assert!(plan.contains("measured here"), "{plan}");
}

#[test]
fn cache_is_locked_as_a_whole() {
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir(cache.path().join("transload")).unwrap();
    let lock = fs::File::create(cache.path().join("transload/calibration.lock")).unwrap();
    lock.lock().unwrap();
    cached(cache.path(), &QUICK).failed(3, &["another process calibrates this machine now"]);
    assert_eq!(files(cache.path()).len(), 0);
    // On Unix not by closing it: a program that another thread is starting has a copy of the handle.
    let _closing = lock.unlock();
    drop(lock);
    cached(cache.path(), &QUICK).succeeded();
}

/// A limit on the size of files acts as a full disk does: the write fails in the middle. A shell cannot start a program that an
/// emulator runs.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn full_disk_leaves_the_earlier_file() {
    let cache = tempfile::tempdir().unwrap();
    cached(cache.path(), &QUICK).succeeded();
    let file = cache.path().join("transload").join(&files(cache.path())[0]);
    let before = fs::read(&file).unwrap();
    let script = format!("trap '' XFSZ; ulimit -f 0; exec \"$0\" {}", QUICK.join(" "));
    let ran = std::process::Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_transload")])
        .env("TRANSLOAD_CUDA_DRIVER", "/nonexistent/libcuda.so.1")
        .env("XDG_CACHE_HOME", cache.path())
        .output()
        .unwrap();
    let text = Ran::new(ran).succeeded();
    assert!(text.contains("not kept: cannot write the calibration"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(files(cache.path()).len(), 1, "no part of the new one is left");
    // A named file is what the user wants.
    let named = [&["--calibration", "/proc/calibration.json"], &QUICK[..]].concat();
    cached(cache.path(), &named).failed(5, &["measured in", "the calibration was not kept"]);
}

#[cfg(all(feature = "sim", any(target_os = "linux", windows)))]
#[test]
fn simulated_devices_are_measured_and_only_kept_in_a_named_file() {
    let folder = tempfile::tempdir().unwrap();
    let simulated = [&["--simulate=1"], &QUICK[..]].concat();
    let text = cached(folder.path(), &simulated).succeeded();
    for said in ["simulated", "cpu/pinned → cuda:0/device", "ZeroCopy", "not kept: "] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
    assert_eq!(files(folder.path()).len(), 0);
    let file = folder.path().join("simulated.json");
    let named = ["--calibration", file.to_str().unwrap(), "--simulate=1"];
    let json = transload(&[&named[..], &QUICK, &["--json"]].concat()).json();
    assert_eq!((&json["simulated"], &json["calibration"]["simulated"]), (&true.into(), &true.into()));
    let json =
        transload(&[&named[..], &["plan", "cpu", "cuda:0", "1MiB", "--curve", "--json"]].concat()).json();
    assert_eq!(json["plan"]["basis"], "measured");
    assert_eq!(json["curve"].as_array().unwrap().len(), 12);
    assert!(json["crossings"].is_array());
}
