//! Where the driver's functions come from: the system's library, opened once, or an implementation installed before.

use std::{
    env,
    ffi::{CStr, OsString, c_void},
    ptr::NonNull,
    sync::OnceLock,
};

use super::library::Library;
use crate::InstallError;

/// The variable that names the driver library to open instead of the system's; empty, it counts as not set.
const PATH_VARIABLE: &str = "TRANSLOAD_CUDA_DRIVER";

/// An implementation of the CUDA driver.
///
/// # Safety
/// * Each pointer that [`symbol`](Self::symbol) returns must be a function with the C ABI and the signature that the
///   CUDA driver API gives the name, and must stay callable from any thread for the life of the process.
/// * A name that is not implemented must answer `None`.
/// * The same holds for [`tool_symbol`](Self::tool_symbol) and the signatures that CUPTI's headers give the names.
pub unsafe trait SymbolSource: Send + Sync + 'static {
    /// What messages call this implementation, for example `transload-cuda-sim`.
    fn name(&self) -> &'static str;

    /// Whether results obtained on it must be called simulated.
    fn is_simulated(&self) -> bool;

    /// The function exported under `name`.
    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>>;

    /// The function that a tools library (CUPTI) exports under `name`, where this implementation answers for that as well.
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

/// Puts `source` in the place of the system's driver, for this process and for good.
///
/// # Errors
/// [`InstallError`] where a driver call (or another `install`) came first; installing the same source again is fine.
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

/// What was tried, where nothing could be opened; empty where a driver is loaded.
pub(crate) fn tried() -> Vec<String> {
    match loaded() {
        Loaded::Nothing { tried } => tried.clone(),
        _ => Vec::new(),
    }
}

/// Whether any driver stands behind the functions.
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
        // The last one is where the Windows Subsystem for Linux keeps the host's driver.
        &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"]
    };
    usual.iter().map(OsString::from).collect()
}

fn open() -> Loaded {
    let accept = |library: Library| match library.symbol(c"cuInit") {
        Some(_) => Ok(library),
        // Whatever else it may be, what cannot be initialised is no driver; its other symbols are not asked for.
        None => Err(format!("{} is no CUDA driver (it has no cuInit)", library.origin())),
    };
    // SAFETY: the driver's initialisers make no demand on the caller.
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
