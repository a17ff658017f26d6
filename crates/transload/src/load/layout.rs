//! Where each tensor goes, and the pieces in which it gets there.

use super::header::Entry;

/// Places of all tensors in one or more segments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Where each tensor begins, in the file's order.
    pub(super) places: Vec<Spot>,
    /// The segments' lengths; each at least 1.
    pub(super) segments: Vec<usize>,
}

/// A tensor's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) segment: usize,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A piece of one segment, and what of which tensors it holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) segment: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) parts: Vec<Part>,
}

/// Bytes of one tensor within a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) tensor: usize,
    /// From the chunk's beginning.
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Chunk {
    /// Bytes of tensors, which follow each other in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len as u64).sum()
    }
}

impl Layout {
    /// Tensors at multiples of `alignment`, in segments of at most `most` bytes or one tensor. `None` where that is more
    /// than this machine can address.
    pub(super) fn new(tensors: &[Entry], alignment: usize, most: usize) -> Option<Self> {
        let mut places = Vec::with_capacity(tensors.len());
        let mut segments = vec![0_usize];
        for tensor in tensors {
            let end = segments.last().copied()?;
            let mut offset = end.checked_next_multiple_of(alignment)?;
            if end > 0 && offset.checked_add(tensor.bytes)? > most {
                segments.push(0);
                offset = 0;
            }
            let segment = segments.len() - 1;
            *segments.last_mut()? = offset.checked_add(tensor.bytes)?;
            places.push(Spot { segment, offset, bytes: tensor.bytes });
        }
        for segment in &mut segments {
            *segment = (*segment).max(1);
        }
        let total = segments.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len))?;
        isize::try_from(total).ok().map(|_| Self { places, segments })
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> usize {
        self.segments.iter().sum()
    }

    /// Pieces of at most `most` bytes that hold all tensors, in the file's order.
    pub(super) fn chunks(&self, most: usize) -> Chunks<'_> {
        Chunks { layout: self, most: most.max(1), tensor: 0, done: 0 }
    }
}

/// Cuts a layout into chunks. Each begins and ends with bytes of a tensor: no chunk consists of gaps.
#[derive(Clone, Debug)]
pub(super) struct Chunks<'a> {
    layout: &'a Layout,
    most: usize,
    /// The next tensor, and how much of it is in chunks already.
    tensor: usize,
    done: usize,
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        let mut chunk: Option<Chunk> = None;
        while let Some(spot) = self.layout.places.get(self.tensor) {
            let left = spot.bytes - self.done;
            if left == 0 {
                (self.tensor, self.done) = (self.tensor + 1, 0);
                continue;
            }
            let offset = spot.offset + self.done;
            let chunk = chunk.get_or_insert_with(|| Chunk {
                segment: spot.segment,
                offset,
                len: 0,
                parts: Vec::new(),
            });
            let at = match offset.checked_sub(chunk.offset) {
                Some(at) if at < self.most && spot.segment == chunk.segment => at,
                _ => break,
            };
            let len = left.min(self.most - at);
            chunk.parts.push(Part { tensor: self.tensor, at, len });
            chunk.len = at + len;
            self.done += len;
        }
        chunk
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    fn layout(sizes: &[usize], alignment: usize, most: usize) -> Option<Layout> {
        let entry = |bytes: &usize| Entry {
            name: String::new(),
            dtype: Dtype::U8,
            shape: vec![*bytes],
            bytes: *bytes,
        };
        Layout::new(&sizes.iter().map(entry).collect::<Vec<_>>(), alignment, most)
    }

    #[test]
    fn tensors_are_aligned_and_follow_each_other() {
        let layout = layout(&[1, 0, 256, 300, 5], 256, usize::MAX).unwrap();
        let offsets: Vec<_> = layout.places.iter().map(|spot| spot.offset).collect();
        assert_eq!(offsets, [0, 256, 256, 512, 1024]);
        assert_eq!(layout.segments, [1029]);
    }

    #[test]
    fn segments_are_bounded_but_for_a_tensor_that_is_larger() {
        let layout = layout(&[100, 100, 1000, 10, 10], 64, 256).unwrap();
        let spots: Vec<_> = layout.places.iter().map(|spot| (spot.segment, spot.offset)).collect();
        assert_eq!(spots, [(0, 0), (0, 128), (1, 0), (2, 0), (2, 64)]);
        assert_eq!(layout.segments, [228, 1000, 74]);
        assert_eq!(self::layout(&[0, 0], 64, 1).unwrap().segments, [1], "memory has at least one byte");
        assert_eq!(self::layout(&[usize::MAX, 1], 64, usize::MAX), None);
    }

    #[test]
    fn every_byte_of_every_tensor_is_in_exactly_one_chunk() {
        for alignment in [1, 64, 256, 4096] {
            for most_segment in [1, 700, usize::MAX] {
                let layout = layout(&[3, 0, 700, 1, 1, 256, 0, 511, 64, 0], alignment, most_segment).unwrap();
                for most in [1, 7, 64, 100, 256, 1000, 1 << 20] {
                    let mut seen = vec![0; layout.places.len()];
                    for chunk in layout.chunks(most) {
                        assert!(0 < chunk.len && chunk.len <= most);
                        assert_eq!(chunk.parts[0].at, 0);
                        let last = chunk.parts[chunk.parts.len() - 1];
                        assert_eq!(last.at + last.len, chunk.len);
                        for part in &chunk.parts {
                            let spot = layout.places[part.tensor];
                            assert_eq!(spot.segment, chunk.segment);
                            assert_eq!(chunk.offset + part.at, spot.offset + seen[part.tensor]);
                            seen[part.tensor] += part.len;
                        }
                    }
                    assert!(layout.places.iter().zip(&seen).all(|(spot, seen)| spot.bytes == *seen));
                }
            }
        }
    }
}
