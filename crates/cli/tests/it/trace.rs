//! `transload trace`: runs a program, and says what it recorded.

use std::{fs, path::Path};

use crate::{Ran, transload};

/// The program itself, as one that uses Transload.
const THIS: &str = env!("CARGO_BIN_EXE_transload");

fn trace(output: &Path, command: &[&str]) -> Ran {
    transload(&[&["trace", "--output", output.to_str().unwrap(), "--"], command].concat())
}

/// A program that an emulator runs cannot start one of its own platform.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn slices(file: &Path) -> Vec<crate::packets::Drawn> {
    crate::packets::read(&fs::read(file).unwrap()).unwrap().drawn()
}

#[cfg(all(feature = "sim", any(all(target_os = "linux", target_arch = "x86_64"), windows)))]
#[test]
fn program_is_recorded_and_its_output_and_code_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (crate::file(&folder, 5_000_000), folder.path().join("t.pftrace"));
    let command = [THIS, "copy", &file, "--to", "cuda:0", "--simulate", "--chunk=1MiB"];
    for engines in [&[][..], &["--engines"]] {
        let begin = ["trace", "--output", output.to_str().unwrap()];
        let ran = transload(&[&begin, engines, &["--"], &command].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.contains("all 5000000 bytes came back equal"), "{}", ran.stdout);
        let read = crate::packets::read(&fs::read(&output).unwrap()).unwrap();
        let drawn = read.drawn();
        let said = format!(
            "{}: {} slices, 0 not drawn, 0 texts cut, 0 records lost, 0 unfinished, ",
            output.display(),
            drawn.len()
        );
        assert!(ran.stderr.contains(&said), "`{said}` is not said in: {}", ran.stderr);
        let of_row = |begin: &str| drawn.iter().filter(|slice| slice.row.starts_with(begin)).count();
        // Five chunks each way: on the device's streams, and as transfers.
        assert_eq!(of_row("stream "), 10, "{drawn:?}");
        let exact =
            ["copy engine, to the device (exact)", "copy engine, from the device (exact)"].map(of_row);
        assert_eq!(exact, [if engines.is_empty() { 0 } else { 5 }; 2], "{drawn:?}");
        assert_eq!(read.points("rate to the device (timed operations)").last().unwrap().1, 0.0);
        assert!(
            !read.points("pinned host memory").is_empty() && !read.points("allocated by cuda").is_empty()
        );
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "an earlier trace is replaced");
}

#[cfg(all(feature = "sim", any(all(target_os = "linux", target_arch = "x86_64"), windows)))]
#[test]
fn advice_of_a_program_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (crate::file(&folder, 5_000_000), folder.path().join("t.pftrace"));
    let costs = folder.path().join("costs.json");
    fs::write(&costs, transload(&["costs", "--json", "--simulate"]).stdout).unwrap();
    let costs = costs.to_str().unwrap();
    let copy = |kind| [THIS, "copy", &file, "--to", "cuda:0", "--simulate", kind, "--costs", costs];
    let ran = trace(&output, &copy("--pageable"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let said = ran.stderr.lines().find(|line| line.starts_with("  advice: ")).unwrap_or(&ran.stderr);
    for part in
        ["cpu/pageable", "; with the host's side pinned they would take", "by costs that the user set"]
    {
        assert!(said.contains(part), "`{part}` is not said in: {said}");
    }
    let arguments = [&["--json", "trace", "--output", output.to_str().unwrap(), "--"], &copy("--pinned")[..]];
    let ran = transload(&arguments.concat());
    let json = &ran.stdout[ran.stdout.find("{\n").unwrap()..];
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["traces"][0]["advice"], serde_json::json!([]), "{json}");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn every_process_has_a_file_and_the_code_is_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.pftrace");
    let script = format!("'{THIS}' devices; '{THIS}' plan cpu cpu 1MiB; cd /; '{THIS}' devices; exit 7");
    let ran = trace(&output, &["sh", "-c", &script]);
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    for name in ["t.pftrace: ", "t.2.pftrace: ", "t.3.pftrace: "] {
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
    assert!(slices(&folder.path().join("t.3.pftrace")).is_empty());
    // A later run with fewer leaves none of these.
    let ran = transload(&[
        "trace",
        "--json",
        "--output",
        output.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &format!("'{THIS}' devices >&2; kill -9 $$"),
    ]);
    assert_eq!(ran.code, Some(128 + 9), "{}", ran.stderr);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["traces"].as_array().unwrap().len(), 1);
    assert_eq!((&json["traces"][0]["slices"], &json["traces"][0]["ended"]), (&0.into(), &true.into()));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn json_follows_the_programs_own_output_whatever_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.pftrace");
    let script = format!("echo mine; '{THIS}' devices >&2; exit 7");
    let ran =
        transload(&["--json", "trace", "--output", output.to_str().unwrap(), "--", "sh", "-c", &script]);
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    let json = ran.stdout.strip_prefix("mine\n").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["command"], "trace");
    for help in [&["--help"][..], &["trace", "--help"]] {
        let help = transload(help).succeeded();
        assert!(help.contains("follows the program's own output, whatever its exit code"), "{help}");
    }
}

