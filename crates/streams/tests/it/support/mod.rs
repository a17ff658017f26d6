//! Set-up that the tests share.

#[path = "../../../../core/tests/shared/gate.rs"]
pub(crate) mod cpu_gate;
#[path = "../../../../memory/tests/it/failing.rs"]
#[allow(dead_code, reason = "shared with the tests of resources")]
pub(crate) mod failing;
pub(crate) mod gate;
#[path = "../../../../memory/tests/it/heap.rs"]
#[allow(dead_code, reason = "shared with the tests of memory")]
pub(crate) mod heap;
pub(crate) mod programs;
pub(crate) mod setup;
pub(crate) mod shifted;
