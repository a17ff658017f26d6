//! A scenario with each of its driver calls failing in turn.

use std::{
    thread,
    time::{Duration, Instant},
};

use transload_core::{ErrorKind, Result};

use crate::{SimDevice, SimDeviceBuilder};

/// Runs a scenario on one new device after the other; on each the next of the driver calls that it makes fails, with each of the
/// codes in turn, until one run makes fewer calls. Returns how many runs there were.
///
/// Each run ends with one of the kinds of error or with none, without a race, and with nothing alive on its device, unless an
/// error of a drop says that something could not be freed. Those errors are the process's: no other test may have any meanwhile.
///
/// # Panics
/// Where that does not hold, with the number of the call that failed.
pub fn fail_each_call(
    properties: impl Fn(SimDeviceBuilder) -> SimDeviceBuilder,
    codes: &[u32],
    kinds: &[ErrorKind],
    mut scenario: impl FnMut(SimDevice) -> Result<()>,
) -> u64 {
    /// No scenario makes so many calls.
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
        let failed_drops = transload_cuda_sys::take_drop_errors();
        // Threads that free memory or wake tasks may be about to let go of something.
        let end = Instant::now() + Duration::from_secs(30);
        while failed_drops.is_empty() && !sim.live_objects().is_empty() {
            assert!(Instant::now() < end, "call {nth}, {outcome:?}: still alive: {}", sim.live_objects());
            thread::yield_now();
        }
        if sim.calls() < nth {
            assert!(outcome.is_ok(), "no call failed: {outcome:?}");
            return nth;
        }
    }
}
