//! Spans of transfers.

use std::future::IntoFuture;

use transload_core::{ListWay, Timing, events};

use crate::{
    event_log::{Record, SpanRecord, find, record, spans},
    manager,
    mock::Mock,
    pair,
};

/// Returns the span of each transfer whose submission was reported; the events of one lie in its span.
#[track_caller]
pub(crate) fn of_transfers(records: &[Record], spans: &[SpanRecord]) -> Vec<SpanRecord> {
    let is_transfers = |span: &&SpanRecord| span.record.name == events::TRANSFER_SPAN;
    let spans: Vec<_> = spans.iter().filter(is_transfers).cloned().collect();
    let within = [
        events::TRANSFER_SUBMITTED,
        events::TRANSFER_COMPLETED,
        events::TRANSFER_FAILED,
        events::TRANSFER_ABANDONED,
    ];
    for record in records.iter().filter(|record| within.contains(&record.name)) {
        let span =
            spans.iter().find(|span| Some(span.id) == record.inside).expect("in the span of a transfer");
        assert_eq!(span.record.field("transfer"), record.field("transfer"));
    }
    let submitted = records.iter().filter(|record| record.name == events::TRANSFER_SUBMITTED);
    assert_eq!(submitted.count(), spans.len(), "{spans:#?}");
    spans
}

#[test]
fn transfer_is_a_span_until_its_end_is_observed() {
    let (mut before_wait, mut all) = (Vec::new(), Vec::new());
    let records = record(|| {
        let (manager, _) = manager(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let copy = manager.copy(&src, &dst).timing(Timing::Measured).submit();
        before_wait = spans();
        let _callers = tracing::info_span!(target: "transload::test", "frame").entered();
        copy.wait().unwrap();
        drop(manager.copy(&src, &dst).submit());
        manager.copy_many(vec![(src.clone(), dst.clone())]).way(ListWay::OneByOne).wait().unwrap();
        manager.drain().unwrap();
        all = spans();
    });
    assert!(before_wait.len() == 1 && before_wait[0].ended_after.is_none());
    let [waited, dropped, list] = &of_transfers(&records, &all)[..] else { panic!("{records:#?}") };
    for field in ["transfer", "src", "dst", "bytes", "method", "lane"] {
        assert!([waited, dropped, list].iter().all(|span| span.record.field(field).is_some()), "{field}");
    }
    assert!(waited.record.field("elapsed_ns").is_some() && dropped.record.field("elapsed_ns").is_none());
    let callers = all.iter().find(|span| span.record.name == "frame").unwrap().id;
    assert_eq!([waited, dropped, list].map(|span| span.record.inside), [None, Some(callers), Some(callers)]);
    for (span, last) in [
        (waited, events::TRANSFER_COMPLETED),
        (dropped, events::TRANSFER_ABANDONED),
        (list, events::TRANSFER_COMPLETED),
    ] {
        let of = |record: &Record| record.name == last && record.inside == Some(span.id);
        let at = records.iter().position(of).unwrap();
        assert!(span.ended_after.is_some_and(|events| events > at), "{span:#?}");
    }
}

/// A thread of the executor submits it, which is in no span.
#[test]
fn awaited_transfer_is_inside_the_span_of_its_task() {
    let mut all = Vec::new();
    let records = record(|| {
        let (manager, _) = manager(Mock::default());
        let (src, dst) = pair(&manager, 64);
        let _task = tracing::info_span!(target: "transload::test", "task").entered();
        // The first of a path is deferred.
        pollster::block_on(manager.copy(&src, &dst).into_future()).unwrap();
        pollster::block_on(manager.copy_many(vec![(src, dst)]).way(ListWay::OneByOne).into_future()).unwrap();
        all = spans();
    });
    find(&records, events::TRANSFER_DEFERRED, events::TRANSFER, &[]);
    let task = all.iter().find(|span| span.record.name == "task").unwrap().id;
    let inside: Vec<_> = of_transfers(&records, &all).iter().map(|span| span.record.inside).collect();
    assert_eq!(inside, [Some(task); 2]);
}
