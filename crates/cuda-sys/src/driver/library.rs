//! Dynamic libraries, opened at run time.

use std::{
    error::Error as _,
    ffi::{CStr, OsString, c_void},
    ptr::NonNull,
};

/// An open library, closed on drop. Forget it if addresses of its functions are kept.
pub struct Library {
    library: libloading::Library,
    origin: String,
}

impl Library {
    /// Opens the first candidate that `take` accepts. Rejected ones are closed, unless `take` keeps them.
    ///
    /// # Errors
    /// Each candidate with the reason: the system's, or that of `take`.
    ///
    /// # Safety
    /// * The initialisers and finalisers of the candidates have no preconditions.
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
                    // The system's message is the cause; it usually starts with the file name.
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

    /// Returns the file name as given.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the address of the symbol `name`, whose type the caller must know.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the symbol is only copied as an address here.
        let symbol = unsafe { self.library.get::<*mut c_void>(name.to_bytes_with_nul()) };
        symbol.ok().and_then(|address| NonNull::new(*address))
    }
}
