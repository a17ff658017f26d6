//! All examples in one program.
//!
//! Without a name it runs each in a process of its own: on the software driver, with checks for races and leaks, or with
//! `TRANSLOAD_TEST_DRIVER=real` on the machine's. Arguments that are no options choose by a part of the name. `--run NAME`
//! runs one in this process, as its own program would, and `--list` lists them.
#![allow(clippy::duplicate_mod, reason = "each example has the module `simulate`, as its own program")]

#[cfg(any(target_os = "linux", windows))]
mod run;

#[cfg(any(target_os = "linux", windows))]
fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() {}
