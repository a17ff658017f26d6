//! The end of a Python capsule that nobody consumed. A destructor in Python would run beside an exception that is under way.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::OnceLock,
};

use transload_dlpack::{DLManagedTensor, DLManagedTensorVersioned, Form};

/// `PyCapsule_IsValid`.
type IsValid = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
/// `PyCapsule_GetPointer`.
type GetPointer = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static PYTHON: OnceLock<(IsValid, GetPointer)> = OnceLock::new();

/// Tells the functions of the running Python, which this library is not linked with.
///
/// # Safety
/// * They are the functions of those names, and stay as long as any capsule.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_python(is_valid: IsValid, get_pointer: GetPointer) {
    // The first ones stay: there is one Python in a process.
    let _known_already = PYTHON.set((is_valid, get_pointer));
}

/// A destructor for capsules of versioned tensors.
///
/// # Safety
/// * Called by Python with a dying capsule.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_destroy_versioned(capsule: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { destroy::<DLManagedTensorVersioned>(capsule, c"dltensor_versioned") };
}

/// A destructor for capsules of unversioned tensors.
///
/// # Safety
/// * Called by Python with a dying capsule.
// SAFETY: nothing else in any process has a symbol of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn transload_probe_dlpack_destroy_unversioned(capsule: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { destroy::<DLManagedTensor>(capsule, c"dltensor") };
}

/// # Safety
/// * As for its callers; `name` is that of capsules with a tensor of the form `M` that was not consumed.
unsafe fn destroy<M: Form>(capsule: *mut c_void, name: &CStr) {
    let Some((is_valid, get_pointer)) = PYTHON.get() else { return };
    // SAFETY: a capsule; a consumer has renamed it, and then the tensor is the consumer's. Neither call sets an exception, as
    // the name is right.
    unsafe {
        if is_valid(capsule, name.as_ptr()) != 0 {
            M::drop_raw(get_pointer(capsule, name.as_ptr()).cast());
        }
    }
}
