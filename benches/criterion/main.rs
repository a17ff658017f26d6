//! Microbenchmarks of what needs no GPU, with baselines: `cargo bench -p transload-benches`.
//!
//! What the software driver plays is labelled `simulated`: it shows the library's own cost on the host, not a device's.
#![allow(clippy::unwrap_used, reason = "a measurement fails as a whole")]

mod host;
#[path = "../../crates/core/examples/support/no_op_queue.rs"]
mod no_op_queue;
#[cfg(any(target_os = "linux", windows))]
mod simulated;
mod submission;

use std::time::{Duration, Instant};

use criterion::{Bencher, Criterion};
use transload_core::{RawBuffer, Transfer};
use transload_transfer::CrossBackendTransferManager;

/// Transfers in flight at most.
const IN_FLIGHT: usize = 64;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    submission::benches(&mut criterion);
    host::benches(&mut criterion);
    #[cfg(any(target_os = "linux", windows))]
    simulated::benches(&mut criterion);
    criterion.final_summary();
}

/// Times submissions alone; waits between every [`IN_FLIGHT`] of them, untimed.
fn submissions(
    bencher: &mut Bencher<'_>,
    manager: &CrossBackendTransferManager,
    src: &RawBuffer,
    dst: &RawBuffer,
) {
    let mut transfers: Vec<Transfer> = Vec::with_capacity(IN_FLIGHT);
    bencher.iter_custom(|count| {
        let (mut left, mut took) = (count as usize, Duration::ZERO);
        while left > 0 {
            let now = left.min(IN_FLIGHT);
            let begun = Instant::now();
            transfers.extend((0..now).map(|_| manager.copy(src, dst).submit()));
            took += begun.elapsed();
            transfers.drain(..).for_each(|transfer| drop(transfer.wait().unwrap()));
            left -= now;
        }
        took
    });
}
