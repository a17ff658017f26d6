//! Feature `profiler`: what streams and transfers do, when and how fast: reports, and traces for Perfetto.
//!
//! [`Runtime::profile`] profiles a runtime. To record a program without changing it, see [`TRACE_VARIABLE`].

pub(crate) mod recording;
mod slot;

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Weak},
};

pub use transload_core::OperationSampling;
use transload_core::{Backend, Observer, Result};
pub use transload_profiler::*;

pub(crate) use self::{
    recording::{Recording, trace_variable},
    slot::ObserverSlot,
};
use crate::{Runtime, families};

/// The environment variable that has every runtime of a process record a trace, from its discovery until its last handle is dropped or the process
/// ends: the path of a file, for Perfetto. `transload trace -- COMMAND` sets it.
///
/// A file that exists is not replaced: the trace goes to the first free one of `NAME.2.EXT` to `NAME.64.EXT`, so that several runtimes and
/// processes do not disturb each other. All operations are timed, up to a million slices. A file that cannot be written is an event
/// ([`TRACE_FAILED`](crate::backend::events::TRACE_FAILED)) and a line on the standard error stream, and nothing else fails. Unset or empty, nothing is recorded.
pub const TRACE_VARIABLE: &str = "TRANSLOAD_TRACE";

/// If this variable is set next to [`TRACE_VARIABLE`], a trace has the exact spans of engines too ([`StreamProfiler::record_engines`]): `transload trace --engines`
/// sets it. If they cannot be recorded, the trace goes without, and a line on the standard error stream says why.
pub const TRACE_ENGINES_VARIABLE: &str = "TRANSLOAD_TRACE_ENGINES";

/// The profiler of a runtime, by [`Runtime::profile`]: a [`StreamProfiler`] that knows all its devices and transfers. Dropping it ends the
/// profiling; it may outlive the runtime.
pub struct RuntimeProfiler {
    profiler: StreamProfiler,
    slot: Arc<ObserverSlot>,
    observer: Arc<dyn Observer>,
}

impl Runtime {
    /// Profiles this runtime from now on: the operations of all its devices, the host included, and all its transfers. A device whose work cannot be
    /// measured, such as one of OpenGL, is [unavailable](ProfilerReport::unavailable) in reports, and its transfers are profiled all the same.
    ///
    /// ```
    /// use transload::{Runtime, profiler::ProfilerOptions};
    ///
    /// let rt = Runtime::discover()?;
    /// let profiler = rt.profile(ProfilerOptions::new())?;
    /// rt.copy(&rt.zeros::<u8>(8 << 20)?, &rt.zeros::<u8>(8 << 20)?).wait()?;
    /// println!("{}", profiler.get_comprehensive_report());
    /// # assert_eq!(profiler.get_comprehensive_report().paths[0].sampled_bytes, 8 << 20);
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if it is profiled already, also by [`TRACE_VARIABLE`], or a device has another profiler;
    /// those of [`StreamProfiler::enable`].
    pub fn profile(&self, options: ProfilerOptions) -> Result<RuntimeProfiler> {
        let profiler = StreamProfiler::new(options);
        let (slot, observer) = (Arc::clone(self.observers()), profiler.observer());
        slot.attach(Arc::clone(&observer))?;
        // Detaches what is attached if something is refused.
        let attached = RuntimeProfiler { profiler, slot, observer };
        let backends = self.backends();
        backends.iter().try_for_each(|backend| attached.attach(backend))?;
        let pins: Vec<Weak<dyn Backend>> =
            backends.iter().filter(|it| families::pinned(&***it).is_some()).map(Arc::downgrade).collect();
        if !pins.is_empty() {
            attached.add_gauge("pinned host memory", Unit::Bytes, move || pinned_bytes(&pins));
        }
        attached.set_costs(self.manager().costs_reader());
        attached.enable()?;
        Ok(attached)
    }
}

/// Returns the bytes that backends have pinned; `None` once all are gone.
fn pinned_bytes(backends: &[Weak<dyn Backend>]) -> Option<f64> {
    let alive = backends.iter().filter_map(Weak::upgrade);
    let pinned = alive.filter_map(|backend| families::pinned(&*backend)).map(|pinned| pinned.bytes as f64);
    pinned.reduce(|sum, bytes| sum + bytes)
}

impl Deref for RuntimeProfiler {
    type Target = StreamProfiler;

    fn deref(&self) -> &StreamProfiler {
        &self.profiler
    }
}

impl Drop for RuntimeProfiler {
    fn drop(&mut self) {
        self.profiler.disable();
        self.slot.detach(&self.observer);
    }
}

impl fmt::Debug for RuntimeProfiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuntimeProfiler").field(&self.profiler).finish()
    }
}
