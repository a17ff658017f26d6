//! A list of prefetches that is enqueued together, adjacent ranges merged.

use transload_core::{Error, ErrorKind, Queue, RawBuffer, Result};

use super::{MemoryLocation, calls::check_range, hint_stream::HintStream, managed::prefetch_buffer};

/// A range to prefetch and its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefetchEntry {
    /// Address of the first byte.
    pub ptr: u64,
    /// Length in bytes.
    pub byte_size: usize,
    /// Device ordinal, or [`HOST`](Self::HOST).
    pub device_ordinal: i32,
}

impl PrefetchEntry {
    /// The host, as numbered by the driver (`CU_DEVICE_CPU`).
    pub const HOST: i32 = -1;

    fn location(&self) -> Result<MemoryLocation> {
        if self.device_ordinal == Self::HOST {
            return Ok(MemoryLocation::Host);
        }
        u32::try_from(self.device_ordinal).map(MemoryLocation::Device).map_err(|_| {
            let text = format!(
                "there is no device {}; valid are ordinals, and -1 for the host",
                self.device_ordinal
            );
            Error::new(ErrorKind::UnknownDevice, text)
        })
    }
}

/// A list of prefetches, executable any number of times, on any stream, from any thread.
///
/// An entry for a raw address ([`add`](Self::add)) is ordered by its stream only: a use on another stream needs an
/// event. Content never changes; memory that is not managed is refused. An entry for a buffer
/// ([`add_buffer`](Self::add_buffer)) also keeps the memory alive and is ordered with all other uses of the buffer.
///
/// # Example
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use transload_core::{Queue, RawBuffer, Result};
/// use transload_memory::{PrefetchEntry, PrefetchPlan};
///
/// fn layers_to(layers: &[RawBuffer], stream: &dyn Queue) -> Result<()> {
///     let mut plan = PrefetchPlan::new();
///     for layer in layers {
///         plan.add_buffer(layer, 0);
///     }
///     plan.execute(stream)
/// }
///
/// let mut plan = PrefetchPlan::new();
/// plan.add(PrefetchEntry { ptr: 0x7000_0000, byte_size: 4096, device_ordinal: 0 })
///     .add(PrefetchEntry { ptr: 0x7000_1000, byte_size: 4096, device_ordinal: PrefetchEntry::HOST });
/// assert_eq!(plan.len(), 2);
/// # let _ = layers_to;
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PrefetchPlan {
    entries: Vec<PrefetchEntry>,
    /// For each entry its buffer, if it was added as one.
    buffers: Vec<Option<RawBuffer>>,
}

impl PrefetchPlan {
    /// Creates an empty plan.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds memory by address. It is checked when the plan is executed.
    pub fn add(&mut self, entry: PrefetchEntry) -> &mut Self {
        self.entries.push(entry);
        self.buffers.push(None);
        self
    }

    /// Adds a unified-memory buffer or slice, which the plan keeps alive. `device_ordinal` is as in [`PrefetchEntry`].
    pub fn add_buffer(&mut self, buffer: &RawBuffer, device_ordinal: i32) -> &mut Self {
        let ptr = buffer.device_address().unwrap_or(0);
        self.entries.push(PrefetchEntry { ptr, byte_size: buffer.len(), device_ordinal });
        self.buffers.push(Some(buffer.clone()));
        self
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entries in order.
    #[must_use]
    pub fn entries(&self) -> &[PrefetchEntry] {
        &self.entries
    }

    /// Enqueues all entries in order. Consecutive entries with adjacent memory and the same destination become one
    /// prefetch. Returns when all are enqueued.
    ///
    /// # Errors
    /// The first failing entry's, with its index: `InvalidArgument` for 0 bytes, `OutOfRange` if it exceeds the address
    /// space, otherwise as for [`ManagedMemoryHints::prefetch_to`](crate::ManagedMemoryHints::prefetch_to). Earlier
    /// entries are enqueued, later ones are not.
    pub fn execute(&self, stream: &dyn Queue) -> Result<()> {
        // Created for the first entry by address.
        let mut hint_stream = None;
        let mut next = 0;
        while next < self.len() {
            let mut merged = self.piece(next)?;
            let mut end = next + 1;
            while end < self.len()
                && let Some(longer) = self.piece(end).ok().and_then(|piece| merged.joined(&piece))
            {
                merged = longer;
                end += 1;
            }
            match merged.enqueue(stream, &mut hint_stream) {
                // Retry one by one to find the failing entry: adjacent ranges may be different allocations. Enqueueing
                // twice is harmless.
                Err(_) if end - next > 1 => (next..end).try_for_each(|index| {
                    self.piece(index)?
                        .enqueue(stream, &mut hint_stream)
                        .map_err(|error| self.name(index, error))
                })?,
                outcome => outcome.map_err(|error| self.name(next, error))?,
            }
            next = end;
        }
        Ok(())
    }

    fn piece(&self, index: usize) -> Result<Piece> {
        let entry = self.entries[index];
        let checked = check_range(entry.ptr, entry.byte_size).and_then(|()| entry.location());
        let to = checked.map_err(|error| self.name(index, error))?;
        let buffer = self.buffers.get(index).cloned().flatten();
        Ok(Piece { ptr: entry.ptr, bytes: entry.byte_size, to, buffer })
    }

    #[cold]
    fn name(&self, index: usize, error: Error) -> Error {
        let PrefetchEntry { ptr, byte_size, device_ordinal } = self.entries[index];
        let text =
            format!("entry {index} of the plan ({byte_size} bytes at {ptr:#x} to device {device_ordinal})");
        Error::caused_by(error.kind(), text, error)
    }
}

/// One entry, or several merged ones.
struct Piece {
    ptr: u64,
    bytes: usize,
    to: MemoryLocation,
    buffer: Option<RawBuffer>,
}

impl Piece {
    /// Merges two adjacent pieces of one allocation (as far as known) with the same destination.
    fn joined(&self, other: &Self) -> Option<Self> {
        let (end, other_end) = (self.ptr + self.bytes as u64, other.ptr + other.bytes as u64);
        if self.to != other.to || (end != other.ptr && other_end != self.ptr) {
            return None;
        }
        let buffer = match (&self.buffer, &other.buffer) {
            (None, None) => None,
            (Some(one), Some(two)) => Some(one.joined(two)?),
            _ => return None,
        };
        let bytes = self.bytes.checked_add(other.bytes)?;
        Some(Self { ptr: self.ptr.min(other.ptr), bytes, to: self.to, buffer })
    }

    fn enqueue<'a>(&self, stream: &'a dyn Queue, hint_stream: &mut Option<HintStream<'a>>) -> Result<()> {
        if let Some(buffer) = &self.buffer {
            return prefetch_buffer(buffer, self.to, stream);
        }
        let hint_stream = match hint_stream {
            Some(hint_stream) => hint_stream,
            None => hint_stream.insert(HintStream::of(stream, None)?),
        };
        hint_stream.prefetch(self.ptr, self.bytes, self.to)
    }
}
