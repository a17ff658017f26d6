//! The coordinator on one device; `tests/peers` covers two.

mod barriers;
mod callbacks;
mod cycles;
mod dependencies;
mod parallel;
#[path = "../../../src/coordinator/plan.rs"]
#[allow(dead_code, reason = "the coordinator uses more of it")]
mod plan;
mod plans;
mod proposed;
mod raw;
mod redundant;

use transload_core::{Error, ErrorKind, TimelineId};
use transload_cuda_sys::trace::Trace;
use transload_streams::{CudaStream, DependencyCycle};

use crate::support::setup::Setup;

pub(crate) fn streams<const N: usize>(setup: &Setup) -> [CudaStream; N] {
    std::array::from_fn(|_| CudaStream::new(&setup.device).unwrap())
}

/// Returns how many calls of `name` this thread made.
pub(crate) fn calls(trace: &Trace, name: &str) -> usize {
    trace.calls_of_this_thread().iter().filter(|call| call.name == name).count()
}

/// Returns the cycle for which a dependency was refused.
pub(crate) fn cycle(refused: &Error) -> Option<&[TimelineId]> {
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    refused.cause()?.downcast_ref::<DependencyCycle>().map(|cycle| &cycle.streams[..])
}
