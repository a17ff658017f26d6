//! Costs that advice rests on.

use parking_lot::Mutex;
use transload_core::KnownCosts;

type ReadCosts = Box<dyn FnMut() -> Option<KnownCosts> + Send>;

/// Where costs come from, and what they were last.
#[derive(Default)]
pub(crate) struct Costs(Mutex<(Option<ReadCosts>, KnownCosts)>);

impl Costs {
    pub(crate) fn set(&self, read: impl FnMut() -> Option<KnownCosts> + Send + 'static) {
        self.0.lock().0 = Some(Box::new(read));
    }

    /// Reads them. Calls user code.
    pub(crate) fn read(&self) -> KnownCosts {
        let (read, last) = &mut *self.0.lock();
        if let Some(now) = read.as_mut().and_then(|read| read()) {
            *last = now;
        }
        last.clone()
    }
}
