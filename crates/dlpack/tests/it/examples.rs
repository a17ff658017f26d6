//! The example succeeds, on the software driver and on a device.
#![allow(dead_code, reason = "its `main` is not called")]

use crate::setup::Setup;

#[path = "../../examples/dlpack.rs"]
mod dlpack;

#[test]
fn the_example_runs_and_leaves_nothing_behind() {
    let setup = Setup::new();
    dlpack::on_the_host().unwrap();
    dlpack::example::run(setup.test.ordinal()).unwrap();
    setup.finish();
}
