//! A process-wide `tracing` subscriber that keeps this library's events and spans.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    callsite::rebuild_interest_cache,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::{Interest, set_global_default},
};
use tracing_core::span::Current;
use transload_core::events::report::emit_deferred;

/// One event, or span.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
    #[allow(dead_code, reason = "not every test that includes this file reads levels")]
    pub(crate) level: Level,
    /// The span in which it was.
    #[allow(dead_code, reason = "not every test that includes this file reads spans")]
    pub(crate) inside: Option<u64>,
    fields: BTreeMap<&'static str, String>,
}

impl Record {
    /// Returns a field's text.
    #[allow(dead_code, reason = "not every test that includes this file reads fields")]
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

/// Returns the events of one name, which all have the fields.
#[track_caller]
pub(crate) fn find<'a>(records: &'a [Record], name: &str, target: &str, fields: &[&str]) -> Vec<&'a Record> {
    let found: Vec<_> = records.iter().filter(|record| record.name == name).collect();
    assert!(!found.is_empty(), "no `{name}` in {records:#?}");
    for record in &found {
        assert_eq!(record.target, target);
        let missing: Vec<_> = fields.iter().filter(|field| record.field(field).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?} is not in {record:?}");
    }
    found
}

/// Returns the only event of a name.
#[allow(dead_code, reason = "not every test that includes this file expects one")]
#[track_caller]
pub(crate) fn find_one<'a>(records: &'a [Record], name: &str, target: &str, fields: &[&str]) -> &'a Record {
    let found = find(records, name, target, fields);
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0]
}

/// A span, and how long it lasted.
#[allow(dead_code, reason = "not every test that includes this file reads spans")]
#[derive(Clone, Debug)]
pub(crate) struct SpanRecord {
    pub(crate) id: u64,
    /// With the fields that were recorded later.
    pub(crate) record: Record,
    /// Events before its end, if it has ended.
    pub(crate) ended_after: Option<usize>,
    metadata: &'static Metadata<'static>,
}

/// Returns the spans since the last call of [`record`] and its like began.
#[allow(dead_code, reason = "not every test that includes this file reads spans")]
pub(crate) fn spans() -> Vec<SpanRecord> {
    locked(&SPANS).clone()
}

type Hook = Arc<dyn Fn() + Send + Sync>;

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

static ENABLED: AtomicBool = AtomicBool::new(false);
static HOOK: Mutex<Option<Hook>> = Mutex::new(None);
static PANICS_AT: Mutex<Option<&'static str>> = Mutex::new(None);
static RECORDS: Mutex<Vec<Record>> = Mutex::new(Vec::new());
static SPANS: Mutex<Vec<SpanRecord>> = Mutex::new(Vec::new());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `body` and returns the events of all threads meanwhile.
pub(crate) fn record(body: impl FnOnce()) -> Vec<Record> {
    recorded(true, body)
}

/// Like [`record`], but with a subscriber that wants no event.
#[allow(dead_code, reason = "not every test that includes this file disables events")]
pub(crate) fn record_disabled(body: impl FnOnce()) -> Vec<Record> {
    recorded(false, body)
}

/// Like [`record`], but the subscriber calls `hook` after each event, except for those of the hook itself and of chunks.
#[allow(dead_code, reason = "not every test that includes this file has a subscriber with code of its own")]
pub(crate) fn record_with(hook: impl Fn() + Send + Sync + 'static, body: impl FnOnce()) -> Vec<Record> {
    recorded(true, || {
        *locked(&HOOK) = Some(Arc::new(hook));
        body();
        *locked(&HOOK) = None;
    })
}

/// Like [`record`], but the subscriber panics at each event of this name.
#[allow(dead_code, reason = "not every test that includes this file has a subscriber that panics")]
pub(crate) fn record_panicking(name: &'static str, body: impl FnOnce()) -> Vec<Record> {
    recorded(true, || {
        *locked(&PANICS_AT) = Some(name);
        body();
        *locked(&PANICS_AT) = None;
    })
}

fn call_hook() {
    struct Inside;

    impl Drop for Inside {
        fn drop(&mut self) {
            IN_HOOK.set(false);
        }
    }

    let hook = locked(&HOOK).clone();
    if let Some(hook) = hook
        && !IN_HOOK.replace(true)
    {
        let _inside = Inside;
        hook();
    }
}

fn recorded(enabled: bool, body: impl FnOnce()) -> Vec<Record> {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| set_global_default(EventLog).expect("no other subscriber"));
    let _others_wait = locked(&ONE_AT_A_TIME);
    // What an earlier test left.
    emit_deferred();
    ENABLED.store(enabled, Ordering::SeqCst);
    rebuild_interest_cache();
    locked(&RECORDS).clear();
    locked(&SPANS).clear();
    body();
    ENABLED.store(false, Ordering::SeqCst);
    std::mem::take(&mut *locked(&RECORDS))
}

/// Returns the number of events so far.
#[allow(dead_code, reason = "not every test that includes this file counts before the end")]
pub(crate) fn count() -> usize {
    locked(&RECORDS).len()
}

/// Returns the events so far.
#[allow(dead_code, reason = "not every test that includes this file looks before the end")]
pub(crate) fn so_far() -> Vec<Record> {
    locked(&RECORDS).clone()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct EventLog;

impl Subscriber for EventLog {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ENABLED.load(Ordering::SeqCst) && metadata.target().starts_with("transload::")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if ENABLED.load(Ordering::SeqCst) { LevelFilter::TRACE } else { LevelFilter::OFF })
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let record = record_of(span.metadata(), |fields| span.record(fields));
        locked(&SPANS).push(SpanRecord { id, record, ended_after: None, metadata: span.metadata() });
        span::Id::from_u64(id)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        if let Some(of) = locked(&SPANS).iter_mut().find(|of| of.id == span.into_u64()) {
            let mut fields = Fields(std::mem::take(&mut of.record.fields));
            values.record(&mut fields);
            of.record.fields = fields.0;
        }
    }

    fn try_close(&self, span: span::Id) -> bool {
        let ended_after = locked(&RECORDS).len();
        if let Some(of) = locked(&SPANS).iter_mut().find(|of| of.id == span.into_u64()) {
            of.ended_after = Some(ended_after);
        }
        true
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let record = record_of(event.metadata(), |fields| event.record(fields));
        let name = record.name;
        locked(&RECORDS).push(record);
        assert!(*locked(&PANICS_AT) != Some(name), "panic of the subscriber");
        // Its thread may hold the staging buffer that a transfer of the hook would wait for.
        if !name.starts_with("chunk_") {
            call_hook();
        }
    }

    fn current_span(&self) -> Current {
        let inside = INSIDE.with_borrow(|inside| inside.last().copied());
        let Some(id) = inside else { return Current::none() };
        let metadata = locked(&SPANS).iter().find(|span| span.id == id).map(|span| span.metadata);
        metadata.map_or(Current::none(), |metadata| Current::new(span::Id::from_u64(id), metadata))
    }

    fn enter(&self, span: &span::Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(span.into_u64()));
    }

    fn exit(&self, span: &span::Id) {
        INSIDE.with_borrow_mut(|inside| inside.retain(|id| *id != span.into_u64()));
    }
}

fn record_of(metadata: &'static Metadata<'static>, record: impl FnOnce(&mut Fields)) -> Record {
    let mut fields = Fields(BTreeMap::new());
    record(&mut fields);
    let (name, target, level) = (metadata.name(), metadata.target(), *metadata.level());
    let inside = INSIDE.with_borrow(|inside| inside.last().copied());
    Record { name, target, level, inside, fields: fields.0 }
}

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
