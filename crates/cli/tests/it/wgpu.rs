//! wgpu's devices, such as Mesa's lavapipe. Without any the reason is printed.

use crate::{Ran, command, file, transload};

/// Runs the program with wgpu's devices; some drivers complain without a folder of the user.
fn with_wgpu(folder: &tempfile::TempDir, arguments: &[&str]) -> Ran {
    let all = [arguments, &["--wgpu=software"]].concat();
    Ran::new(command(&all).env("XDG_RUNTIME_DIR", folder.path()).output().unwrap())
}

#[test]
fn wgpu_devices_are_listed_planned_and_copied_to() {
    let folder = tempfile::tempdir().unwrap();
    let json = with_wgpu(&folder, &["devices", "--json"]).json();
    let devices = json["devices"].as_array().unwrap();
    let Some(found) = devices.iter().find(|device| device["id"] == "wgpu:0") else {
        let reason = json["absent"].as_array().unwrap().iter().find(|family| family["family"] == "wgpu");
        assert!(std::env::var_os("TRANSLOAD_TEST_NEEDS_VULKAN").is_none(), "{reason:?}");
        return println!("skipped: {}", reason.unwrap()["reason"]);
    };
    let (name, limit) =
        (found["name"].as_str().unwrap(), found["largest_allocation_bytes"].as_u64().unwrap());
    let text = with_wgpu(&folder, &["devices"]).succeeded();
    assert!(text.contains("wgpu:0") && text.contains(name), "{text}");

    // Of sizes that the device allocates.
    let curve = with_wgpu(&folder, &["plan", "cpu", "wgpu:0", "1MiB", "--curve", "--json"]).json();
    let sizes = curve["curve"].as_array().unwrap().iter().map(|plan| plan["bytes"].as_u64().unwrap());
    assert!(sizes.clone().count() > 8 && sizes.max() <= Some(limit), "{curve}");
    assert!(curve["crossings"].is_array(), "{curve}");
    let beyond = format!("{}B", limit + 1);
    with_wgpu(&folder, &["plan", "cpu", "wgpu:0", &beyond]).failed(2, &["at most", &limit.to_string()]);

    let file = file(&folder, (3 << 20) + 1);
    let text = with_wgpu(&folder, &["copy", &file, "--to", "wgpu:0"]).succeeded();
    for said in [name, "all 3145729 bytes came back equal"] {
        assert!(text.contains(said), "`{said}` is not said in: {text}");
    }
}

#[test]
fn wgpu_device_without_the_option_names_it() {
    transload(&["plan", "cpu", "wgpu:0", "1"]).failed(3, &["--wgpu"]);
}
