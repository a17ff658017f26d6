//! Conversion of driver errors to core's errors.

use std::sync::Arc;

use transload_core::{
    DeviceId, Error, ErrorKind, MemoryInfo, MemoryKind, MemoryShortage, Place, Result, events::report,
    host_memory, mutant,
};
use transload_cuda_sys::{Context, DriverError, Loss};

/// Converts a driver error to core's error type, with the driver error as its source.
#[must_use]
pub fn lift(error: DriverError) -> Error {
    let (kind, message) = match &error {
        DriverError::NotFound { .. } => (ErrorKind::NoDriver, "CUDA is not available"),
        DriverError::NoDevice => (ErrorKind::NoDevice, "CUDA is not available"),
        DriverError::TooOld { .. } => (ErrorKind::DriverTooOld, "CUDA is not usable"),
        DriverError::MissingFunction { .. } => {
            (ErrorKind::MissingFunction, "the CUDA driver is too old for this")
        }
        DriverError::UnknownDevice { .. } => (ErrorKind::UnknownDevice, "unknown device"),
        DriverError::OtherContext { .. } => (ErrorKind::InvalidArgument, "CUDA"),
        other if other.is_sticky() => {
            (ErrorKind::DeviceLost, "the CUDA context is unusable; only a new process recovers it")
        }
        other if other.is_out_of_memory() => (ErrorKind::OutOfMemory, "CUDA"),
        _ => (ErrorKind::Device, "CUDA"),
    };
    Error::caused_by(kind, message, error)
}

/// Like [`lift`], for a call in a context. If the context is unusable, the error names the device, and is recorded. Else the call names
/// memory, an event or a stream of another device that is lost.
#[must_use]
pub fn lift_in(context: &Context, error: DriverError) -> Error {
    let error = context.judge_unknown(error);
    if !error.is_sticky() || mutant!("memory/call-tells-loss") {
        return lift(error);
    }
    match memory_info(context) {
        _ if matches!(error, DriverError::Unresponsive { .. }) => lost_here(context, error),
        Err(again) if again.is_sticky() => lost_here(context, error),
        _ => lost_elsewhere(context, error),
    }
}

/// Records that the context of a call that uses no other device is unusable.
fn lost_here(context: &Context, error: DriverError) -> Error {
    let device = DeviceId::Cuda(context.device().ordinal());
    let text = format!("{device} is lost: its CUDA context is unusable; only a new process recovers it");
    let error = Error::caused_by(ErrorKind::DeviceLost, text, error);
    record_loss(context, &error);
    error
}

/// Returns the error of a call in a context that is well: of kind [`ErrorKind::Device`], since the device of the call is not lost.
#[must_use]
pub fn lost_elsewhere(context: &Context, error: DriverError) -> Error {
    let device = DeviceId::Cuda(context.device().ordinal());
    let text = format!("{device} is well, but the call uses another device, which is lost");
    Error::caused_by(ErrorKind::Device, text, error)
}

/// Like [`lift`], but adds requested, free and total bytes to an out-of-memory error.
pub(crate) fn lift_allocation(
    error: DriverError,
    context: &Context,
    place: Place,
    requested: usize,
) -> Error {
    let error = context.judge_unknown(error);
    if error.is_sticky() {
        return lost_here(context, error);
    }
    if !error.is_out_of_memory() {
        return lift(error);
    }
    let info = match place.kind {
        MemoryKind::Device | MemoryKind::Unified => memory_info(context).ok(),
        _ => host_memory().ok(),
    };
    let (free, total) = (info.map(|info| info.free), info.map(|info| info.total));
    let shortage = MemoryShortage { requested: requested as u64, free, total };
    Error::out_of_memory(place, shortage)
}

/// Returns free and total bytes of device memory.
pub(crate) fn memory_info(context: &Context) -> Result<MemoryInfo, DriverError> {
    context.memory_info().map(|(free, total)| MemoryInfo { free: free as u64, total: total as u64 })
}

/// Records that the context is unusable if `error` is `DeviceLost`. The first recorded cause is kept.
pub fn record_loss(context: &Context, error: &Error) {
    if error.kind() == ErrorKind::DeviceLost && !mutant!("memory/record-loss") {
        let is_first = context.record_loss(Arc::new(error.clone()));
        if is_first {
            report::context_lost(DeviceId::Cuda(context.device().ordinal()), error);
        }
    }
}

/// # Errors
/// [`ErrorKind::DeviceLost`] with the first cause if the context is known to be lost.
#[inline]
pub(crate) fn check_usable(context: &Context) -> Result<()> {
    context.loss().map_or(Ok(()), |cause| Err(lost(context, Arc::clone(cause))))
}

#[cold]
fn lost(context: &Context, cause: Loss) -> Error {
    let device = DeviceId::Cuda(context.device().ordinal());
    Error::caused_by(ErrorKind::DeviceLost, format!("{device} was lost earlier; first cause follows"), cause)
}
