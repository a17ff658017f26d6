//! A process-wide `tracing` subscriber that keeps this library's events.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
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

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
    pub(crate) level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl Record {
    /// Returns a field's text.
    #[allow(dead_code, reason = "not every test that includes this file reads fields")]
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

static ENABLED: AtomicBool = AtomicBool::new(false);
static RECORDS: Mutex<Vec<Record>> = Mutex::new(Vec::new());
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

fn recorded(enabled: bool, body: impl FnOnce()) -> Vec<Record> {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| set_global_default(EventLog).expect("no other subscriber"));
    let _others_wait = locked(&ONE_AT_A_TIME);
    ENABLED.store(enabled, Ordering::SeqCst);
    rebuild_interest_cache();
    locked(&RECORDS).clear();
    body();
    std::mem::take(&mut *locked(&RECORDS))
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

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let metadata = event.metadata();
        let (name, target, level) = (metadata.name(), metadata.target(), *metadata.level());
        locked(&RECORDS).push(Record { name, target, level, fields: fields.0 });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
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
