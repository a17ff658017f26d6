//! The functions behind cust's declarations: for each driver function a Rust function that looks the real one up at its
//! first call, and a hidden symbol of the C name that jumps to it.
//!
//! cust's bindings declare `extern "C" { fn cuInit(..); }` and link with `-lcuda`. The aliases below define these names
//! in the program, so that `-lcuda` need not. They are *hidden*: a cdylib that contains them does not export them, so
//! it cannot replace the real driver for the rest of its process.

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use super::{code, generated::KNOWN_CODES, loader};

/// Keeps the object file with the aliases in the link.
///
/// GNU ld takes an archive member only if an earlier object references one of its symbols. `cust_raw`, which references
/// the aliases, comes later on the command line, so [`Driver::get`](super::Driver::get) references one.
pub(super) fn anchor() {
    super::generated::anchor();
}

/// Cached address of a function.
pub(super) struct Slot(AtomicPtr<c_void>);

impl Slot {
    pub(super) const fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the function's address, or the code that says why there is none.
    #[inline]
    pub(super) fn get(&self, name: &CStr) -> Result<*mut c_void, u32> {
        // Acquire pairs with the release below; the pointed-to code is immutable.
        let cached = self.0.load(Ordering::Acquire);
        if cached.is_null() { self.find(name) } else { Ok(cached) }
    }

    #[cold]
    fn find(&self, name: &CStr) -> Result<*mut c_void, u32> {
        match loader::symbol(name) {
            Some(address) => {
                self.0.store(address.as_ptr(), Ordering::Release);
                Ok(address.as_ptr())
            }
            None if loader::is_present() => Err(code::ABSENT_FUNCTION),
            None => Err(code::ABSENT_DRIVER),
        }
    }
}

/// Maps a code to cust's enum, in which an unlisted value would be undefined behaviour.
#[inline]
pub(super) fn code_for_cust(raw: u32) -> u32 {
    if raw == code::SUCCESS { raw } else { rare_code_for_cust(raw) }
}

#[cold]
fn rare_code_for_cust(raw: u32) -> u32 {
    match raw {
        code::ABSENT_DRIVER => code::NO_DEVICE,
        code::ABSENT_FUNCTION => code::NOT_SUPPORTED,
        listed if KNOWN_CODES.binary_search(&listed).is_ok() => listed,
        _ => code::UNKNOWN,
    }
}

/// Defines one looked-up function per line: `fn name(argument: type, ..);`, each returning the driver's code.
macro_rules! driver_functions {
    ($( fn $name:ident($($argument:ident: $type:ty),* $(,)?); )*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the CUDA driver API.\n\n# Safety\n\n")]
            #[doc = "* The preconditions are those that the CUDA driver API documents for this function."]
            #[inline]
            pub unsafe fn $name($($argument: $type),*) -> u32 {
                type Function = unsafe extern "C" fn($($type),*) -> u32;
                static SLOT: $crate::driver::table::Slot = $crate::driver::table::Slot::empty();
                // A constant, so that it is checked at compile time.
                const NAME: &::std::ffi::CStr = match ::std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                match SLOT.get(NAME) {
                    Ok(address) => {
                        // SAFETY: the address was exported under this function's name by an implementation of the
                        // driver, whose signature for the name is `Function`.
                        let function = unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, Function>(address) };
                        // SAFETY: the caller upholds the function's preconditions.
                        let code = unsafe { function($($argument),*) };
                        // By value: borrowed arguments would be kept in memory during the call.
                        $crate::driver::trace::record(stringify!($name), code, move || {
                            [$($crate::driver::trace::Word::word(&$argument)),*].to_vec()
                        });
                        code
                    }
                    Err(code) => {
                        // A call of a missing function is recorded too.
                        $crate::driver::trace::record(stringify!($name), code, Vec::new);
                        code
                    }
                }
            }
        )*
    };
}
pub(super) use driver_functions;

/// Like [`driver_functions`], and also defines the symbol that cust's bindings link to.
macro_rules! beneath_cust {
    ($( fn $name:ident($($argument:ident: $type:ty),* $(,)?); )*) => {
        $crate::driver::table::driver_functions! { $( fn $name($($argument: $type),*); )* }

        mod beneath {
            use super::*;

            $(
                /// # Safety
                ///
                /// * As for the driver function of the same name.
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                    // SAFETY: the caller upholds the driver function's preconditions.
                    $crate::driver::table::code_for_cust(unsafe { super::$name($($argument),*) })
                }

                #[cfg(all(not(windows), target_arch = "x86_64"))]
                ::std::arch::global_asm!(
                    concat!(".globl ", stringify!($name)),
                    concat!(".hidden ", stringify!($name)),
                    concat!(".type ", stringify!($name), ", @function"),
                    concat!(stringify!($name), ": jmp {function}"),
                    function = sym $name,
                );
                #[cfg(all(not(windows), target_arch = "aarch64"))]
                ::std::arch::global_asm!(
                    concat!(".globl ", stringify!($name)),
                    concat!(".hidden ", stringify!($name)),
                    concat!(".type ", stringify!($name), ", %function"),
                    concat!(stringify!($name), ": b {function}"),
                    function = sym $name,
                );
                // COFF knows no hidden symbols; a DLL exports only what it lists, so a plain global does there.
                #[cfg(all(windows, target_arch = "x86_64"))]
                ::std::arch::global_asm!(
                    concat!(".globl ", stringify!($name)),
                    concat!(stringify!($name), ": jmp {function}"),
                    function = sym $name,
                );
            )*

            /// See `table::anchor`.
            #[inline(never)]
            pub(in crate::driver) fn anchor() {
                ::std::hint::black_box(());
            }
        }
        pub(in crate::driver) use beneath::anchor;
    };
}
pub(super) use beneath_cust;
