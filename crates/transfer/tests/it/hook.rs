//! The process's hook of host accesses: tests stop, count or fail the threads that copy their own buffers.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;
use transload_core::{
    RawBuffer,
    host_access::{self, HostAccess},
};

use crate::staging::stop_here;

/// Called by each thread that accesses a buffer, with the offset.
type Called = Arc<dyn Fn(usize) + Send + Sync>;

static WATCHED: Mutex<Vec<(Range<usize>, HostAccess, Called)>> = Mutex::new(Vec::new());

/// Ends the calls for a buffer when dropped.
pub(crate) struct Watch(Range<usize>);

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.lock().retain(|(watched, ..)| *watched != self.0);
    }
}

pub(crate) fn install() {
    host_access::set_hook(|address, bytes, access| {
        stop_here(address, bytes, access);
        let is_of = |(watched, of, _): &&(Range<usize>, HostAccess, Called)| {
            *of == access && watched.contains(&address)
        };
        let found = WATCHED.lock().iter().find(is_of).cloned();
        if let Some((watched, _, called)) = found {
            called(address - watched.start);
        }
    });
}

/// Calls `called` before each read by the host from `buffer`.
pub(crate) fn watch(buffer: &RawBuffer, called: impl Fn(usize) + Send + Sync + 'static) -> Watch {
    watch_for(HostAccess::Read, buffer, called)
}

/// Calls `called` before each such access by the host to `buffer`.
pub(crate) fn watch_for(
    access: HostAccess,
    buffer: &RawBuffer,
    called: impl Fn(usize) + Send + Sync + 'static,
) -> Watch {
    install();
    let start = buffer.host_address().unwrap().addr().get();
    let watched = start..start + buffer.len();
    WATCHED.lock().push((watched.clone(), access, Arc::new(called)));
    Watch(watched)
}
