//! Injected errors: the Nth call, and sticky errors.

/// One call to fail.
#[derive(Debug)]
pub(crate) struct Fault {
    name: Option<String>,
    /// Matching calls to skip first.
    before: u64,
    code: u32,
}

/// Pending faults and call count of one device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pending: Vec<Fault>,
    /// Calls attributed to the device so far.
    pub(crate) calls: u64,
    /// The sticky error: returned by every call on the device's context.
    pub(crate) sticky: Option<u32>,
}

impl Faults {
    pub(crate) fn add(&mut self, name: Option<&str>, nth: u64, code: u32) {
        self.pending.push(Fault { name: name.map(str::to_owned), before: nth.saturating_sub(1), code });
    }

    /// Counts a call and returns the code of the fault that applies, if any. Calls that only read or change the
    /// thread's context stack are not `countable`: only faults that name them apply.
    pub(crate) fn hit(&mut self, name: &str, countable: bool) -> Option<u32> {
        self.calls += u64::from(countable);
        let mut hit = None;
        self.pending.retain_mut(|fault| {
            let matches = fault.name.as_deref().map_or(countable, |wanted| wanted == name);
            if !matches {
                return true;
            }
            if fault.before > 0 {
                fault.before -= 1;
                return true;
            }
            if hit.is_some() {
                return true;
            }
            hit = Some(fault.code);
            false
        });
        hit
    }
}