/// The program waits for the end of the file with its costs, and records meanwhile.
#[cfg(target_os = "linux")]
#[test]
fn recording_in_progress_is_refused_and_goes_on() {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    let folder = tempfile::tempdir().unwrap();
    let (output, costs) = (folder.path().join("t.pftrace"), folder.path().join("costs"));
    if !crate::has("mkfifo") {
        return;
    }
    assert!(Command::new("mkfifo").arg(&costs).status().unwrap().success());
    // Opened for both, it waits for no reader. Dropped by a failure, it ends the program.
    let mut end = fs::OpenOptions::new().read(true).write(true).open(&costs).unwrap();
    let mut command = crate::command(&["--costs", costs.to_str().unwrap(), "devices"]);
    let mut program = command.env("TRANSLOAD_TRACE", &output).stdout(Stdio::null()).spawn().unwrap();
    // A file with bytes was locked before.
    while fs::metadata(&output).map_or(0, |found| found.len()) == 0 {
        assert!(program.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    trace(&output, &["/nonexistent/program"])
        .failed(2, &["t.pftrace is being recorded now", "name another file"]);
    // So is one of the numbered files, and those before it stay.
    let first = folder.path().join("t.2.pftrace");
    fs::rename(&output, &first).unwrap();
    fs::write(&output, "").unwrap();
    trace(&output, &["/nonexistent/program"]).failed(2, &["t.2.pftrace is being recorded now"]);
    assert!(fs::read(&output).unwrap().is_empty());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    end.write_all(b"{\"costs\":[]}").unwrap();
    drop(end);
    assert!(program.wait().unwrap().success());
    let read = crate::packets::read(&fs::read(&first).unwrap()).unwrap();
    assert_eq!(read.events().filter(|(_, event)| event.kind == 3).count(), 1, "its end");
    // It is an earlier trace from now on.
    trace(&output, &["/nonexistent/program"]).failed(2, &["cannot run"]);
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn program_that_records_nothing_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.pftrace");
    trace(&output, &["true"]).failed(2, &["true recorded nothing", "feature `profiler`"]);
    trace(&output, &["sh", "-c", "exit 3"]).failed(3, &[]);
    trace(&output, &["/nonexistent/program", "--help"]).failed(2, &["cannot run /nonexistent/program"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    // An earlier trace is gone while the program runs: it and the command may be interrupted.
    fs::write(&output, "").unwrap();
    let is_gone =
        "for _ in $(seq 200); do [ -e \"$TRANSLOAD_TRACE.earlier\" ] || exit 0; sleep 0.05; done; exit 5";
    trace(&output, &["sh", "-c", is_gone]).failed(2, &["recorded nothing"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let garbage = "echo garbage > \"$TRANSLOAD_TRACE\"; exit 4";
    trace(&output, &["sh", "-c", garbage]).failed(4, &["t.pftrace: not readable: no Perfetto trace"]);
}

/// A file that cannot grow is as a disk that is full.
#[cfg(all(feature = "sim", target_os = "linux", target_arch = "x86_64"))]
#[test]
fn full_disk_is_said_and_the_program_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let (file, output) = (crate::file(&folder, 5_000_000), folder.path().join("t.pftrace"));
    let script = format!(
        "ulimit -f 16; trap '' XFSZ; exec '{THIS}' copy '{file}' --to cuda:0 --simulate --chunk=4KiB"
    );
    let ran = trace(&output, &["sh", "-c", &script]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("all 5000000 bytes came back equal"), "{}", ran.stdout);
    for said in ["t.pftrace: writing the trace failed after ", "; the program did not end it"] {
        assert!(ran.stderr.contains(said), "`{said}` is not said in: {}", ran.stderr);
    }
    // What was written opens.
    let bytes = fs::read(&output).unwrap();
    let (packets, _) = crate::packets::read_prefix(&bytes);
    assert!(crate::packets::Trace(packets).events().filter(|(_, event)| event.kind == 1).count() > 10);
    // The shell's blocks have one of two sizes.
    assert!([512, 1024].map(|block| 16 * block).contains(&bytes.len()), "{}", bytes.len());
}

#[test]
fn only_traces_are_replaced_and_options_of_devices_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("precious");
    fs::write(&output, "mine").unwrap();
    trace(&output, &[THIS, "devices"]).failed(2, &["precious is no trace", "name another file"]);
    assert_eq!(fs::read(&output).unwrap(), b"mine");
    // Nor is an earlier trace removed before.
    let numbered = folder.path().join("other.2.pftrace");
    fs::write(&numbered, "mine").unwrap();
    let other = folder.path().join("other.pftrace");
    fs::write(&other, "").unwrap();
    trace(&other, &[THIS, "devices"]).failed(2, &["other.2.pftrace is no trace"]);
    assert!(fs::read(&other).unwrap().is_empty());
    // Nor where there is nothing to record.
    fs::remove_file(&numbered).unwrap();
    trace(&other, &["/nonexistent/program"]).failed(2, &["cannot run"]);
    assert!(fs::read(&other).unwrap().is_empty());
    let kept = folder.path().join("other.pftrace.earlier");
    fs::write(&kept, "mine").unwrap();
    trace(&other, &[THIS, "devices"]).failed(2, &["other.pftrace.earlier exists already"]);
    assert_eq!((fs::read(&kept).unwrap(), fs::read(&other).unwrap()), (b"mine".to_vec(), Vec::new()));
    trace(&folder.path().join("not/there"), &[THIS, "devices"]).failed(2, &["cannot write"]);
    transload(&["trace"]).failed(2, &["COMMAND"]);
    transload(&["--costs", "a.json", "trace", "--", THIS, "devices"]).failed(2, &["to the program"]);
    #[cfg(feature = "sim")]
    transload(&["--simulate-memory", "1GiB", "trace", "--", THIS, "devices"]).failed(2, &["to the program"]);
    #[cfg(all(feature = "wgpu", any(target_os = "linux", target_os = "macos", windows)))]
    transload(&["--wgpu", "trace", "--", THIS, "devices"]).failed(2, &["to the program"]);
}

/// The commands' programs wait for the end of their input, with no runtime yet, or with one that has ended.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn runs_that_begin_together_do_not_share_a_file() {
    use std::{
        io::Read as _,
        process::{Child, Stdio},
    };

    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.pftrace");
    let begin = |script: &str| -> Child {
        let mut command =
            crate::command(&["trace", "--output", output.to_str().unwrap(), "--", "sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for records in ["read end", &format!("'{THIS}' devices >&2; echo; read end")] {
        let script = format!("echo begun; {records}; '{THIS}' devices >&2; exit 7");
        let mut runs: Vec<_> = (0..8).map(|_| begin(&script)).collect();
        // Nothing is read from those that were refused.
        let mut begun: Vec<_> =
            runs.iter_mut().map(|run| run.stdout.as_mut().unwrap().read(&mut [0; 1]).unwrap() > 0).collect();
        assert_eq!(begun.iter().filter(|begun| **begun).count(), 1, "runs of {records}");
        if records != "read end" {
            // A trace that has ended is that run's until it said what is in it.
            let run = &mut runs[begun.iter().position(|begun| *begun).unwrap()];
            let mut said = [0; "egun\n\n".len()];
            run.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
            runs.push(begin(&script));
            begun.push(false);
        }
        let files = usize::from(records != "read end") + 1;
        // The last one first: it may not have been refused yet.
        for (run, begun) in runs.into_iter().zip(begun).rev() {
            let run = Ran::new(run.wait_with_output().unwrap());
            if begun {
                assert_eq!(run.code, Some(7), "{}", run.stderr);
                assert_eq!(run.stderr.matches("pftrace: 0 slices").count(), files, "{}", run.stderr);
            } else {
                run.failed(2, &["t.pftrace is being recorded now", "name another file"]);
            }
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), files, "nothing else is left");
    }
}

#[test]
fn lock_of_an_interrupted_run_is_no_obstacle_but_other_files_are() {
    let folder = tempfile::tempdir().unwrap();
    let (output, lock) = (folder.path().join("t.pftrace"), folder.path().join("t.pftrace.lock"));
    fs::write(&lock, "").unwrap();
    trace(&output, &["/nonexistent/program"]).failed(2, &["cannot run"]);
    assert!(!lock.exists());
    fs::write(&lock, "mine").unwrap();
    trace(&output, &["/nonexistent/program"]).failed(2, &["t.pftrace.lock exists already"]);
    assert_eq!(fs::read(&lock).unwrap(), b"mine");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    trace(&output, &["/nonexistent/program"]).failed(2, &["t.pftrace.lock exists already"]);
}
