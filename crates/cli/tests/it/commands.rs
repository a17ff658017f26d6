//! Each command on a machine without a GPU, as text and as JSON.

use crate::{file, transload};

const LIBRARY: &str = "/nonexistent/libcuda.so.1";

fn looked_for() -> &'static str {
    if cfg!(all(feature = "cuda", any(target_os = "linux", windows))) {
        LIBRARY
    } else {
        "no driver was looked for"
    }
}

#[test]
fn devices_lists_host_and_reason_for_missing_cuda() {
    let text = transload(&["devices"]).succeeded();
    assert!(text.starts_with("DEVICE"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("cpu ") && line.contains("pageable")), "{text}");
    assert!(text.contains("\nno cuda: ") && text.contains(looked_for()), "{text}");
    assert!(!text.contains("simulated"), "{text}");

    let json = transload(&["devices", "--json"]).json();
    assert_eq!(json["command"], "devices");
    assert_eq!(json["simulated"], false);
    assert_eq!(json["devices"][0]["id"], "cpu");
    assert_eq!(json["devices"].as_array().unwrap().len(), 1);
    assert_eq!(json["absent"][0]["family"], "cuda");
    assert!(json["absent"][0]["reason"].as_str().unwrap().contains(looked_for()));
    let kind = if looked_for() == LIBRARY { "no_driver" } else { "unsupported" };
    assert_eq!(json["absent"][0]["kind"], kind);
}

#[test]
fn plan_prints_method_rate_basis_and_rejections() {
    let text = transload(&["plan", "cpu", "cpu", "256MiB"]).succeeded();
    for said in [
        "cpu/pageable → cpu/pageable, 256 MiB (268435456 bytes)",
        "DirectCopy",
        "a queue of cpu",
        "GB/s",
        "built-in table, not measured here",
        "rejected   PeerToPeer: both sides are on the host",
    ] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }

    let json = transload(&["--json", "plan", "cpu:pageable", "cpu/pageable", "4096"]).json();
    assert_eq!(json["plan"]["path"]["src"], "cpu/pageable");
    assert_eq!(json["plan"]["bytes"], 4096);
    assert_eq!(json["plan"]["method"], "DirectCopy");
    assert_eq!(json["plan"]["rejected"].as_array().unwrap().len(), 4);
    assert!(json["plan"]["predicted_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(json["plan"]["basis"], "built_in");
}

#[test]
fn plan_with_unsupported_memory_lists_supported() {
    let said = &["offers pinned memory", "registered: cpu (pageable)"];
    transload(&["plan", "cpu", "cpu:pinned", "4096"]).failed(2, said);
}

#[test]
fn plan_to_absent_gpu_lists_searched_drivers() {
    for arguments in [["plan", "cpu:pinned", "cuda:0", "256MiB"], ["plan", "cuda:0", "cpu", "256MiB"]] {
        transload(&arguments).failed(3, &["there is no device cuda:0", looked_for()]);
    }
    transload(&["plan", "cpu", "wgpu:0", "1", "--json"]).failed(3, &["no wgpu backend", "there are cpu"]);
}

#[test]
fn copy_within_the_host_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, (3 << 20) + 1);
    for (arguments, through) in [
        (&[][..], "read straight to its place, in 4 chunks"),
        (&["--pageable"][..], "× 1 MiB of pageable memory"),
    ] {
        let all = [&["copy", &file, "--to", "cpu", "--chunk", "1MiB"], arguments].concat();
        let text = transload(&all).succeeded();
        for said in ["3145729", "by wall clock", through, "all 3145729 bytes came back equal"] {
            assert!(text.contains(said), "`{said}` is not said in: {text}");
        }
    }
    let json = transload(&["copy", &file, "--to", "cpu", "--chunk", "65537B", "--json"]).json();
    assert_eq!(json["verified"], true);
    assert_eq!(json["report"]["bytes"], (3 << 20) + 1);
    assert_eq!(json["report"]["chunks"], 48);
    for leg in ["up", "down"] {
        assert!(json[leg]["wall_bytes_per_second"].as_f64().unwrap() > 0.0, "{json}");
    }
}

#[test]
fn copy_of_one_byte_file_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, 1);
    transload(&["copy", &file, "--to", "cpu"]).succeeded();
}

#[test]
fn bench_measures_and_compares() {
    let text = transload(&["bench", "--quick"]).succeeded();
    assert!(text.contains("P50") && text.contains("verified") && text.contains("wall clock"), "{text}");

    let json = transload(&["bench", "--quick", "--json"]).json();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!((&row["verified"], &row["simulated"]), (&true.into(), &false.into()));
        let [p10, p50, p90] = ["p10", "p50", "p90"].map(|name| row[name].as_f64().unwrap());
        assert!(0.0 < p10 && p10 <= p50 && p50 <= p90);
    }
}

#[test]
fn help_lists_exit_codes() {
    for arguments in [&["--help"][..], &["copy", "--help"], &["plan", "--help"], &["bench", "--help"]] {
        let text = transload(arguments).succeeded();
        assert!(text.contains("Exit codes:") && text.contains("4  out of memory"), "{text}");
    }
}

#[test]
fn sizes_are_whole_numbers_with_binary_or_decimal_units() {
    for (text, bytes) in [
        ("1", 1),
        ("4096", 4096),
        ("64KiB", 65_536),
        ("256 MiB", 256 << 20),
        ("1gb", 1_000_000_000),
        ("7B", 7),
    ] {
        assert_eq!(
            transload(&["plan", "cpu", "cpu", text, "--json"]).json()["plan"]["bytes"],
            bytes,
            "{text}"
        );
    }
    let wrong =
        ["", "KiB", "1.5GiB", "+1", "4K", "0x10", "1 2", "0", "0MiB", "99999999999999999999", "20000000TiB"];
    for text in wrong {
        transload(&["plan", "cpu", "cpu", text]).failed(2, &["a size is"]);
    }
}

#[test]
fn place_without_kind_uses_default_of_its_device() {
    for (text, printed) in
        [("cpu", "cpu/pageable"), ("cpu/pageable", "cpu/pageable"), ("cpu:pageable", "cpu/pageable")]
    {
        assert_eq!(transload(&["plan", text, "cpu", "1", "--json"]).json()["plan"]["path"]["src"], printed);
    }
    // Parsed correctly, but absent.
    for (text, device) in
        [("cuda:3", "cuda:3"), ("cuda", "cuda:0"), ("cuda:0/unified", "cuda:0"), ("wgpu:1", "wgpu:1")]
    {
        transload(&["plan", text, "cpu", "1"]).failed(3, &[&format!("there is no device {device}")]);
    }
    let wrong = [
        "",
        "gpu",
        "cpu:1",
        "cpu/device",
        "cpu:",
        "cuda:0/pinned",
        "cuda:0/",
        "/device",
        "cuda:x",
        "cpu/pinned/x",
    ];
    for text in wrong {
        transload(&["plan", text, "cpu", "1"]).failed(2, &["expected"]);
    }
}
