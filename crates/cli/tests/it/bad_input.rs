//! Invalid input: exit code, a message that names valid input, and an empty stdout.

use std::fs;

use crate::{file, transload};

#[test]
fn wrong_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let copy = |file: &str| transload(&["copy", file, "--to", "cpu"]);
    copy(&path("missing")).failed(2, &["cannot open", "missing", "regular file is needed"]);
    copy(folder.path().to_str().unwrap()).failed(2, &["is a directory; a regular file is needed"]);
    fs::write(path("empty"), b"").unwrap();
    copy(&path("empty")).failed(2, &["is empty; valid: a file of 1 to "]);
    for missing in ["empty/below", &"long".repeat(100)] {
        let file = path(missing);
        copy(&file).failed(2, &["cannot open", "regular file is needed"]);
        transload(&["--costs", &file, "costs"]).failed(2, &["cannot open", "regular file is needed"]);
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_without_waiting_for_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let fifo = fifo.to_str().unwrap();
    let said = &["is a pipe, a device or a socket; a regular file is needed"];
    if crate::has("mkfifo") {
        assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
        transload(&["copy", fifo, "--to", "cpu"]).failed(2, said);
    }
    transload(&["copy", "/dev/zero", "--to", "cpu"]).failed(2, said);
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, 16);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        println!("skipped: needs a user who may not read everything");
        return;
    }
    transload(&["copy", &path, "--to", "cpu"]).failed(2, &["cannot open", "readable regular file is needed"]);
}

/// A sparse file: it has a length but no content.
#[cfg(target_os = "linux")]
#[test]
fn file_larger_than_host_memory_is_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let size = 1_u64 << 43;
    if fs::File::create(&path).unwrap().set_len(size).is_err() {
        println!("skipped: this file system has no file of {size} bytes");
        return;
    }
    transload(&["copy", path.to_str().unwrap(), "--to", "cpu"])
        .failed(4, &["sparse was not copied to cpu", "8796093022208 bytes requested", " free of "]);
}

/// A limit on addresses acts as too little memory does: the file's bytes fit once, and not a second time to be compared.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn comparison_by_long_chunks_without_memory_is_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
    let ran = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 1048576; exec \"$0\" copy \"$1\" --to cpu --chunk 512MiB"])
        .args([env!("CARGO_BIN_EXE_transload").as_ref(), path.as_os_str()])
        .env("TRANSLOAD_CUDA_DRIVER", "/nonexistent/libcuda.so.1")
        .env("XDG_CACHE_HOME", crate::NOWHERE)
        .output()
        .unwrap();
    crate::Ran::new(ran).failed(4, &["sparse was not copied to cpu", "536870912 bytes"]);
}

#[test]
fn unknown_devices_and_malformed_arguments_list_valid_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, 16);
    let path = path.as_str();
    transload(&["copy", path, "--to", "cuda:0"]).failed(3, &["there is no device cuda:0"]);
    for device in ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:1", "CUDA:0", ""] {
        transload(&["copy", path, "--to", device]).failed(2, &["expected cpu, cuda:N"]);
    }
    transload(&["copy", path, "--to", "cuda:0/pinned"])
        .failed(2, &["expected cuda:0/device, cuda:0/unified"]);
    transload(&["plan", "cpu/device", "cpu", "1"])
        .failed(2, &["expected cpu/pageable, cpu/pinned, cpu/mapped"]);
    for size in ["0", "-1", "1.5MiB", "4K", "many", "99999999999999999999", "17179869184GiB"] {
        transload(&["plan", "cpu", "cpu", "--", size]).failed(2, &["a size is"]);
        transload(&["copy", path, "--to", "cpu", &format!("--chunk={size}")]).failed(2, &["a size is"]);
    }
}

#[test]
fn wrong_usage_is_refused() {
    transload(&[]).failed(2, &["Usage"]);
    transload(&["fly"]).failed(2, &["fly"]);
    transload(&["copy", "f"]).failed(2, &["--to"]);
    transload(&["copy", "f", "--to", "cpu", "--pinned", "--pageable"]).failed(2, &["cannot be used with"]);
}

#[test]
fn pinned_memory_without_support_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, 16);
    transload(&["copy", &path, "--to", "cpu", "--pinned"])
        .failed(2, &["pinned", "--pageable works everywhere"]);
}
