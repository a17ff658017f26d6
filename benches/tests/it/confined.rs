//! A process that is kept to one processor measures copies there.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

fn run(processors: &str, json: &Path) -> std::process::Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_transload-bench"));
    program.args(["--only", "scaling", "--parts", "confined", "--simulate", "--quick", "--repetitions", "2"]);
    program.args(["--processors", processors, "--json"]).arg(json).output().unwrap()
}

#[test]
fn rows_of_a_confined_process_are_of_its_processors() {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("confined.json");
    let output = run("1", &json);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let results: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows: Vec<&Value> = results["rows"].as_array().unwrap().iter().collect();
    let copies = |id: &str| -> Vec<&Value> {
        let id = format!("scaling/confined-1/{id}");
        let is_one = |row: &&&Value| {
            row["id"].as_str().is_some_and(|row| row.starts_with(&id) && row.ends_with("/copy"))
        };
        rows.iter().filter(is_one).copied().collect()
    };
    for way in ["up/", "down/"] {
        assert_eq!(copies(way).len(), 2, "{results}");
        for row in copies(way) {
            assert!(row["path"].as_str().unwrap().ends_with("on 1 processors"), "{row}");
            assert!(row["reference"].as_str().unwrap().contains("threads by hand"), "{row}");
            assert_eq!((&row["verified"], &row["simulated"]), (&true.into(), &true.into()), "{row}");
        }
    }
    for row in copies("processor-time/") {
        assert!(row["unit"] == "s/GB" && row["verified"] == true, "{row}");
    }
}

#[test]
fn more_processors_than_there_are_is_an_error() {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("too-many.json");
    let output = run("1000", &json);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("1000 processors are asked for"), "{text}");
}
