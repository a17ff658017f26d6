//! The examples run without error, on the software driver and on a device.
#![allow(dead_code, reason = "their `main` is not called")]

use transload_core::Result;

use crate::support::setup::Setup;

#[path = "../../examples/allocator.rs"]
mod allocator;
#[path = "../../examples/coordinator.rs"]
mod coordinator;
#[path = "../../examples/graph.rs"]
mod graph;
#[path = "../../examples/hints.rs"]
mod hints;
#[path = "../../examples/launch.rs"]
mod launch;
#[path = "../../examples/pool.rs"]
mod pool;
#[path = "../../examples/stream.rs"]
mod stream;

type Example = fn(u32) -> Result<()>;

#[test]
fn every_example_runs_and_frees_everything() {
    let examples: [(&str, Example); 7] = [
        ("stream", stream::example::run),
        ("pool", pool::run),
        ("coordinator", coordinator::example::run),
        ("allocator", allocator::run),
        ("launch", launch::run),
        ("graph", graph::example::run),
        ("hints", hints::example::run),
    ];
    for (name, run) in examples {
        let setup = Setup::new();
        if let Err(error) = run(setup.test.ordinal()) {
            panic!("the example {name}: {error}");
        }
        setup.finish();
    }
}
