//! Events that are deferred, and that each declared event is reported and tested somewhere. A program of its own, since the subscriber
//! is the process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../shared/event_log.rs"]
mod event_log;

use std::{
    fs,
    path::{Path, PathBuf},
};

use event_log::{find, find_one, record, record_disabled, record_with};
use transload_core::{DeviceId, catch_panic, events, events::report};

const KEPT: usize = 1024;

#[test]
fn deferred_event_is_emitted_once_where_no_lock_is_held() {
    let mut before = 0;
    let records = record(|| {
        report::call_failed("another way", DeviceId::Cuda(1), &"the cause");
        report::call_failed("a third way", None, &"the cause");
        report::thread_refused("a thread's work", &"the cause");
        catch_panic(|| panic!("planted panic")).unwrap_err();
        before = event_log::count();
        report::emit_deferred();
        report::emit_deferred();
    });
    assert_eq!(before, 0, "nothing is emitted where a lock may be held");
    let found = find(&records, events::CALL_FAILED, events::DRIVER, &["what", "error"]);
    let devices: Vec<_> = found.iter().map(|record| record.field("device")).collect();
    assert_eq!(devices, [Some("cuda:1"), None]);
    assert_eq!(found[0].field("what"), Some("another way"));
    find_one(&records, events::THREAD_REFUSED, events::THREADS, &["what", "error"]);
    find_one(&records, events::PANIC_CAUGHT, events::THREADS, &["text"]);
}

#[test]
fn disabled_subscriber_keeps_no_event() {
    let records = record_disabled(|| report::drop_failed(&"the cause"));
    assert!(records.is_empty(), "{records:#?}");
    let records = record(report::emit_deferred);
    assert!(records.is_empty(), "{records:#?}");
}

#[test]
fn events_beyond_the_limit_are_counted() {
    let records = record(|| {
        (0..KEPT + 3).for_each(|_| report::drop_failed(&"the cause"));
        report::emit_deferred();
    });
    assert_eq!(find(&records, events::DROP_FAILED, events::DRIVER, &["error"]).len(), KEPT);
    let dropped = find_one(&records, events::EVENTS_DROPPED, events::DRIVER, &[]);
    assert_eq!(dropped.field("count"), Some("3"));
}

#[test]
fn panic_of_the_subscriber_is_discarded() {
    let body = || {
        report::drop_failed(&"first");
        report::drop_failed(&"second");
        catch_panic(|| panic!("planted panic")).unwrap_err();
        report::emit_deferred();
    };
    let records = record_with(|| panic!("panic of the subscriber"), body);
    assert_eq!(find(&records, events::DROP_FAILED, events::DRIVER, &["error"]).len(), 2);
    let panic = find_one(&records, events::PANIC_CAUGHT, events::THREADS, &[]);
    assert_eq!(panic.field("text"), Some("planted panic"));
}

/// Returns the texts of all Rust files below `crates/*/<folder>`, except those of this crate's `events`.
fn sources(folder: &str) -> String {
    fn add(path: &Path, all: &mut String) {
        if path.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| add(&entry.unwrap().path(), all));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let mut all = String::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
        let folder = entry.unwrap().path().join(folder);
        if folder.is_dir() && !folder.ends_with("core/src") {
            add(&folder, &mut all);
        }
    }
    all
}

/// Returns the names that follow `start` at the beginning of a line.
fn declared(file: &str, start: &str) -> Vec<String> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "src", file].iter().collect();
    let text = fs::read_to_string(path).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix(start));
    names
        .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned())
        .collect()
}

#[test]
fn declared_events_are_reported_and_tested() {
    let (code, tests) = (sources("src"), sources("tests"));
    let own =
        concat!(include_str!("../../src/events/report.rs"), include_str!("../../src/events/deferred.rs"));
    let names = declared("events.rs", "pub const ");
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(
            code.contains(&format!("events::{name}"))
                || own.contains(&format!("name: {name}"))
                || own.contains(&format!("target: {name}")),
            "no code reports {name}"
        );
        assert!(tests.contains(&format!("events::{name}")), "no test expects {name}");
    }
    for function in declared("events/report.rs", "pub fn ") {
        assert!(code.contains(&format!("report::{function}(")), "nothing calls {function}");
    }
}
