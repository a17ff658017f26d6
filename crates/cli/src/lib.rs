//! The command `transload`: lists devices, plans transfers, copies files through a device and back, loads models onto
//! devices, measures, calibrates, prints the costs that methods are chosen by, and records what other programs move.
//!
//! One file per subcommand. A subcommand completes its output before any of it is printed, so that stdout stays empty
//! on failure; progress and errors go to stderr. With `trace`, stdout has the program's own output first.

mod args;
mod bench;
mod calibrate;
mod copy;
mod costs;
mod devices;
mod exit;
mod invocation;
mod load;
mod output;
mod plan;
mod progress;
mod text;
mod trace;

use std::{io::Write, process::ExitCode};

use clap::Parser;

use args::{Arguments, Command};
use exit::{Exit, Failure};
use invocation::Invocation;

/// Runs the command with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Input } else { Exit::Success };
            // Nothing else can be done if printing fails.
            let _ = error.print();
            return exit.into();
        }
    };
    if let Command::Trace(wanted) = &arguments.command {
        return match trace::run(&arguments, wanted) {
            Ok(exit) => exit,
            Err(failure) => fail(&arguments, &failure),
        };
    }
    match run(&arguments).and_then(|output| print(&output)) {
        Ok(()) => Exit::Success.into(),
        Err(failure) => fail(&arguments, &failure),
    }
}

fn fail(arguments: &Arguments, failure: &Failure) -> ExitCode {
    let simulated = if arguments.is_simulated() { " (simulated)" } else { "" };
    let _ = writeln!(std::io::stderr(), "transload{simulated}: error: {failure}");
    failure.exit.into()
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    let invocation = Invocation::start(arguments)?;
    match &arguments.command {
        Command::Devices => devices::run(&invocation),
        Command::Calibrate(wanted) => calibrate::run(&invocation, wanted, arguments.calibration.is_some()),
        Command::Costs => costs::run(&invocation),
        Command::Plan(wanted) => plan::run(&invocation, wanted),
        Command::Copy(wanted) => copy::run(&invocation, wanted),
        Command::Load(wanted) => load::run(&invocation, wanted),
        Command::Bench(wanted) => bench::run(&invocation, wanted),
        Command::Trace(_) => Ok(String::new()),
    }
}

fn print(output: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::caused_by(Exit::Io, "cannot write the result", error)),
        Ok(()) => Ok(()),
    }
}
