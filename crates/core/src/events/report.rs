//! Reports events that several crates have in common. For authors of backends, too.
//!
//! A subscriber is user code, and may wait for what the reporting thread does. So these functions, which may be called anywhere, also
//! under locks and in destructors, only keep their events; the next [`emit_deferred`] emits them, possibly on another thread. Only
//! [`family_absent`] and those of calibrations emit at once. A subscriber's panic is discarded.

use std::{fmt::Display, path::Path, time::Duration};

use tracing::Level;

pub use super::deferred::emit_deferred;
use super::{
    deferred::{defer, discard_panic},
    *,
};
use crate::{DeviceId, Error, Place};

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reports [`TRANSFER_REFUSED`] of a transfer that no manager submitted.
#[cold]
pub(crate) fn transfer_refused(error: &Error) {
    defer(Level::DEBUG, || {
        let error = error.clone();
        move || tracing::debug!(name: TRANSFER_REFUSED, target: TRANSFER, %error, "transfer refused")
    });
}

/// Reports [`FAILURE_UNOBSERVED`] of a transfer that no manager submitted.
#[cold]
pub(crate) fn failure_unobserved(error: &Error) {
    if crate::mutant!("core/failure-unobserved") {
        return;
    }
    defer(Level::WARN, || {
        let error = error.clone();
        move || tracing::warn!(name: FAILURE_UNOBSERVED, target: TRANSFER, %error, "no caller observed this failure")
    });
}

/// Reports [`PANIC_CAUGHT`].
#[cold]
pub fn panic_caught(text: &str) {
    defer(Level::WARN, || {
        let text = text.to_owned();
        move || tracing::warn!(name: PANIC_CAUGHT, target: THREADS, text, "caught a panic")
    });
}

/// Reports [`THREAD_REFUSED`].
#[cold]
pub fn thread_refused(what: &'static str, error: &dyn Display) {
    defer(Level::WARN, || {
        let error = error.to_string();
        move || tracing::warn!(name: THREAD_REFUSED, target: THREADS, what, error, "cannot start a thread")
    });
}

/// Reports [`OWNER_DROPPED`].
#[cold]
pub fn owner_dropped(elapsed: Duration) {
    defer(Level::DEBUG, || {
        move || {
            tracing::debug!(
                name: OWNER_DROPPED,
                target: THREADS,
                elapsed_ns = nanos(elapsed),
                "dropped an owner of adopted memory or of a stream"
            );
        }
    });
}

/// Reports [`FIRST_USE`] of something of a driver.
#[cold]
pub fn first_use(what: &'static str, device: DeviceId, elapsed: Duration) {
    defer(Level::DEBUG, || {
        move || {
            tracing::debug!(
                name: FIRST_USE,
                target: DRIVER,
                what,
                %device,
                elapsed_ns = nanos(elapsed),
                "set up at first use"
            );
        }
    });
}

/// Reports [`CONTEXT_LOST`].
#[cold]
pub fn context_lost(device: DeviceId, error: &Error) {
    defer(Level::ERROR, || {
        let error = error.clone();
        move || tracing::error!(name: CONTEXT_LOST, target: DRIVER, %device, %error, "context is unusable")
    });
}

/// Reports [`DROP_FAILED`].
#[cold]
pub fn drop_failed(error: &dyn Display) {
    defer(Level::WARN, || {
        let error = error.to_string();
        move || tracing::warn!(name: DROP_FAILED, target: DRIVER, error, "a destructor's driver call failed")
    });
}

/// Reports [`CALL_FAILED`].
#[cold]
pub fn call_failed(what: &'static str, device: impl Into<Option<DeviceId>>, error: &dyn Display) {
    let device = device.into();
    defer(Level::WARN, || {
        let error = error.to_string();
        move || {
            let device = device.as_ref().map(tracing::field::display);
            tracing::warn!(name: CALL_FAILED, target: DRIVER, what, device, error, "worked around a failed call");
        }
    });
}

/// Reports [`KERNEL_UNAVAILABLE`] of a driver.
#[cold]
pub fn kernel_unavailable(device: DeviceId, error: &Error) {
    defer(Level::INFO, || {
        let error = error.clone();
        move || {
            tracing::info!(
                name: KERNEL_UNAVAILABLE,
                target: DRIVER,
                %device,
                %error,
                "the driver fills instead of the fill kernel"
            );
        }
    });
}

