//! Device memory, allocated from a stream-ordered pool if the driver has one, so that freeing does not wait.

use std::{ptr, sync::Arc};

use transload_cuda_sys::{
    AsStream, Context, Device, DriverError, Stream, StreamOptions,
    cust::sys::{CUmemAccessDesc, CUmemPoolProps, CUmemoryPool},
    ffi, record_drop_error,
};

use super::{driver_memory::Origin, free_thread::Address};

/// The source of device memory.
pub(crate) enum DeviceSource {
    /// A pool of this manager with its own stream.
    Pool(Arc<Pool>),
    /// `cuMemAlloc`: freeing synchronises with the device.
    Plain,
}

impl DeviceSource {
    pub(crate) fn new(context: &Context, has_pools: bool) -> Result<Self, DriverError> {
        if has_pools { Pool::new(context).map(|pool| Self::Pool(Arc::new(pool))) } else { Ok(Self::Plain) }
    }

    /// Returns an address and how to free it.
    pub(crate) fn allocate(&self, context: &Context, bytes: usize) -> Result<(u64, Origin), DriverError> {
        match self {
            Self::Pool(pool) => Ok((pool.allocate(bytes)?, Origin::Pool(Arc::clone(pool)))),
            Self::Plain => {
                let mut address = 0;
                // SAFETY: the out pointer is valid and a context is current.
                context.call("cuMemAlloc_v2", || unsafe { ffi::cuMemAlloc_v2(&mut address, bytes) })?;
                Ok((address, Origin::Freed(Address::Device(address))))
            }
        }
    }

    /// Grants another device access to existing and future allocations. `cuMemAlloc` needs only peer access between
    /// contexts.
    pub(crate) fn allow(&self, peer: Device) -> Result<(), DriverError> {
        match self {
            Self::Pool(pool) => pool.allow(peer),
            Self::Plain => Ok(()),
        }
    }

    /// Releases cached memory to the device.
    pub(crate) fn trim(&self) -> Result<(), DriverError> {
        match self {
            Self::Pool(pool) => pool.trim(),
            Self::Plain => Ok(()),
        }
    }
}

/// Two words with the alignment of the pointer that the structure contains.
#[repr(align(8))]
#[derive(Clone, Copy)]
struct Aligned(#[allow(dead_code)] [u32; 2]);

pub(crate) struct Pool {
    raw: CUmemoryPool,
    /// Carries only allocations and frees, so it is nearly always idle.
    stream: Stream,
}

// SAFETY: a pool's handle may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Pool {}

impl Pool {
    fn new(context: &Context) -> Result<Self, DriverError> {
        /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
        const PINNED: u32 = 1;
        /// `CU_MEM_LOCATION_TYPE_DEVICE`.
        const DEVICE: u32 = 1;
        /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
        const RELEASE_THRESHOLD: u32 = 4;

        let stream = Stream::new(context, StreamOptions::default())?;
        // `CUmemPoolProps`: two 4-byte enums, the location (two 4-byte words), a pointer, reserved bytes that must be 0.
        // Built from integers, because cust's enums lack values of newer drivers.
        let mut properties = [[0_u32; 2]; size_of::<CUmemPoolProps>() / 8].map(Aligned);
        properties[0] = Aligned([PINNED, 0]);
        properties[1] = Aligned([DEVICE, context.device().as_raw().cast_unsigned()]);
        let properties = properties.as_ptr().cast::<CUmemPoolProps>();
        let mut raw = ptr::null_mut();
        // SAFETY: the out pointer is valid; the properties have the structure's size and layout, and the driver copies
        // them byte by byte.
        context.call("cuMemPoolCreate", || unsafe { ffi::cuMemPoolCreate(&mut raw, properties) })?;
        let pool = Self { raw, stream };
        // With the default threshold of 0 the pool releases its memory at every synchronisation.
        let mut keep = u64::MAX;
        // SAFETY: the attribute is an unsigned 64-bit number.
        context.call("cuMemPoolSetAttribute", || unsafe {
            ffi::cuMemPoolSetAttribute(pool.raw, RELEASE_THRESHOLD, (&raw mut keep).cast())
        })?;
        Ok(pool)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: the out pointer, the pool and the stream are valid.
        self.stream.context().call("cuMemAllocFromPoolAsync", || unsafe {
            ffi::cuMemAllocFromPoolAsync(&mut address, bytes, self.raw, self.stream.as_raw())
        })?;
        // Other streams may use the memory from now on. The stream contains only earlier frees.
        if let Err(error) = self.stream.synchronize() {
            record_drop_error(self.free(address));
            return Err(error);
        }
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the address came from this pool, no operation uses it any more, and it is freed once.
        let free = || unsafe { ffi::cuMemFreeAsync(address, self.stream.as_raw()) };
        self.stream.context().call("cuMemFreeAsync", free)
    }

    fn allow(&self, peer: Device) -> Result<(), DriverError> {
        /// `CU_MEM_LOCATION_TYPE_DEVICE`.
        const DEVICE: u32 = 1;
        /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
        const READ_WRITE: u32 = 3;

        // `CUmemAccessDesc`: the location (two 4-byte words) and a 4-byte enum; integers, as for the pool's properties.
        let access = [DEVICE, peer.as_raw().cast_unsigned(), READ_WRITE];
        const { assert!(size_of::<CUmemAccessDesc>() == 12 && align_of::<CUmemAccessDesc>() == 4) };
        // SAFETY: the pool is valid; the words have the size and layout of one structure, which the driver copies during
        // the call.
        self.stream.context().call("cuMemPoolSetAccess", || unsafe {
            ffi::cuMemPoolSetAccess(self.raw, access.as_ptr().cast::<CUmemAccessDesc>(), 1)
        })
    }

    fn trim(&self) -> Result<(), DriverError> {
        self.stream.synchronize()?;
        // SAFETY: the pool is valid.
        self.stream.context().call("cuMemPoolTrimTo", || unsafe { ffi::cuMemPoolTrimTo(self.raw, 0) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: every allocation of the pool holds a reference to it, so all are freed.
        let destroy = || unsafe { ffi::cuMemPoolDestroy(self.raw) };
        record_drop_error(self.stream.context().call("cuMemPoolDestroy", destroy));
    }
}
