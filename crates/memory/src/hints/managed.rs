//! Hints about one range of unified memory: advice, its removal, and prefetch.

use std::ops;

use transload_core::{DeviceId, Error, ErrorKind, Operation, Queue, RawBuffer, Result, Timing, submit};

use transload_cuda_sys::Context;

use super::{
    MemoryLocation, MigrationPolicy, Residency, advise,
    calls::{Advice, Range, advise_range, check_range, context_for, range_of},
    hint_stream::HintStream,
};
use crate::CudaDevice;

/// A range of unified memory to give hints about.
///
/// Over a buffer ([`from_unified`](Self::from_unified)) it keeps the memory alive, and a prefetch is ordered with all
/// other uses of the buffer on any stream. Over a raw address ([`for_buffer`](Self::for_buffer)) it owns nothing, and
/// only the stream orders it: a hint about freed memory is refused by the driver or reaches the new owner of the
/// address. Both are safe, since hints change no content.
///
/// Streams are core's [`Queue`]s: `CudaStream`, a lease, or a framework's stream wrapped by `CudaStream::from_raw`.
///
/// Usable from any thread.
///
/// # Example
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use transload_core::MemoryKind;
/// use transload_memory::{
///     CudaDevice, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, MigrationPolicy, apply_migration_policy,
/// };
///
/// fn keep_at_home() -> transload_core::Result<()> {
///     let memory = CudaMemoryManager::new(&CudaDevice::new(0)?)?;
///     let table = memory.allocate(MemoryKind::Unified, 1 << 20)?;
///     apply_migration_policy(&table, MigrationPolicy::PreferHost)?;
///     let hints = ManagedMemoryHints::from_unified(&table)?;
///     assert_eq!(hints.residency()?.preferred, Some(MemoryLocation::Host));
///     hints.apply_policy(MigrationPolicy::Reset)
/// }
///
/// if let Err(error) = keep_at_home() {
///     println!("no CUDA here: {error}");
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManagedMemoryHints {
    range: Range,
    memory: Memory,
}

/// Owner of the range.
#[derive(Clone, Debug)]
enum Memory {
    /// A whole buffer, kept alive.
    Buffer(RawBuffer),
    /// Memory at a raw address, in this context.
    Raw(Context),
}

impl ManagedMemoryHints {
    /// Creates hints about `byte_size` bytes of managed memory at a raw address, in the device's context. Whether the
    /// memory is managed is checked by the driver when a hint is given.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, `OutOfRange` where the range leaves the address space; the driver's.
    pub fn for_buffer(device: &CudaDevice, ptr: u64, byte_size: usize) -> Result<Self> {
        check_range(ptr, byte_size)?;
        Ok(Self { range: (ptr, byte_size), memory: Memory::Raw(device.context()?.clone()) })
    }

    /// Creates hints about a unified-memory buffer or slice.
    ///
    /// # Errors
    /// `Unsupported` for memory that is not unified, `InvalidArgument` for 0 bytes.
    pub fn from_unified(buffer: &RawBuffer) -> Result<Self> {
        Ok(Self { range: range_of(buffer)?, memory: Memory::Buffer(buffer.clone()) })
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.range.0
    }

    /// Returns the length in bytes, at least 1.
    #[must_use]
    pub fn byte_size(&self) -> usize {
        self.range.1
    }

    /// Advises that the range is mostly read: readers may keep copies.
    ///
    /// # Errors
    /// As for [`advise`](crate::advise), like those of all advice; `InvalidArgument` where a raw range is not managed memory.
    pub fn set_read_mostly(&self) -> Result<()> {
        self.advise(Advice::SetReadMostly, MemoryLocation::Host)
    }

    /// Removes the advice of [`set_read_mostly`](Self::set_read_mostly).
    ///
    /// # Errors
    /// As for [`set_read_mostly`](Self::set_read_mostly).
    pub fn unset_read_mostly(&self) -> Result<()> {
        self.advise(Advice::UnsetReadMostly, MemoryLocation::Host)
    }

    /// Sets the location where pages should stay. A page has one; a later call replaces it.
    ///
    /// # Errors
    /// As for [`set_read_mostly`](Self::set_read_mostly); `MissingFunction` for a NUMA node on a driver before CUDA 12.2.
    pub fn set_preferred_location(&self, location: MemoryLocation) -> Result<()> {
        self.advise(Advice::SetPreferredLocation, location)
    }

    /// Removes the advice of [`set_preferred_location`](Self::set_preferred_location).
    ///
    /// # Errors
    /// As for [`set_read_mostly`](Self::set_read_mostly).
    pub fn unset_preferred_location(&self) -> Result<()> {
        self.advise(Advice::UnsetPreferredLocation, MemoryLocation::Host)
    }

    /// Advises that a device or the host will access the pages and should have them mapped. A page may have several
    /// accessors.
    ///
    /// # Errors
    /// As for [`set_read_mostly`](Self::set_read_mostly); `InvalidArgument` for a NUMA node.
    pub fn set_accessed_by(&self, who: MemoryLocation) -> Result<()> {
        self.advise(Advice::SetAccessedBy, accessor(who)?)
    }