/// Reports [`FAMILY_ABSENT`] at once: call it under no lock for which another thread waits.
#[cold]
pub fn family_absent(family: &str, error: &Error) {
    discard_panic(
        || tracing::info!(name: FAMILY_ABSENT, target: DRIVER, family, %error, "no device of this family"),
    );
}

/// Reports [`CALIBRATION_IGNORED`] at once: call it under no lock for which another thread waits.
#[cold]
pub fn calibration_ignored(file: &Path, error: &Error) {
    let file = file.display();
    discard_panic(
        || tracing::warn!(name: CALIBRATION_IGNORED, target: TRANSFER, %file, %error, "ignored a calibration"),
    );
}

/// Reports [`CALIBRATION_NOT_STORED`] at once: call it under no lock for which another thread waits.
#[cold]
pub fn calibration_not_stored(error: &Error) {
    discard_panic(
        || tracing::warn!(name: CALIBRATION_NOT_STORED, target: TRANSFER, %error, "a calibration is not kept"),
    );
}

/// Reports [`TRACE_WRITTEN`].
#[cold]
pub fn trace_written(file: &Path, contents: &dyn Display) {
    defer(Level::INFO, || {
        let (file, contents) = (file.to_owned(), contents.to_string());
        move || {
            let file = file.display();
            tracing::info!(name: TRACE_WRITTEN, target: TRANSFER, %file, contents, "ended a trace");
        }
    });
}

/// Reports [`TRACE_FAILED`].
#[cold]
pub fn trace_failed(file: &Path, error: &Error) {
    defer(Level::WARN, || {
        let (file, error) = (file.to_owned(), error.clone());
        move || {
            let file = file.display();
            tracing::warn!(name: TRACE_FAILED, target: TRANSFER, %file, %error, "no trace, or not all of it");
        }
    });
}

/// Reports [`ALLOCATION_RETRIED`].
#[cold]
pub fn allocation_retried(place: Place, bytes: u64, how: &'static str) {
    defer(Level::INFO, || {
        move || {
            tracing::info!(
                name: ALLOCATION_RETRIED,
                target: MEMORY,
                %place,
                bytes,
                how,
                "memory was short at first"
            );
        }
    });
}

/// Reports [`PAGES_DECLINED`].
#[cold]
pub fn pages_declined(what: &'static str, bytes: impl Into<Option<usize>>, error: &dyn Display) {
    let bytes = bytes.into();
    defer(Level::INFO, || {
        let error = error.to_string();
        move || {
            tracing::info!(name: PAGES_DECLINED, target: MEMORY, what, bytes, error, "got other pages instead");
        }
    });
}

/// Reports [`HOST_REGISTERED`].
#[cold]
pub fn host_registered(address: usize, bytes: usize, elapsed: Duration) {
    defer(Level::DEBUG, || {
        move || {
            tracing::debug!(
                name: HOST_REGISTERED,
                target: MEMORY,
                address,
                bytes,
                elapsed_ns = nanos(elapsed),
                "registered host memory"
            );
        }
    });
}

/// Reports [`HOST_UNREGISTERED`].
#[cold]
pub fn host_unregistered(address: usize, error: Option<&dyn Display>) {
    defer(Level::DEBUG, || {
        let error = error.map(ToString::to_string);
        move || {
            tracing::debug!(name: HOST_UNREGISTERED, target: MEMORY, address, error, "ended a registration");
        }
    });
}

/// Reports [`HINT_DECLINED`].
#[cold]
pub fn hint_declined(what: &'static str, device: DeviceId, bytes: usize, error: &dyn Display) {
    defer(Level::DEBUG, || {
        let error = error.to_string();
        move || {
            tracing::debug!(
                name: HINT_DECLINED,
                target: MEMORY,
                what,
                %device,
                bytes,
                error,
                "pages migrate on access instead"
            );
        }
    });
}

/// Reports [`UNIFIED_COPY_FAILED`].
#[cold]
pub fn unified_copy_failed(device: DeviceId, bytes: usize, error: &Error) {
    defer(Level::WARN, || {
        let error = error.clone();
        move || {
            tracing::warn!(
                name: UNIFIED_COPY_FAILED,
                target: MEMORY,
                %device,
                bytes,
                %error,
                "a unified buffer's copy failed and is repeated"
            );
        }
    });
}
