//! Counts what warm operations do, and collects it as text.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Result, ensure};
use transload_benches::allocations;
use transload_cuda_sim::{CallCounts, SimDevice, count_calls};

/// Operations before the first one that is counted.
const WARM_UP: u32 = 8;
/// Operations that are counted.
const COUNTED: u32 = 8;
/// Beginnings of the names of calls that enqueue work.
const WORK: [&str; 5] = ["cuMemcpy", "cuMemset", "cuMemPrefetch", "cuLaunchKernel", "cuGraphLaunch"];

/// What of an operation is the same in every run. What is not is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steady {
    /// All that the calling thread does.
    All,
    /// All that the calling thread does; the virtual time is not.
    Calls,
    /// The work and the events that the calling thread enqueues.
    Enqueued,
    /// The work that is enqueued, by whatever thread.
    Work,
    /// Nothing that is counted.
    Nothing,
}

/// What is known of each operation, by its name.
pub(crate) struct Counts(BTreeMap<String, Vec<String>>);

impl Counts {
    pub(crate) fn new() -> Result<Self> {
        ensure!(allocations::is_counting(), "this program's allocator does not count");
        Ok(Self(BTreeMap::new()))
    }

    /// Adds facts that are not counted.
    pub(crate) fn state(&mut self, name: &str, facts: impl IntoIterator<Item = String>) {
        self.0.entry(name.to_owned()).or_default().extend(facts);
    }

    /// Repeats an operation on the devices. Counts what `start` does; of work, also what `finish` does, which waits for its end.
    pub(crate) fn count<T>(
        &mut self,
        (name, steady): (&str, Steady),
        devices: &[SimDevice],
        mut start: impl FnMut() -> Result<T>,
        mut finish: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        if steady == Steady::Nothing {
            return Ok(());
        }
        for _ in 0..WARM_UP {
            finish(start()?)?;
        }
        let (mut heap, mut calls, begun) = (0, BTreeMap::new(), now(devices));
        for _ in 0..COUNTED {
            let mut started = None;
            let (counted, CallCounts { own, others }) = count_calls(|| {
                let allocated = allocations::count_of_thread(|| {
                    started = Some(start()?);
                    anyhow::Ok(())
                })?;
                if steady == Steady::Work {
                    started.take().map_or(Ok(()), &mut finish)?;
                }
                anyhow::Ok(allocated)
            });
            heap += counted?;
            let others = others.into_iter().filter(|_| steady == Steady::Work);
            for (name, count) in own.into_iter().chain(others) {
                *calls.entry(name).or_default() += count;
            }
            started.map_or(Ok(()), &mut finish)?;
        }
        let mut facts = Vec::new();
        let each = |count: u64| count as f64 / f64::from(COUNTED);
        let is_work = |name: &str| WORK.iter().any(|begin| name.starts_with(begin));
        match steady {
            Steady::Work => calls.retain(|name, _| is_work(name)),
            Steady::Enqueued => calls.retain(|name, _| is_work(name) || *name == "cuEventRecord"),
            _ => facts.push(format!("heap allocations {}", each(heap))),
        }
        if steady == Steady::All {
            facts.push(format!("virtual time {} ns", each(now(devices) - begun)));
        }
        facts.extend(calls.into_iter().map(|(name, count)| format!("{name} {}", each(count))));
        self.state(name, facts);
        Ok(())
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for (name, facts) in &self.0 {
            // Writing to a string cannot fail.
            let _written = writeln!(out, "\n{name}\n  {}", facts.join("\n  "));
        }
        out
    }
}

/// Returns the virtual time of the devices together in nanoseconds.
fn now(devices: &[SimDevice]) -> u64 {
    devices.iter().map(|device| u64::try_from(device.now().as_nanos()).unwrap_or(u64::MAX)).sum()
}
