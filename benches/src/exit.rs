//! Exit codes of the program.

/// What `--help` says about exit codes.
pub const HELP: &str = "\
Exit codes:
  0  measured, every byte verified, no goal missed on real hardware
  1  measuring or writing the results failed
  2  bad usage
  3  wrong bytes in a destination
  4  measured and verified, but a goal was missed on real hardware
  5  a row is worse than that of the program of `--against`, or missing

With 3, 4 and 5 the table is still printed and the results file written. Rows of the software driver have no goals.";

/// A destination has wrong bytes.
pub const WRONG: u8 = 3;
/// A goal was missed on real hardware.
pub const MISSED: u8 = 4;
/// A row is worse than that of the program compared with, or missing.
pub const WORSE: u8 = 5;
