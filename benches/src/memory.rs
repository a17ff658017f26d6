//! Memory of either side of a comparison, filled and compared without the library.

use std::{
    alloc::{Layout, alloc, dealloc},
    cell::RefCell,
    ptr::NonNull,
    slice,
};

use anyhow::{Context as _, Result, bail, ensure};
use transload_core::RawBuffer;

use crate::address::Address;

/// Byte with which a destination is filled before a transfer.
pub const POISON: u8 = 0xA5;

/// Owned memory, which must not be in use while a method runs.
#[derive(Debug)]
pub enum Memory {
    /// Allocated by the library.
    Ours(RawBuffer),
    /// Ordinary host memory.
    Pageable(Pages),
    /// Allocated by the driver.
    #[cfg(any(target_os = "linux", windows))]
    Cuda(crate::raw_memory::RawMemory),
}

impl Memory {
    /// Returns the address.
    ///
    /// # Errors
    /// If neither host nor device can address it.
    pub fn address(&self) -> Result<Address> {
        match self {
            Self::Ours(buffer) => {
                let host = buffer.host_address().map(Address::Host);
                host.or(buffer.device_address().map(Address::Device)).context("a buffer without an address")
            }
            Self::Pageable(pages) => Ok(Address::Host(pages.address)),
            #[cfg(any(target_os = "linux", windows))]
            Self::Cuda(memory) => Ok(memory.address()),
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Ours(buffer) => buffer.len(),
            Self::Pageable(pages) => pages.layout.size(),
            #[cfg(any(target_os = "linux", windows))]
            Self::Cuda(memory) => memory.len(),
        }
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills it with [`POISON`].
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn poison(&self) -> Result<()> {
        match self.address()? {
            // SAFETY: the memory is owned, so long, and nothing is in flight on it.
            Address::Host(address) => unsafe { address.write_bytes(POISON, self.len()) },
            Address::Device(address) => fill_device(address, POISON, self.len())?,
        }
        Ok(())
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// If they do not fit or the driver fails.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        ensure!(offset + bytes.len() <= self.len(), "{} bytes at {offset} do not fit", bytes.len());
        match self.address()? {
            // SAFETY: the range was checked; the memory is owned and nothing is in flight on it.
            Address::Host(address) => unsafe {
                address.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            },
            Address::Device(address) => write_device(address + offset as u64, bytes)?,
        }
        Ok(())
    }

    /// Compares every byte: `expected` at the offset, [`POISON`] before and after it.
    ///
    /// # Errors
    /// If a byte differs or the driver fails.
    pub fn compare(&self, offset: usize, expected: &[u8]) -> Result<()> {
        match self.address()? {
            Address::Host(address) => {
                // SAFETY: the memory is owned, initialised by `poison`, and nothing is in flight on it.
                let bytes = unsafe { slice::from_raw_parts(address.as_ptr(), self.len()) };
                compare(bytes, offset, expected)
            }
            Address::Device(address) => {
                // Kept between calls: faulting in new pages would take longer than the copy.
                thread_local!(static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
                SCRATCH.with_borrow_mut(|bytes| {
                    bytes.clear();
                    bytes.resize(self.len(), !POISON);
                    read_device(address, bytes)?;
                    compare(bytes, offset, expected)
                })
            }
        }
    }
}

fn compare(bytes: &[u8], offset: usize, expected: &[u8]) -> Result<()> {
    let end = offset + expected.len();
    let (Some(before), Some(middle), Some(behind)) =
        (bytes.get(..offset), bytes.get(offset..end), bytes.get(end..))
    else {
        bail!("{} bytes at {offset} are expected in {} bytes", expected.len(), bytes.len());
    };
    if middle != expected {
        let at = middle.iter().zip(expected).position(|(is, should)| is != should).unwrap_or(0);
        let count = middle.iter().zip(expected).filter(|(is, should)| is != should).count();
        bail!("{count} of {} bytes differ, the first at {at}", expected.len());
    }
    ensure!(
        before.iter().chain(behind).all(|byte| *byte == POISON),
        "bytes around the destination were written"
    );
    Ok(())
}

#[cfg(any(target_os = "linux", windows))]
use crate::raw_memory::{fill_device, read_device, write_device};

#[cfg(not(any(target_os = "linux", windows)))]
mod no_device {
    use anyhow::{Result, bail};

    pub(super) fn fill_device(_: u64, _: u8, _: usize) -> Result<()> {
        bail!("there is no CUDA on this platform")
    }

    pub(super) fn write_device(_: u64, _: &[u8]) -> Result<()> {
        bail!("there is no CUDA on this platform")
    }

    pub(super) fn read_device(_: u64, _: &mut [u8]) -> Result<()> {
        bail!("there is no CUDA on this platform")
    }
}
#[cfg(not(any(target_os = "linux", windows)))]
use no_device::{fill_device, read_device, write_device};

/// Ordinary host memory, on huge pages if large.
#[derive(Debug)]
pub struct Pages {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for Pages {}
// SAFETY: as above; users of the bytes synchronise access.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates and touches `bytes` bytes.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn new(bytes: usize) -> Result<Self> {
        const HUGE: usize = 2 << 20;
        let layout = Layout::from_size_align(bytes.max(1), if bytes >= 2 * HUGE { HUGE } else { 4096 })?;
        // SAFETY: the layout's size is not 0.
        let address = NonNull::new(unsafe { alloc(layout) }).context("out of host memory")?;
        let pages = Self { address, layout };
        #[cfg(target_os = "linux")]
        if bytes >= 2 * HUGE {
            advise_huge(address, bytes);
        }
        // SAFETY: the bytes were just allocated.
        unsafe { address.write_bytes(0, layout.size()) };
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed only here.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

#[cfg(target_os = "linux")]
fn advise_huge(address: NonNull<u8>, bytes: usize) {
    use std::os::raw::{c_int, c_void};
    const MADV_HUGEPAGE: c_int = 14;
    // SAFETY: the declaration is that of madvise(2).
    unsafe extern "C" {
        fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }
    // SAFETY: the range is allocated; the advice changes no content, and a refusal costs speed only.
    unsafe { madvise(address.as_ptr().cast(), bytes, MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_byte_inside_or_around_is_reported() {
        let memory = Memory::Pageable(Pages::new(100).unwrap());
        let expected = [1_u8, 2, 3, 4];
        memory.poison().unwrap();
        assert!(memory.compare(10, &expected).is_err());
        memory.write(10, &expected).unwrap();
        memory.compare(10, &expected).unwrap();
        memory.write(12, &[9]).unwrap();
        assert!(
            memory
                .compare(10, &expected)
                .unwrap_err()
                .to_string()
                .contains("1 of 4 bytes differ, the first at 2")
        );
        memory.write(12, &[3]).unwrap();
        memory.write(14, &[0]).unwrap();
        assert!(memory.compare(10, &expected).unwrap_err().to_string().contains("around"));
    }
}
