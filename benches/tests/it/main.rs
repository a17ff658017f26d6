//! The programs of this package, run as their users run them.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)]

mod against;
#[cfg(target_os = "linux")]
mod confined;
mod golden;
mod schema;
