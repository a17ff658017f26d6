//! The runtime's events, in the situations that `transload_core::events` names. A program of its own, since the subscriber is the
//! process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../core/tests/shared/event_log.rs"]
mod event_log;

use event_log::{find_one, record};
use transload::Runtime;
use transload_core::events;

#[test]
fn absent_family_is_reported_with_the_reason() {
    let records = record(|| {
        let runtime = Runtime::builder().without("cuda").discover().unwrap();
        runtime.drain().unwrap();
    });
    let absent = find_one(&records, events::FAMILY_ABSENT, events::DRIVER, &["error"]);
    assert_eq!(absent.field("family"), Some("cuda"));
}
