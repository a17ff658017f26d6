//! `transload-bench --against` alternates two programs and fails where the new one is worse.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::schema::faults;

const PROGRAM: &str = env!("CARGO_BIN_EXE_transload-bench");
/// The program's exit code if a row is worse.
const WORSE: i32 = 5;

/// Compares counted allocations of the program with those of itself, and returns the exit code, the table, and both files.
fn compared(name: &str, more: &[&str]) -> (Option<i32>, String, Value, String) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (json, summary) = (folder.join("against.json"), folder.join("summary.md"));
    let mut program = Command::new(PROGRAM);
    program.args(["--only", "cpu", "--quick", "--repetitions", "2", "--rows", "allocations/"]);
    program.args(["--against", PROGRAM]).arg("--json").arg(&json).arg("--summary").arg(&summary).args(more);
    let output = program.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(json.exists() && summary.exists(), "{text}");
    let [json, summary] = [json, summary].map(|path| fs::read_to_string(path).unwrap());
    (output.status.code(), text, serde_json::from_str(&json).unwrap(), summary)
}

#[test]
fn program_against_itself_is_clean_and_keeps_every_sample() {
    let (code, text, json, summary) = compared("itself", &[]);
    assert_eq!(code, Some(0), "{text}");
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.len() >= 2, "{json}");
    for row in rows {
        let samples = [&row["old"], &row["new"]].map(|samples| samples.as_array().unwrap().len());
        assert_eq!((samples, &row["verdict"]), ([7, 7], &"same".into()), "{row}");
    }
    assert!(summary.contains("worse by 1 % or more: 0 of 2 rows"), "{summary}");
    assert_eq!(faults("comparison", &json), Vec::<String>::new());
}

#[test]
fn results_of_one_process_have_the_published_schema() {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("results.json");
    let mut program = Command::new(PROGRAM);
    program.args(["--only", "cpu", "--quick", "--repetitions", "2", "--json"]).arg(&json);
    assert!(program.output().unwrap().status.code().is_some_and(|code| [0, 4].contains(&code)));
    let mut results: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(faults("results", &results), Vec::<String>::new());
    results["rows"][0]["samples"] = Value::from(1);
    results.as_object_mut().unwrap().remove("commit");
    assert_eq!(faults("results", &results).len(), 2, "what is unknown and what is missing");
}

#[test]
fn planted_allocation_is_found_and_fails() {
    let (code, text, _, summary) = compared("planted", &["--planted", "allocation"]);
    assert_eq!(code, Some(WORSE), "{text}");
    let row = "allocations/cpu.pageable-to-cpu.pageable/DirectCopy/4096";
    assert!(text.lines().any(|line| line.starts_with("worse") && line.contains(row)), "{text}");
    assert!(summary.contains("worse by 1 % or more: 2 of 2 rows"), "{summary}");
}

#[test]
fn what_is_no_program_of_this_suite_is_refused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-program");
    let _absent = fs::remove_dir_all(&folder);
    let name = format!("transload-bench{}", std::env::consts::EXE_SUFFIX);
    let [empty, nested, text] = ["empty", "nested", "text"].map(|name| folder.join(name));
    for made in [&empty, &nested.join(&name), &text] {
        fs::create_dir_all(made).unwrap();
    }
    fs::write(text.join(&name), "no program").unwrap();
    for (against, said) in [
        (folder.join("absent"), "there is no program"),
        (empty, "there is no program"),
        (nested.clone(), "there is no program"),
        (text.clone(), "starting"),
        (text.join(&name), "starting"),
    ] {
        let mut program = Command::new(PROGRAM);
        program.args(["--only", "cpu", "--quick", "--against"]).arg(&against);
        let output = program.output().unwrap();
        let (out, told) = (output.stdout, String::from_utf8(output.stderr).unwrap());
        assert_eq!((output.status.code(), out.len()), (Some(1), 0), "{told}");
        let path = against.to_str().unwrap();
        assert!(told.contains(said) && told.contains(path), "`{said}` of {path} is not in: {told}");
        assert!(!told.contains("panicked"), "{told}");
    }
}
