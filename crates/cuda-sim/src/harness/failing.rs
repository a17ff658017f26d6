//! Runs a scenario repeatedly, failing each of its driver calls in turn.

use std::{
    thread,
    time::{Duration, Instant},
};

use transload_core::{ErrorKind, Result};

use crate::{SimDevice, SimDeviceBuilder};

/// Runs a scenario on a new device each time. In run N, the Nth driver call fails with one of the codes, in rotation;
/// ends when a run makes fewer than N calls. Returns the number of runs.
///
/// Each run must end with success or one of the error kinds, without a race, and with nothing alive on its device,
/// unless a drop error says that something could not be freed. Drop errors are process-wide: no other test may produce
/// any concurrently.
///
/// # Panics
/// If a run violates this, with the number of the failed call.
pub fn fail_each_call(
    properties: impl Fn(SimDeviceBuilder) -> SimDeviceBuilder,
    codes: &[u32],
    kinds: &[ErrorKind],
    mut scenario: impl FnMut(SimDevice) -> Result<()>,
) -> u64 {
    /// More calls than any scenario makes.
    const MOST: u64 = 5_000;
    let mut nth = 0;
    loop {
        nth += 1;
        assert!(nth < MOST, "the scenario makes more than {MOST} calls");
        let sim = super::simulated(|builder| properties(builder.record_accesses(true))).sim;
        let (Some(sim), Some(code)) = (sim, codes.get(nth as usize % codes.len().max(1))) else { return 0 };
        sim.fail_call(None, nth, *code);
        let outcome = scenario(sim);
        if let Err(error) = &outcome {
            assert!(kinds.contains(&error.kind()), "call {nth}: {error:?}");
        }
        assert!(sim.races().is_empty(), "call {nth}: {}", sim.races()[0]);
        let mut failed_drops = transload_cuda_sys::take_drop_errors();
        // Other threads may be about to free memory or to drop wakers.
        let end = Instant::now() + Duration::from_secs(30);
        while failed_drops.is_empty() && !sim.live_objects().is_empty() {
            assert!(Instant::now() < end, "call {nth}, {outcome:?}: still alive: {}", sim.live_objects());
            thread::yield_now();
            // Theirs may be the call that fails.
            failed_drops = transload_cuda_sys::take_drop_errors();
        }
        if sim.calls() < nth {
            assert!(outcome.is_ok(), "no call failed: {outcome:?}");
            return nth;
        }
    }
}
