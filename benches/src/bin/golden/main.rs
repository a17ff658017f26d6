//! `transload-golden`: prints what operations do on the software driver that is the same in every run, once they are warm: driver
//! calls, heap allocations, chosen methods, chunks and virtual time. `cargo xtask golden` compares it with a committed file.

#[cfg(any(target_os = "linux", windows))]
mod count;
#[cfg(any(target_os = "linux", windows))]
mod library;
#[cfg(any(target_os = "linux", windows))]
mod operations;

use anyhow::Result;
use clap::Parser;
use transload_benches::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Prints what operations do on the software driver that is the same in every run.
#[derive(Parser)]
#[command(name = "transload-golden", version)]
struct Options {
    /// Make one driver call more in one operation, to test that it is found.
    #[arg(long)]
    planted_call: bool,
}

#[cfg(not(any(target_os = "linux", windows)))]
fn main() -> Result<()> {
    let Options { planted_call } = Options::parse();
    anyhow::bail!("there is no CUDA on this platform (planted call: {planted_call})")
}

#[cfg(any(target_os = "linux", windows))]
fn main() -> Result<()> {
    let Options { planted_call } = Options::parse();
    print!("{HEAD}{}", operations::all(planted_call)?);
    Ok(())
}

#[cfg(any(target_os = "linux", windows))]
const HEAD: &str = "\
# What an operation does on the software driver and the CPU backend once it is warm. Everything is simulated.
# `cargo xtask golden` checks this file; `cargo xtask golden --update` rewrites it.
#
# Counts are means of 8 operations. Calls and heap allocations are the calling thread's; the software driver's own allocations
# are not among them. Locks are not counted. Left out is what differs between runs:
#   where the host's threads take part, all but the work that is enqueued, and that too where they join neighbouring chunks;
#   of waits for a short download to pinned memory, which poll for a while, all but that work; of its submission, the virtual time;
#   of operations that a profiler times, all but work and events.
";
