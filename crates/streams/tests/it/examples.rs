//! The examples run to their end.

use crate::setup::Setup;

#[path = "../../examples/stream.rs"]
#[allow(dead_code, reason = "its `main` is not called")]
mod stream;

#[test]
fn the_example_of_a_stream_runs() {
    let setup = Setup::new();
    stream::example::run(setup.test.ordinal()).unwrap();
    setup.finish();
}
