//! Two layouts of one shape, reduced to as few and long rows as both sides allow.

use smallvec::SmallVec;
use transload_core::{Error, ErrorKind, Pitched, RawBuffer, Result, TransferMethod};

use super::StridedLayout;

/// The largest distance of rows that CUDA's copies of rows take.
const MAX_PITCH: usize = i32::MAX as usize;

/// Most rows of a copy whose rows are listed one by one: some 200 MiB of lists.
pub(crate) const MAX_LISTED: usize = 1 << 20;

/// Fewest rows in a plane of several.
const FEWEST: usize = 4;

/// Listed rows, or planes of rows, that a thread which polls a task submits itself.
const FEW: usize = 64;

/// Rows of equal length at regular distances from the beginnings of a source and a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    width: usize,
    /// The innermost first; at least one. None has a count below 2.
    dimensions: SmallVec<[Dimension; 3]>,
    /// Number of rows.
    count: usize,
    /// Them as one operation, if it can copy them.
    pitched: Option<Pitched>,
}

/// Equal parts in one direction: how many, and their distances in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dimension {
    count: usize,
    src: usize,
    dst: usize,
}

impl Rows {
    /// Reduces two layouts of one shape, which are not empty and lie within memory. Returns `None` if all bytes are
    /// contiguous on both sides. `is_apart` if no row of one side lies between those of the other; else they cannot be claimed as a whole,
    /// as one operation does.
    ///
    /// # Errors
    /// [`ErrorKind::Overlap`] if the destination's runs overlap; [`ErrorKind::OutOfRange`] if there are more rows than memory has bytes.
    pub(super) fn reduce(src: &StridedLayout, dst: &StridedLayout, is_apart: bool) -> Result<Option<Self>> {
        let mut dimensions: SmallVec<[Dimension; 4]> = src
            .dimensions
            .iter()
            .zip(&dst.dimensions)
            .map(|((count, src), (_, dst))| Dimension { count: *count, src: *src, dst: *dst })
            .filter(|dimension| dimension.count > 1)
            .collect();
        if let Some(Dimension { count, dst: stride, .. }) =
            dimensions.iter().find(|dimension| dimension.dst < dst.run)
            && !transload_core::mutant!("transfer/strided-overlap-refused")
        {
            let text = format!(
                "{count} runs of {run} bytes every {stride} bytes of the destination overlap; its strides are at least {run} bytes",
                run = dst.run
            );
            return Err(Error::new(ErrorKind::Overlap, text));
        }
        dimensions.sort_by_key(|dimension| (dimension.dst, dimension.src));
        let mut width = src.run;
        let mut merged: SmallVec<[Dimension; 3]> = SmallVec::new();
        for outer in dimensions {
            match merged.last_mut() {
                None if (outer.src, outer.dst) == (width, width) => width = width.saturating_mul(outer.count),
                Some(inner)
                    if Some(outer.src) == inner.src.checked_mul(inner.count)
                        && Some(outer.dst) == inner.dst.checked_mul(inner.count) =>
                {
                    inner.count = inner.count.saturating_mul(outer.count);
                }
                _ => merged.push(outer),
            }
        }
        let count =
            merged.iter().try_fold(1_usize, |product, dimension| product.checked_mul(dimension.count));
        let count = count
            .filter(|count| count.checked_mul(width).is_some())
            .ok_or_else(|| Error::new(ErrorKind::OutOfRange, format!("{} exceed any memory", src.shape())))?;
        let pitched = if is_apart { pitched(width, &merged) } else { None };
        Ok((!merged.is_empty()).then_some(Self { width, dimensions: merged, count, pitched }))
    }

    /// Returns the bytes of all rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.width) as u64
    }

    /// Returns the bytes of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns whether a method's submission takes the calling thread long: by a list of many, or a driver call for each of many planes.
    pub(crate) fn are_slow_by(&self, method: TransferMethod) -> bool {
        match self.pitched {
            Some(rows) if method == TransferMethod::DirectCopy => rows.planes > FEW,
            _ => self.count > FEW,
        }
    }

    /// Returns them as the one operation that copies planes of rows, if it can copy them.
    pub(crate) fn pitched(&self) -> Option<Pitched> {
        self.pitched
    }

    /// Returns them one by one, in the order of the destination's memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if one is not within the buffers.
    pub(crate) fn pairs(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<Vec<(RawBuffer, RawBuffer)>> {
        let mut pairs = Vec::with_capacity(self.count);
        for row in 0..self.count {
            pairs.push(self.pair(row, src, dst)?);
        }
        Ok(pairs)
    }

    /// Returns the first row, and the second one of each dimension, from which all others follow by the same distances.
    ///
    /// # Errors
    /// Those of [`pairs`](Self::pairs).
    pub(crate) fn first_ones(
        &self,
        src: &RawBuffer,
        dst: &RawBuffer,
    ) -> Result<SmallVec<[(RawBuffer, RawBuffer); 4]>> {
        let seconds = self
            .dimensions
            .iter()
            .scan(1, |rows, dimension| Some(std::mem::replace(rows, *rows * dimension.count)));
        [0].into_iter().chain(seconds).map(|row| self.pair(row, src, dst)).collect()
    }

    fn pair(&self, row: usize, src: &RawBuffer, dst: &RawBuffer) -> Result<(RawBuffer, RawBuffer)> {
        let (mut rest, mut from, mut to) = (row, 0, 0);
        for Dimension { count, src, dst } in &self.dimensions {
            let index = rest % count;
            rest /= count;
            (from, to) = (from + index * src, to + index * dst);
        }
        Ok((src.slice(from..from + self.width)?, dst.slice(to..to + self.width)?))
    }
}

/// Returns rows as the one operation that copies planes of them, if they are that.
fn pitched(width: usize, dimensions: &[Dimension]) -> Option<Pitched> {
    let (rows, planes) = match *dimensions {
        [rows] => (rows, None),
        // Each plane is a driver call, which takes longer than a few pieces of a list.
        [rows, planes] if rows.count >= FEWEST => (rows, Some(planes)),
        _ => return None,
    };
    let Dimension { count, src, dst } = rows;
    let are_pitches = src.min(dst) >= width && src.max(dst) <= MAX_PITCH;
    let plane = Pitched::new(width, count, src, dst);
    match planes {
        _ if !are_pitches => None,
        None => Some(plane),
        // The rows lie within the buffer, so this does not overflow.
        Some(planes) if planes.dst < (count - 1) * dst + width => None,
        Some(planes) => Some(plane.planes(planes.count, planes.src, planes.dst)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_planes_or_listed_rows_are_slow() {
        let is_slow = |planes, is_apart, method| {
            let layout = StridedLayout::new(1).repeat(4, 3).repeat(planes, 100);
            Rows::reduce(&layout, &layout, is_apart).unwrap().unwrap().are_slow_by(method)
        };
        assert!(!is_slow(64, true, TransferMethod::DirectCopy));
        assert!(is_slow(65, true, TransferMethod::DirectCopy));
        assert!(is_slow(17, false, TransferMethod::DirectCopy));
        assert!(is_slow(17, true, TransferMethod::HostStaged));
        assert!(!is_slow(16, true, TransferMethod::HostStaged));
    }
}
