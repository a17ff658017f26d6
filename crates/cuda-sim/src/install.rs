//! Installs the software driver in place of the system's CUDA driver.

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
    sync::OnceLock,
};

use transload_core::host_access::{self, HostAccess};
use transload_cuda_sys::{InstallError, SymbolSource};

use crate::{
    access::AccessKind, activities, api::cupti, device::Residency, kernels, memory::Kind, migrations::Cause,
    options::DriverOptions, scheduler, state, symbols,
};

/// The name that `Driver::origin` returns for this driver.
pub const NAME: &str = "transload-cuda-sim";

struct Sim;

static SIM: Sim = Sim;
static OPTIONS: OnceLock<DriverOptions> = OnceLock::new();

/// Returns the options the driver was installed with.
pub(crate) fn options() -> &'static DriverOptions {
    OPTIONS.get_or_init(DriverOptions::default)
}

// SAFETY: `symbols::find` returns functions of this crate that have the C ABI and the signatures of the driver API (the
// test `symbols_have_the_signatures_of_cuda_sys` compares them); code is never unloaded. Unknown names return `None`.
unsafe impl SymbolSource for Sim {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let name = name.to_str().ok()?;
        if options().missing.contains(name) { None } else { symbols::find(name) }
    }

    fn tool_symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let missing = name.to_str().is_ok_and(|name| options().missing.contains(name));
        if missing { None } else { cupti::find(name) }
    }
}

/// Makes the software driver the CUDA driver of this process, and subscribes to announced host accesses. Repeated calls
/// have no effect and do not change the options.
///
/// # Errors
/// [`InstallError`] if a driver was used before.
pub fn install() -> Result<(), InstallError> {
    install_with(DriverOptions::default())
}

/// Like [`install`], but with driver options. They hold for the whole process, so a test that needs other options must
/// be a test binary of its own.
///
/// # Errors
/// [`InstallError`] if a driver was used before.
pub fn install_with(options: DriverOptions) -> Result<(), InstallError> {
    OPTIONS.get_or_init(|| options);
    transload_cuda_sys::install(&SIM)?;
    kernels::register();
    host_access::set_hook(on_host_access);
    Ok(())
}

/// Handles an announced host access, before it happens.
fn on_host_access(address: usize, bytes: usize, access: HostAccess) {
    if !state::TRACKS_HOST_ACCESSES.load(std::sync::atomic::Ordering::Acquire) || bytes == 0 {
        return;
    }
    let mut state = state::lock();
    let address = address as u64;
    let Some(allocation) = state.memory.find_mut(address) else { return };
    let device = allocation.device;
    let offset = address - allocation.base;
    let managed = if let Kind::Managed(managed) = &mut allocation.kind {
        managed.migrate(allocation.base, offset, bytes as u64, Residency::Host, Cause::Access);
        true
    } else {
        false
    };
    if managed {
        let at = state.now(device);
        let at = activities::host_time(at, &state.device(device).options);
        cupti::time_migrations(|| (at, at));
    }
    if managed && !state.device(device).options.concurrent_managed {
        let busy = state.streams.values().any(|stream| stream.device == device && !stream.queue.is_empty());
        if busy {
            state.device_mut(device).forbidden_accesses.push(address as usize);
        }
    }
    let (operation, kind) = match access {
        HostAccess::Read => ("host read", AccessKind::Read),
        HostAccess::Write => ("host write", AccessKind::Write),
    };
    scheduler::host_access(&mut state, operation, address, bytes, kind);
    if let Some(gbps) = state.device(device).options.host_copy_gbps {
        let device = state.device_mut(device);
        device.now = device.now.saturating_add((bytes as f64 / gbps.max(1e-6)) as u64);
    }
}
