//! `transload trace`: runs a program that records traces, and says what is in them.

use std::{
    env, fs,
    io::{BufReader, ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::{self, ExitCode, ExitStatus},
};

use serde_json::{Value, json};
use transload::profiler::{TRACE_VARIABLE, TraceContents};

use crate::{
    args::{self, Arguments},
    exit::{Exit, Failure},
    print,
};

pub(crate) fn run(arguments: &Arguments, wanted: &args::Trace) -> Result<ExitCode, Failure> {
    if arguments.is_simulated() || arguments.calibration.is_some() || arguments.costs.is_some() {
        let text =
            "`transload trace` has no devices of its own; pass such options to the program, after its name";
        return Err(Failure::new(Exit::Input, text));
    }
    // The program may work in another folder.
    let output = std::path::absolute(&wanted.output)
        .map_err(|error| Failure::caused_by(Exit::Io, "the current folder is not known", error))?;
    make_room(&output)?;
    let ended = wait_for(&wanted.command, &output)?;
    let traces = traces(&output)?;
    if traces.is_empty() && ended.success() {
        let program = wanted.command.first().map(|name| name.display().to_string()).unwrap_or_default();
        let text = format!(
            "{program} recorded nothing: it discovered no runtime, or was built without the feature `profiler` of transload, or its events (target transload::transfer) say why"
        );
        return Err(Failure::new(Exit::Input, text));
    }
    if arguments.json && !traces.is_empty() {
        print(&format!(
            "{:#}\n",
            json!({ "command": "trace", "traces": traces.iter().map(json_of).collect::<Vec<_>>() })
        ))?;
    }
    for (file, contents) in traces.iter().filter(|_| !arguments.json) {
        // Nothing else can be done if printing fails.
        let _ = writeln!(std::io::stderr(), "transload: {}: {}", file.display(), described(contents));
    }
    Ok(code(ended))
}

/// Removes the traces of an earlier run.
fn make_room(output: &Path) -> Result<(), Failure> {
    let mut file = output.to_owned();
    let mut number = 1;
    while let Ok(found) = fs::symlink_metadata(&file) {
        let is_trace = found.is_file() && (found.len() == 0 || read(&file).is_ok());
        if !is_trace {
            let text = format!("{} is no trace, and is not replaced; name another file", file.display());
            return Err(Failure::new(Exit::Input, text));
        }
        fs::remove_file(&file).map_err(|error| {
            Failure::caused_by(Exit::Io, format!("cannot replace {}", file.display()), error)
        })?;
        number += 1;
        file = TraceContents::path(output, number);
    }
    // Whether the program could write there.
    let tried = fs::File::create_new(output).and_then(|_| fs::remove_file(output));
    tried
        .map_err(|error| Failure::caused_by(Exit::Input, format!("cannot write {}", output.display()), error))
}

fn wait_for(command: &[std::ffi::OsString], output: &Path) -> Result<ExitStatus, Failure> {
    let [program, arguments @ ..] = command else {
        return Err(Failure::new(Exit::Input, "no command was given"));
    };
    let ended = process::Command::new(program).args(arguments).env(TRACE_VARIABLE, output).status();
    ended.map_err(|error| {
        let here = match error.kind() {
            ErrorKind::NotFound if env::current_dir().is_ok_and(|here| here.join(program).is_file()) => {
                "; write ./ before a program of this folder"
            }
            _ => "",
        };
        Failure::caused_by(Exit::Input, format!("cannot run {}{here}", program.display()), error)
    })
}

/// Returns what the program recorded.
fn traces(output: &Path) -> Result<Vec<(PathBuf, TraceContents)>, Failure> {
    let files = (1..).map(|number| TraceContents::path(output, number)).take_while(|file| file.exists());
    files.map(|file| read(&file).map(|contents| (file, contents))).collect()
}

fn read(file: &Path) -> Result<TraceContents, Failure> {
    let open = fs::File::open(file);
    let open =
        open.map_err(|error| Failure::caused_by(Exit::Io, format!("cannot read {}", file.display()), error))?;
    TraceContents::read(BufReader::new(open))
        .map_err(|error| Failure::from(error).during(format!("{} is damaged", file.display())))
}

fn described(contents: &TraceContents) -> String {
    match &contents.summary {
        Some(summary) => summary.to_string(),
        None => {
            format!("{} slices; the program did not end it, so the last ones may be missing", contents.slices)
        }
    }
}

fn json_of((file, contents): &(PathBuf, TraceContents)) -> Value {
    json!({ "file": file, "slices": contents.slices, "ended": contents.summary.is_some(), "summary": contents.summary })
}

/// Returns the program's exit code; 128 and the signal's number if one ended it, as shells do.
fn code(ended: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&ended);
    #[cfg(not(unix))]
    let signal = None::<i32>;
    let code = ended.code().or(signal.map(|signal| 128 + signal));
    // Windows has codes that do not fit.
    let code = code.map_or(u8::MAX, |code| u8::try_from(code).unwrap_or(u8::MAX));
    ExitCode::from(code)
}
