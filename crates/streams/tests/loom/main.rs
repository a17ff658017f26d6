//! Every interleaving of the crate's small concurrent state machines, by loom. The files under test are included as they
//! are, with loom's primitives for std's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod sync;

#[path = "../../src/pool/slots.rs"]
#[allow(dead_code, reason = "the pool uses more of it")]
mod slots;

mod pool_slots;
