//! Unified memory by hand: advice, and a kernel that works on it.

use anyhow::Result;
use transload_core::MemoryKind;
use transload_cuda_sys::{check, ffi};

use super::{RawKernel, RawQueue};
use crate::{address::Address, raw_memory::RawMemory};

/// The host in the place of a device.
pub const HOST: i32 = -1;

/// Unified memory that is advised on.
#[derive(Debug)]
pub struct RawAdvice {
    memory: RawMemory,
    address: u64,
}

impl RawAdvice {
    /// So many bytes.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn new(bytes: usize) -> Result<Self> {
        let memory = RawMemory::new(MemoryKind::Unified, bytes)?;
        let address = match memory.address() {
            Address::Host(address) => address.addr().get() as u64,
            Address::Device(address) => address,
        };
        Ok(Self { memory, address })
    }

    /// Gives a piece of advice by its number, by the call of CUDA 12.2 and newer.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn advise(&self, advice: u32, device: i32) -> Result<()> {
        let place = ffi::MemLocation { kind: 1, id: device };
        // SAFETY: the memory is owned; advice changes no contents.
        let code = unsafe { ffi::cuMemAdvise_v2(self.address, self.memory.len(), advice, place) };
        Ok(check("cuMemAdvise_v2", code)?)
    }

    /// Like [`advise`](Self::advise), in the mode in which it does not end a capture of another thread.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn advise_relaxed(&self, advice: u32, device: i32) -> Result<()> {
        const RELAXED: u32 = 2;
        let before = exchange(RELAXED)?;
        self.advise(advice, device)?;
        exchange(before).map(|_| ())
    }

    /// Like [`advise`](Self::advise), by the call that every driver has.
    ///
    /// # Errors
    /// If a driver call fails.
    #[inline]
    pub fn advise_older(&self, advice: u32, device: i32) -> Result<()> {
        // SAFETY: the memory is owned; advice changes no contents.
        let code = unsafe { ffi::cuMemAdvise(self.address, self.memory.len(), advice, device) };
        Ok(check("cuMemAdvise", code)?)
    }
}

#[inline]
fn exchange(mut mode: u32) -> Result<u32> {
    // SAFETY: the pointer is valid for the call.
    let code = unsafe { ffi::cuThreadExchangeStreamCaptureMode(&mut mode) };
    check("cuThreadExchangeStreamCaptureMode", code)?;
    Ok(mode)
}

/// `transload_saxpy(a, x, y, count)`: the same text that the library's examples and tests load.
pub const SAXPY: &str = include_str!("../../../crates/streams/examples/kernels/saxpy.ptx");

/// The kernel that adds one array, scaled, to another.
#[derive(Debug)]
pub struct Saxpy(RawKernel);

impl Saxpy {
    /// Threads of a block.
    pub const BLOCK: u32 = 256;

    /// Loads it into the current context.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn load() -> Result<Self> {
        RawKernel::load(SAXPY, c"transload_saxpy").map(Self)
    }

    /// Launches it over so many elements.
    ///
    /// # Errors
    /// If a driver call fails.
    ///
    /// # Safety
    /// * The queue is one of the module's context; `x` and `y` are arrays of `count` floats that the device can use, alive until
    ///   the kernel is over, and `y` is used by nobody else.
    pub unsafe fn launch(&self, queue: &RawQueue, a: f32, x: u64, y: u64, count: usize) -> Result<()> {
        let (blocks, count) = (u32::try_from(count.div_ceil(Self::BLOCK as usize))?, count as u64);
        let mut parameters = [
            (&raw const a).cast_mut().cast(),
            (&raw const x).cast_mut().cast(),
            (&raw const y).cast_mut().cast(),
            (&raw const count).cast_mut().cast(),
        ];
        // SAFETY: the kernel takes these parameters; the rest the caller promises.
        unsafe { self.0.launch(queue.raw(), (blocks, Self::BLOCK), &mut parameters) }
    }
}
