//! How the program ends: one exit code for each thing that a caller can act on.

/// What `--help` says about exit codes.
pub const HELP: &str = "\
Exit codes:
  0  measured, every byte verified, no goal missed on real hardware
  1  it could not be measured, or the results could not be written
  2  bad usage
  3  wrong bytes: a movement did not put in place what was sent
  4  measured and verified, but a goal was missed on real hardware

With 3 and 4 the table is printed and the file of results written all the same. Rows of the software driver have no
goals.";

/// A movement did not put in place what was sent.
pub const WRONG: u8 = 3;
/// A goal was missed on real hardware.
pub const MISSED: u8 = 4;
