//! Feature `nvtx`: ranges for tools such as Nsight Systems, by NVTX's injection interface.
//!
//! A tool names its library in an environment variable. The library is given a table of places, into which it writes its functions. This is
//! what NVTX's header (version 3) compiles into each program that includes it.

use std::{
    collections::BTreeMap,
    env,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    mem,
    ptr::{self, null_mut},
    sync::atomic::{AtomicPtr, Ordering},
};

use libloading::Library;
use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result, TransferId, TransferReport};

/// The variable by which a tool names its library.
const VARIABLE: &str =
    if cfg!(target_pointer_width = "64") { "NVTX_INJECTION64_PATH" } else { "NVTX_INJECTION32_PATH" };

/// Version of the interface.
const VERSION: u16 = 3;

/// Functions of each module of the interface, with the invalid first one. The modules of other libraries are there, and never called.
const MODULES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// The module of functions that take a domain, and its functions that are called.
const DOMAINS: usize = 5;
const RANGE_START: usize = 2;
const RANGE_END: usize = 3;
const DOMAIN_CREATE: usize = 12;
/// Places of a module, with a null one after the last.
const PLACES: usize = 17;

/// The functions of the tool.
static FUNCTIONS: [[AtomicPtr<c_void>; PLACES]; MODULES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; PLACES] }; MODULES.len()];
/// Where each function is, as the tool sees it.
static TABLES: [[AtomicPtr<*mut c_void>; PLACES]; MODULES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; PLACES] }; MODULES.len()];

type GetExportTable = unsafe extern "system" fn(u32) -> *const c_void;
type Initialize = unsafe extern "system" fn(GetExportTable) -> c_int;
type CreateDomain = unsafe extern "system" fn(*const c_char) -> *mut c_void;
type StartRange = unsafe extern "system" fn(*mut c_void, *const EventAttributes) -> u64;
type EndRange = unsafe extern "system" fn(*mut c_void, u64);

#[repr(C)]
struct Callbacks {
    size: usize,
    get_module: unsafe extern "system" fn(c_uint, *mut *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), get_module };

#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: unsafe extern "system" fn(u32),
}

static VERSION_INFO: VersionInfo =
    VersionInfo { size: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, set_tool_version };

#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

extern "system" fn get_export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

/// Tells the tool where the places of a module are.
///
/// # Safety
/// `table` and `size` are null or may be written.
unsafe extern "system" fn get_module(
    module: c_uint,
    table: *mut *mut *mut *mut c_void,
    size: *mut c_uint,
) -> c_int {
    let module = module as usize;
    let Some(count) = MODULES.get(module).filter(|count| **count > 0) else { return 0 };
    for (entry, function) in TABLES[module].iter().zip(&FUNCTIONS[module]).take(*count).skip(1) {
        entry.store(function.as_ptr(), Ordering::Relaxed);
    }
    // SAFETY: the tool passes null or a place for each result. Entries have the layout of pointers.
    unsafe {
        if !size.is_null() {
            *size = *count as c_uint;
        }
        if !table.is_null() {
            *table = (&raw const TABLES[module]).cast_mut().cast();
        }
    }
    1
}

extern "system" fn set_tool_version(_: u32) {}

/// A tool whose library was loaded. It is never unloaded: the tool may have threads and functions of its own.
#[derive(Clone, Copy)]
pub(crate) struct Tool(());

/// Whether it is loaded.
static LOADED: Mutex<bool> = Mutex::new(false);
/// The tool's handle of what this library passes.
static DOMAIN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Returns the tool's function of the module of domains.
fn function(index: usize) -> Option<*mut c_void> {
    Some(FUNCTIONS[DOMAINS][index].load(Ordering::Acquire)).filter(|function| !function.is_null())
}

