//! Matrix multiplications by cuBLAS, loaded at run time if it is there.

use std::{
    env,
    ffi::c_void,
    path::{Path, PathBuf},
    ptr,
};

use anyhow::{Result, ensure};
use libloading::{Library, Symbol};
use transload_core::{MemoryKind, RawBuffer};

use crate::{comparison::Fixture, content::Content, memory::Memory, reference::RawQueue};

/// Names a file to load instead of [`NAMES`].
const VARIABLE: &str = "TRANSLOAD_CUBLAS";
const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
/// Rows and columns of all matrices.
const SIDE: i32 = 8192;

type Gemm = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    i32,
    i32,
    i32,
    *const c_void,
    *const c_void,
    u32,
    i32,
    *const c_void,
    u32,
    i32,
    *const c_void,
    *mut c_void,
    u32,
    i32,
    u32,
    i32,
) -> i32;

/// The library with a handle and three matrices of bf16.
pub(crate) struct Cublas {
    library: Library,
    handle: *mut c_void,
    gemm: Gemm,
    /// Two factors and their product.
    matrices: [RawBuffer; 3],
    pub(super) origin: PathBuf,
}

// SAFETY: a handle may be used from any thread, one at a time: only the thread of the load uses it.
unsafe impl Send for Cublas {}
// SAFETY: as above.
unsafe impl Sync for Cublas {}

impl Cublas {
    /// Loads it; `None` if it is not found. The device's context is current.
    ///
    /// # Errors
    /// If a library that the environment names cannot be loaded, or any fails.
    pub(super) fn load(fixture: &Fixture<'_>) -> Result<Option<Self>> {
        let Some((library, origin)) = open()? else { return Ok(None) };
        let mut handle = ptr::null_mut();
        // SAFETY: the functions have these types in cublas_v2.h; the out pointer is valid and a context is current.
        let gemm: Gemm = unsafe {
            let create: Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> i32> =
                library.get(b"cublasCreate_v2")?;
            let status = create(&raw mut handle);
            ensure!(status == 0, "cublasCreate returned {status}");
            *library.get(b"cublasGemmEx")?
        };
        let bytes = 2 * SIDE as usize * SIDE as usize;
        // Of magnitudes from 0.5 to 2, with random signs and fractions: others take less power.
        let mut values = Content::new(bytes, 0x6E33).part(0, bytes).to_vec();
        values.chunks_exact_mut(2).for_each(|value| value[1] = value[1] & 0x80 | 0x3F);
        let matrix = || -> Result<RawBuffer> {
            let matrix = fixture.memory.allocate(MemoryKind::Device, bytes)?;
            Memory::Ours(matrix.clone()).write(0, &values)?;
            Ok(matrix)
        };
        let matrices = [matrix()?, matrix()?, matrix()?];
        Ok(Some(Self { library, handle, gemm, matrices, origin }))
    }

    /// Enqueues one multiplication.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn multiply(&self, queue: &RawQueue) -> Result<()> {
        /// `CUDA_R_16BF`, `CUBLAS_COMPUTE_32F`, `CUBLAS_GEMM_DEFAULT`.
        const BF16: u32 = 14;
        const COMPUTE_F32: u32 = 68;
        const DEFAULT: i32 = -1;
        let address = |matrix: &RawBuffer| {
            ptr::with_exposed_provenance_mut::<c_void>(matrix.device_address().unwrap_or_default() as usize)
        };
        let [left, right, product] = self.matrices.each_ref().map(address);
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (one, zero) = ((&raw const one).cast(), (&raw const zero).cast());
        // SAFETY: the functions have these types in cublas_v2.h; the matrices have so many elements and are only used here.
        unsafe {
            let set_stream: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32> =
                self.library.get(b"cublasSetStream_v2")?;
            let status = set_stream(self.handle, queue.raw().cast());
            ensure!(status == 0, "cublasSetStream returned {status}");
            let status = (self.gemm)(
                self.handle,
                0,
                0,
                SIDE,
                SIDE,
                SIDE,
                one,
                left,
                BF16,
                SIDE,
                right,
                BF16,
                SIDE,
                zero,
                product,
                BF16,
                SIDE,
                COMPUTE_F32,
                DEFAULT,
            );
            ensure!(status == 0, "cublasGemmEx returned {status}");
        }
        Ok(())
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the handle is owned, and no work of it is in flight. Errors cannot be handled in a drop.
        unsafe {
            let destroy = self.library.get::<unsafe extern "C" fn(*mut c_void) -> i32>(b"cublasDestroy_v2");
            if let Ok(destroy) = destroy {
                destroy(self.handle);
            }
        }
    }
}

fn open() -> Result<Option<(Library, PathBuf)>> {
    if let Some(file) = env::var_os(VARIABLE).map(PathBuf::from) {
        return Ok(Some((open_file(&file)?, file)));
    }
    let found = NAMES.iter().map(PathBuf::from).find_map(|name| Some((open_file(&name).ok()?, name)));
    Ok(found)
}

fn open_file(file: &Path) -> Result<Library, libloading::Error> {
    // It needs this one, which the loader does not look for next to it.
    if let Some(name) = file.file_name().and_then(|name| name.to_str()) {
        let light = file.with_file_name(name.replace("libcublas.", "libcublasLt."));
        // SAFETY: cuBLAS runs no code of others when it is loaded.
        if let Ok(light) = unsafe { Library::new(light) } {
            std::mem::forget(light);
        }
    }
    // SAFETY: as above.
    unsafe { Library::new(file) }
}
