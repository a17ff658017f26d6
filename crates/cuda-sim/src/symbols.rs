//! Table of the exported driver functions.

use std::{ffi::c_void, ptr::NonNull};

use crate::api::{
    batch, context, copy, device, event, external, fill, graph, host_memory, managed, memory, module,
    pointer, pool, stream,
};

/// Returns the functions of all modules.
fn symbols() -> impl Iterator<Item = &'static (&'static str, *const ())> {
    [
        batch::SYMBOLS,
        context::SYMBOLS,
        copy::SYMBOLS,
        device::SYMBOLS,
        event::SYMBOLS,
        external::SYMBOLS,
        fill::SYMBOLS,
        graph::SYMBOLS,
        host_memory::SYMBOLS,
        managed::SYMBOLS,
        memory::SYMBOLS,
        module::SYMBOLS,
        pointer::SYMBOLS,
        pool::SYMBOLS,
        stream::SYMBOLS,
    ]
    .into_iter()
    .flatten()
}

/// Returns all exported names.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    symbols().map(|(name, _)| *name)
}

/// Returns the function exported under a name.
pub(crate) fn find(wanted: &str) -> Option<NonNull<c_void>> {
    in_table(symbols(), wanted)
}

/// Looks a function up by name in a table.
pub(crate) fn in_table<'a>(
    mut table: impl Iterator<Item = &'a (&'static str, *const ())>,
    wanted: &str,
) -> Option<NonNull<c_void>> {
    NonNull::new(table.find(|(name, _)| *name == wanted)?.1.cast_mut().cast())
}

#[cfg(test)]
#[path = "../tests/unit/symbols.rs"]
mod tests;