    /// Removes one accessor set by [`set_accessed_by`](Self::set_accessed_by).
    ///
    /// # Errors
    /// As for [`set_accessed_by`](Self::set_accessed_by).
    pub fn unset_accessed_by(&self, who: MemoryLocation) -> Result<()> {
        self.advise(Advice::UnsetAccessedBy, accessor(who)?)
    }

    /// Gives the advice of a policy.
    ///
    /// # Errors
    /// As for [`set_read_mostly`](Self::set_read_mostly). Advice given before the error stays.
    pub fn apply_policy(&self, policy: MigrationPolicy) -> Result<()> {
        policy.to_advice_pairs().into_iter().try_for_each(|(advice, _)| {
            let (advice, location) = advise::split(advice)?;
            self.advise(advice, location)
        })
    }

    /// Returns the driver's record of the range's hints.
    ///
    /// # Errors
    /// As for [`Residency::of`].
    pub fn residency(&self) -> Result<Residency> {
        Residency::of_range(self.range, &self.context()?)
    }

    /// Enqueues the migration of the whole range; `None` means the memory's own device. Does not wait for it.
    ///
    /// # Errors
    /// `UnknownDevice`; `Unsupported` for a device that cannot share unified memory with the host, and for a queue that is no
    /// stream; `MissingFunction` for a NUMA node on a driver before CUDA 12.2; over a buffer `Busy` where a host view is open
    /// on it; over a raw address `InvalidArgument` where that is not managed memory; the driver's.
    pub fn prefetch_to(&self, location: impl Into<Option<MemoryLocation>>, stream: &dyn Queue) -> Result<()> {
        self.prefetch(0..self.range.1, location.into(), stream)
    }

    /// Like [`prefetch_to`](Self::prefetch_to), but for `byte_size` bytes from `offset` on.
    ///
    /// # Errors
    /// As for `prefetch_to`; `InvalidArgument` for 0 bytes, `OutOfRange` where the part leaves the range.
    pub fn prefetch_range(
        &self,
        offset: usize,
        byte_size: usize,
        location: impl Into<Option<MemoryLocation>>,
        stream: &dyn Queue,
    ) -> Result<()> {
        if byte_size == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a prefetch needs at least 1 byte"));
        }
        let whole = self.range.1;
        let Some(end) = offset.checked_add(byte_size).filter(|end| *end <= whole) else {
            let text =
                format!("{byte_size} bytes from byte {offset} on are not within this range of {whole} bytes");
            return Err(Error::new(ErrorKind::OutOfRange, text));
        };
        self.prefetch(offset..end, location.into(), stream)
    }

    fn prefetch(
        &self,
        part: ops::Range<usize>,
        to: Option<MemoryLocation>,
        stream: &dyn Queue,
    ) -> Result<()> {
        match &self.memory {
            Memory::Buffer(buffer) => {
                let to = to.unwrap_or_else(|| MemoryLocation::Device(buffer.place().device.ordinal()));
                prefetch_buffer(&buffer.slice(part)?, to, stream)
            }
            Memory::Raw(context) => {
                let to = to.unwrap_or_else(|| MemoryLocation::Device(context.device().ordinal()));
                let hint_stream = HintStream::of(stream, Some(context))?;
                hint_stream.prefetch(self.range.0 + part.start as u64, part.len(), to)
            }
        }
    }

    fn advise(&self, advice: Advice, location: MemoryLocation) -> Result<()> {
        advise_range(self.range, advice, location, || self.context())
    }

    fn context(&self) -> Result<Context> {
        match &self.memory {
            Memory::Buffer(buffer) => context_for(buffer),
            Memory::Raw(context) => Ok(context.clone()),
        }
    }
}

fn accessor(who: MemoryLocation) -> Result<MemoryLocation> {
    match who {
        MemoryLocation::Device(_) | MemoryLocation::Host => Ok(who),
        MemoryLocation::HostNuma(_) | MemoryLocation::HostNumaCurrent => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{who} accesses nothing by itself; valid are devices and the host"),
        )),
    }
}

/// Prefetches through core's `submit`: ordered with all uses of the buffer, which is kept alive until then.
pub(super) fn prefetch_buffer(buffer: &RawBuffer, to: MemoryLocation, stream: &dyn Queue) -> Result<()> {
    submit(stream, &to.prefetch(buffer), Timing::Off).map(drop)
}

impl MemoryLocation {
    /// Returns the operation that prefetches a buffer to this location.
    #[must_use]
    pub fn prefetch(self, buffer: &RawBuffer) -> Operation<'_> {
        match self {
            Self::Device(ordinal) => Operation::Prefetch { buffer, to: DeviceId::Cuda(ordinal) },
            Self::Host => Operation::Prefetch { buffer, to: DeviceId::Cpu },
            Self::HostNuma(node) => Operation::PrefetchToNode { buffer, node: Some(node) },
            Self::HostNumaCurrent => Operation::PrefetchToNode { buffer, node: None },
        }
    }
}