impl Tool {
    /// Loads the library that the environment names, once in the process; `None` if it names none.
    pub(crate) fn load() -> Result<Option<Self>> {
        let mut loaded = LOADED.lock();
        if *loaded {
            return Ok(Some(Self(())));
        }
        let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return Ok(None) };
        let text = |what| format!("{VARIABLE}: {} {what}", path.display());
        let failed = |what, error| Error::caused_by(ErrorKind::Unsupported, text(what), error);
        // SAFETY: the user names a tool's library, whose initialisation is the tool's own.
        let library = unsafe { Library::new(&path) }.map_err(|error| failed("cannot be loaded", error))?;
        // SAFETY: the interface gives the function of this name this type.
        let initialize = unsafe { library.get::<Initialize>(c"InitializeInjectionNvtx2") };
        let initialize = *initialize.map_err(|error| failed("is no library of a tool", error))?;
        // SAFETY: the function that is passed has the interface's type, and lives as long as the process.
        if unsafe { initialize(get_export_table) } == 0 {
            // None that it wrote may be called once the library is gone.
            FUNCTIONS.iter().flatten().for_each(|function| function.store(null_mut(), Ordering::Release));
            return Err(Error::new(ErrorKind::Unsupported, text("refused to be initialised")));
        }
        mem::forget(library);
        if function(RANGE_START).or(function(RANGE_END)).is_none() {
            return Err(Error::new(ErrorKind::Unsupported, text("takes no ranges")));
        }
        if let Some(create) = function(DOMAIN_CREATE) {
            // SAFETY: the tool wrote a function of this type there, which copies the name.
            let domain =
                unsafe { mem::transmute::<*mut c_void, CreateDomain>(create)(c"transload".as_ptr()) };
            DOMAIN.store(domain, Ordering::Relaxed);
        }
        *loaded = true;
        Ok(Some(Self(())))
    }

    /// Starts a range, which may end on any thread. A name ends at its first NUL.
    fn start(self, name: &str, bytes: u64) -> u64 {
        let Some(start) = function(RANGE_START) else { return 0 };
        let name = CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default();
        let attributes = EventAttributes {
            version: VERSION,
            size: size_of::<EventAttributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            // An unsigned number of 64 bits.
            payload_type: 1,
            reserved: 0,
            payload: bytes,
            // Characters.
            message_type: 1,
            message: name.as_ptr(),
        };
        let domain = DOMAIN.load(Ordering::Relaxed);
        // SAFETY: the tool wrote a function of this type there. It reads the attributes, and the name in them, during the call.
        unsafe { mem::transmute::<*mut c_void, StartRange>(start)(domain, &raw const attributes) }
    }

    fn end(self, range: u64) {
        if let Some(end) = function(RANGE_END) {
            let domain = DOMAIN.load(Ordering::Relaxed);
            // SAFETY: the tool wrote a function of this type there; the range is one that it returned.
            unsafe { mem::transmute::<*mut c_void, EndRange>(end)(domain, range) }
        }
    }
}

/// A range until it is dropped.
pub(crate) struct Range {
    tool: Tool,
    range: u64,
}

impl Range {
    pub(crate) fn start(tool: Tool, name: &str, bytes: u64) -> Self {
        Self { tool, range: tool.start(name, bytes) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.tool.end(self.range);
    }
}

/// The ranges of a profiler's transfers.
pub(crate) struct Ranges {
    pub(crate) tool: Tool,
    /// `None` while no more are started.
    open: Mutex<Option<BTreeMap<TransferId, Range>>>,
}

impl Ranges {
    pub(crate) fn new(tool: Tool) -> Self {
        Self { tool, open: Mutex::new(None) }
    }

    /// Has ranges started from now on, or ends those that are there.
    pub(crate) fn set_open(&self, is_open: bool) {
        let mut open = self.open.lock();
        if is_open == open.is_some() || transload_core::mutant!("profiler/ranges-end-with-it") {
            return;
        }
        let ended = mem::replace(&mut *open, is_open.then(BTreeMap::new));
        // The tool is not called under the lock.
        drop(open);
        drop(ended);
    }

    /// Takes a transfer that was submitted.
    pub(crate) fn submitted(&self, report: &TransferReport) {
        let Some(id) = report.id else { return };
        if self.open.lock().is_some() {
            // Tools may take them for ASCII.
            let name = format!("{} {} to {}", report.method, report.path.src, report.path.dst);
            let range = Range::start(self.tool, &name, report.bytes);
            // Without a place it ends here. Ends are calls of the tool: not under the lock.
            let _ended = match &mut *self.open.lock() {
                Some(open) => open.insert(id, range),
                None => Some(range),
            };
        }
    }

    /// Takes a transfer whose end was seen, or whose handle was dropped.
    pub(crate) fn ended(&self, report: &TransferReport) {
        let _ended = report.id.and_then(|id| self.open.lock().as_mut()?.remove(&id));
    }
}
