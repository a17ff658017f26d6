//! The source of the driver's functions: the system's library, opened once, or an implementation installed earlier.

use std::{
    env,
    ffi::{CStr, OsString, c_void},
    ptr::NonNull,
    sync::OnceLock,
};

use super::library::Library;
use crate::InstallError;

/// Environment variable with the path of the driver library; empty counts as not set.
const PATH_VARIABLE: &str = "TRANSLOAD_CUDA_DRIVER";

/// An implementation of the CUDA driver.
///
/// # Safety
/// * Each pointer that [`symbol`](Self::symbol) returns must be a function with the C ABI and the signature that the
///   CUDA driver API gives the name, and must stay callable from any thread for the life of the process.
/// * [`symbol`](Self::symbol) returns `None` for a name that is not implemented.
/// * The same holds for [`tool_symbol`](Self::tool_symbol) and the signatures that CUPTI's headers give the names.
pub unsafe trait SymbolSource: Send + Sync + 'static {
    /// Returns the name used in messages, for example `transload-cuda-sim`.
    fn name(&self) -> &'static str;

    /// Returns whether results obtained on it must be labelled as simulated.
    fn is_simulated(&self) -> bool;

    /// Returns the function exported under `name`.
    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>>;

    /// Returns the function that the tools library CUPTI exports under `name`, if implemented.
    fn tool_symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let _none_of_its_own = name;
        None
    }
}

enum Loaded {
    /// Never closed: functions of it are cached for the life of the process.
    Library(Library),
    Installed(&'static dyn SymbolSource),
    Nothing {
        tried: Vec<String>,
    },
}

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// Replaces the system's driver by `source`, for the rest of the process.
///
/// # Errors
/// [`InstallError`] after a driver call or another `install`; installing the same source again succeeds.
pub fn install(source: &'static dyn SymbolSource) -> Result<(), InstallError> {
    match LOADED.get_or_init(|| Loaded::Installed(source)) {
        Loaded::Installed(present) if std::ptr::addr_eq(*present, source) => Ok(()),
        _ => Err(InstallError { in_use: origin() }),
    }
}

fn loaded() -> &'static Loaded {
    LOADED.get_or_init(open)
}

pub(crate) fn is_simulated() -> bool {
    matches!(loaded(), Loaded::Installed(source) if source.is_simulated())
}

pub(crate) fn installed() -> Option<&'static dyn SymbolSource> {
    match loaded() {
        Loaded::Installed(source) => Some(*source),
        _ => None,
    }
}

pub(crate) fn origin() -> &'static str {
    match loaded() {
        Loaded::Library(library) => library.origin(),
        Loaded::Installed(source) => source.name(),
        Loaded::Nothing { .. } => "no driver",
    }
}

/// Returns the candidates tried if no driver could be opened; empty if one is loaded.
pub(crate) fn tried() -> Vec<String> {
    match loaded() {
        Loaded::Nothing { tried } => tried.clone(),
        _ => Vec::new(),
    }
}

/// Returns whether a driver is loaded or installed.
pub(super) fn is_present() -> bool {
    !matches!(loaded(), Loaded::Nothing { .. })
}

pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    match loaded() {
        Loaded::Library(library) => library.symbol(name),
        Loaded::Installed(source) => source.symbol(name),
        Loaded::Nothing { .. } => None,
    }
}

fn named() -> Option<OsString> {
    env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty())
}

fn candidates() -> Vec<OsString> {
    if let Some(path) = named() {
        return vec![path];
    }
    let usual: &[&str] = if cfg!(windows) {
        &["nvcuda.dll"]
    } else {
        // The last one is the host's driver under the Windows Subsystem for Linux.
        &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"]
    };
    usual.iter().map(OsString::from).collect()
}

fn open() -> Loaded {
    let accept = |library: Library| match library.symbol(c"cuInit") {
        Some(_) => Ok(library),
        // Without `cuInit` it is no driver; other symbols are not checked.
        None => Err(format!("{} is no CUDA driver (it has no cuInit)", library.origin())),
    };
    // SAFETY: the driver's initialisers have no preconditions.
    match unsafe { Library::open_first(candidates(), accept) } {
        Ok(library) => Loaded::Library(library),
        Err(mut tried) => {
            if named().is_none() {
                tried.push(format!("the variable {PATH_VARIABLE} (not set)"));
            }
            Loaded::Nothing { tried }
        }
    }
}
