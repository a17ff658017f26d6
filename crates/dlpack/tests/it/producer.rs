//! Another library: makes valid and invalid tensors and counts the calls of their deleters.

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use transload_dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, Flags,
};

/// Counts the calls of a tensor's deleter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deleted(Arc<AtomicUsize>);

impl Deleted {
    pub(crate) fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The description of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) data: *mut c_void,
    pub(crate) device: DLDevice,
    pub(crate) ndim: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) shape: Option<Vec<i64>>,
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) byte_offset: u64,
    pub(crate) flags: Flags,
    pub(crate) version: DLPackVersion,
}

impl Said {
    /// Describes host floats in one dimension.
    pub(crate) fn floats(data: *mut f32, count: i64) -> Self {
        Self {
            data: data.cast(),
            device: DLDevice::CPU,
            ndim: 1,
            dtype: DLDataType::F32,
            shape: Some(vec![count]),
            strides: Some(vec![1]),
            byte_offset: 0,
            flags: Flags::empty(),
            version: DLPackVersion { major: 1, minor: 1 },
        }
    }

    pub(crate) fn shaped(mut self, shape: &[i64], strides: Option<&[i64]>) -> Self {
        self.ndim = i32::try_from(shape.len()).unwrap();
        (self.shape, self.strides) = (Some(shape.to_vec()), strides.map(<[i64]>::to_vec));
        self
    }

    pub(crate) fn versioned(self) -> (*mut DLManagedTensorVersioned, Deleted) {
        let (version, flags, deleted) = (self.version, self.flags, Deleted::default());
        let (dl_tensor, manager_ctx) = self.keep(&deleted);
        let deleter: unsafe extern "C" fn(*mut DLManagedTensorVersioned) = delete_versioned;
        let made =
            DLManagedTensorVersioned { version, manager_ctx, deleter: Some(deleter), flags, dl_tensor };
        (Box::into_raw(Box::new(made)), deleted)
    }

    pub(crate) fn unversioned(self) -> (*mut DLManagedTensor, Deleted) {
        let deleted = Deleted::default();
        let (dl_tensor, manager_ctx) = self.keep(&deleted);
        let deleter: unsafe extern "C" fn(*mut DLManagedTensor) = delete_unversioned;
        (Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(deleter) })), deleted)
    }

    fn keep(self, deleted: &Deleted) -> (DLTensor, *mut c_void) {
        let Self { data, device, ndim, dtype, byte_offset, .. } = self;
        let mut kept = Box::new(Kept { numbers: (self.shape, self.strides), deleted: deleted.clone() });
        let at = |numbers: &mut Option<Vec<i64>>| numbers.as_mut().map_or(ptr::null_mut(), Vec::as_mut_ptr);
        let (shape, strides) = (at(&mut kept.numbers.0), at(&mut kept.numbers.1));
        let tensor = DLTensor { data, device, ndim, dtype, shape, strides, byte_offset };
        (tensor, Box::into_raw(kept).cast())
    }
}

struct Kept {
    numbers: (Option<Vec<i64>>, Option<Vec<i64>>),
    deleted: Deleted,
}

unsafe fn forget(kept: *mut c_void) {
    // SAFETY: boxed in `keep`, and the tensor that had it is gone.
    let kept = unsafe { Box::from_raw(kept.cast::<Kept>()) };
    kept.deleted.0.fetch_add(1, Ordering::SeqCst);
}

pub(crate) unsafe extern "C" fn delete_versioned(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: boxed in `versioned`, and deleted once.
    unsafe { forget(Box::from_raw(tensor).manager_ctx) };
}

unsafe extern "C" fn delete_unversioned(tensor: *mut DLManagedTensor) {
    // SAFETY: as above.
    unsafe { forget(Box::from_raw(tensor).manager_ctx) };
}

/// Calls the deleter, like a consumer that is done with a tensor.
pub(crate) fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the test owns the tensor and does not use it after this.
    unsafe { (*tensor).deleter.unwrap()(tensor) };
}
