//! Libraries of the system, opened at run time.

use std::{
    error::Error as _,
    ffi::{CStr, OsString, c_void},
    ptr::NonNull,
};

/// An open library. Dropped, it is closed; forget it where addresses of its functions are kept.
pub struct Library {
    library: libloading::Library,
    origin: String,
}

impl Library {
    /// Opens the first of several files that `take` accepts. The others are closed again, unless it keeps them.
    ///
    /// # Errors
    /// What was tried, each with the reason: the system's, or that of `take`.
    ///
    /// # Safety
    /// * The initialisers of libraries of these names make no demand on the caller, nor do what ends them.
    pub unsafe fn open_first<T>(
        candidates: impl IntoIterator<Item = OsString>,
        mut take: impl FnMut(Self) -> Result<T, String>,
    ) -> Result<T, Vec<String>> {
        let mut tried = Vec::new();
        for candidate in candidates {
            let origin = candidate.to_string_lossy().into_owned();
            // SAFETY: the caller's promise.
            let taken = match unsafe { libloading::Library::new(&candidate) } {
                Ok(library) => take(Self { library, origin }),
                Err(error) => {
                    // The system's own words are the cause; they usually begin with the file's name.
                    let reason = error.source().map_or(error.to_string(), ToString::to_string);
                    Err(if reason.contains(&origin) { reason } else { format!("{origin}: {reason}") })
                }
            };
            match taken {
                Ok(taken) => return Ok(taken),
                Err(reason) => tried.push(reason),
            }
        }
        Err(tried)
    }

    /// The file's name as it was given.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The address of what is exported under `name`; who uses it knows its type.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the symbol is only copied as an address here.
        let symbol = unsafe { self.library.get::<*mut c_void>(name.to_bytes_with_nul()) };
        symbol.ok().and_then(|address| NonNull::new(*address))
    }
}
