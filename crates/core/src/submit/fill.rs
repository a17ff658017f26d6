//! Fills a buffer with an element of any size: by a pattern if possible, else by repeated copies.

use std::{any::Any, ptr::NonNull};

use crate::{
    DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, Pattern, Place, Queue, RawBuffer, Result,
    Storage, Timing,
    queue::source::{SourceList, Sources},
    submit,
};

/// Sets every element of `dst` to the bytes of `element`, on a queue. Does not wait: the fill is complete
/// when the fence is, and is ordered with other work like by any [`submit`]. Only `dst` need be kept.
///
/// An element whose bytes repeat after 1, 2, 4, 8 or 16 of them is one [`Operation::Fill`], if `dst` begins
/// at a multiple of that in its allocation. Any other element is written once and then copied repeatedly
/// until the buffer is full. Those are several operations; other operations on `dst` may run between them.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an empty element, or if `dst` is not a whole number of elements;
/// [`ErrorKind::Unsupported`] if the queue does not fill such memory; those of [`submit`]. After an error of
/// the queue, or if a host view is opened between two operations, `dst` may be partly filled.
pub fn fill(queue: &dyn Queue, dst: &RawBuffer, element: &[u8]) -> Result<Fence> {
    if element.is_empty() || !dst.len().is_multiple_of(element.len()) {
        let text = format!(
            "{} bytes are not a whole number of elements of {} bytes; an element has at least 1 byte",
            dst.len(),
            element.len()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    match Pattern::from_bytes(element) {
        Some(pattern) if dst.offset().is_multiple_of(pattern.width()) => {
            submit(queue, &Operation::Fill { dst, pattern }, Timing::Off)
        }
        _ if dst.is_empty() => submit(queue, &Operation::Fill { dst, pattern: Pattern::U8(0) }, Timing::Off),
        _ => fill_by_doubling(queue, dst, element),
    }
}

/// Writes the element once and doubles the filled part until the buffer is full.
fn fill_by_doubling(queue: &dyn Queue, dst: &RawBuffer, element: &[u8]) -> Result<Fence> {
    // If it is dropped while the first copy is in flight, the backend of `dst` frees it.
    let source = RawBuffer::new(Box::new(Element::new(element)), dst.reclaimer());
    let mut done = element.len();
    let copy = Operation::Copy { src: &source, dst: &dst.slice(..done)? };
    let mut last = submit(queue, &copy, Timing::Off)?;
    let mut earlier = SourceList::default();
    while done < dst.len() {
        let next = done.min(dst.len() - done);
        let copy = Operation::Copy { src: &dst.slice(..next)?, dst: &dst.slice(done..done + next)? };
        // The last copy may read less than was written: without this, its fence would not report every
        // failure.
        earlier.add(&last, (dst.id(), dst.place()), dst.range());
        last = submit(queue, &copy, Timing::Off)?;
        done += next;
    }
    if earlier.is_empty() {
        return Ok(last);
    }
    earlier.add_sources_of(&last);
    Ok(last.with_sources(Sources::new(earlier, None)))
}

/// An owned copy of an element, since a queue reads it after the caller returned.
struct Element {
    /// Words, for their alignment.
    words: Box<[u128]>,
    bytes: usize,
}

impl Element {
    fn new(element: &[u8]) -> Self {
        let words = element.chunks(size_of::<u128>()).map(|chunk| {
            let mut word = [0; size_of::<u128>()];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u128::from_ne_bytes(word)
        });
        Self { words: words.collect(), bytes: element.len() }
    }
}

// SAFETY: the words are initialised, have at least as many bytes, are aligned to 16, and neither move nor
// change until they are dropped.
unsafe impl Storage for Element {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(NonNull::from(&*self.words).cast())
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
