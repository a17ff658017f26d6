//! Arrays with a shape: which elements they are of an array, and how far apart.

use std::{fmt, ops::RangeBounds};

use transload_core::{Error, ErrorKind, Pod, Result, range_within};
use transload_transfer::{CopyBuilder, StridedLayout};

use crate::{Array, Runtime};

/// Elements of an [`Array`] at regular distances, with a shape: like a tensor, the array's memory with a length and a stride for each
/// dimension. Shares the allocation. Made by [`Array::view`] and [`Array::strided`], copied by [`Runtime::copy_strided`].
///
/// ```
/// let rt = transload::Runtime::discover()?;
/// let matrix = rt.host((0..12_u32).collect())?.view(&[3, 4])?;
/// let columns = matrix.narrow(1, 1..3)?;
/// let transposed = columns.transposed(0, 1)?;
/// assert_eq!((transposed.shape(), transposed.strides()), ([2, 3].as_slice(), [1, 4].as_slice()));
///
/// let packed = rt.zeros::<u32>(6)?;
/// rt.copy_strided(&transposed, &packed.view(&[2, 3])?)?.wait()?;
/// assert_eq!(*packed.read()?, [1, 5, 9, 2, 6, 10]);
/// # Ok::<(), transload::Error>(())
/// ```
pub struct StridedView<T> {
    /// Begins with the first element.
    array: Array<T>,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl<T: Pod> Array<T> {
    /// Returns a view of all elements in this shape: row-major, so that the last dimension is contiguous.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the shape has another number of elements.
    pub fn view(&self, shape: &[usize]) -> Result<StridedView<T>> {
        let elements = shape.iter().try_fold(1_usize, |product, length| product.checked_mul(*length));
        if elements != Some(self.len()) {
            let text = format!("a view of {} elements cannot have the shape {shape:?}", self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut strides = vec![1; shape.len()];
        let mut step = 1_usize;
        for (stride, length) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.saturating_mul(*length);
        }
        self.strided(shape, &strides)
    }

    /// Returns a view of this shape that begins with the first element, with these distances in elements along each dimension, as tensors
    /// of frameworks have them. To begin elsewhere, slice the array. A stride of 0 repeats elements, for a source.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are not as many strides as dimensions; [`ErrorKind::OutOfRange`] if the last element is not
    /// within the array.
    pub fn strided(&self, shape: &[usize], strides: &[usize]) -> Result<StridedView<T>> {
        if shape.len() != strides.len() {
            let text = format!("{} strides for {} dimensions; each has one", strides.len(), shape.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut steps = shape.iter().zip(strides);
        let last = steps
            .try_fold(0_usize, |last, (length, stride)| {
                length.saturating_sub(1).checked_mul(*stride)?.checked_add(last)
            })
            .filter(|last| *last < self.len() || shape.contains(&0));
        if last.is_none() && !transload_core::mutant!("transload/strided-within") {
            let text = format!(
                "a view of shape {shape:?} with strides {strides:?} leaves the array of {} elements",
                self.len()
            );
            return Err(Error::new(ErrorKind::OutOfRange, text));
        }
        Ok(StridedView { array: self.clone(), shape: shape.to_vec(), strides: strides.to_vec() })
    }
}

impl<T: Pod> StridedView<T> {
    /// Returns the memory from the first element on.
    #[must_use]
    pub fn array(&self) -> &Array<T> {
        &self.array
    }

    /// Returns the number of elements along each dimension, the outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the distance of neighbours along each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Returns the part within a range along one dimension.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if there is no such dimension, or the range is reversed or leaves it.
    pub fn narrow(&self, dimension: usize, range: impl RangeBounds<usize>) -> Result<Self> {
        let mut view = self.clone();
        let (Some(length), Some(stride)) = (view.shape.get_mut(dimension), self.strides.get(dimension))
        else {
            return Err(self.without(dimension));
        };
        let range = range_within(&range, *length, "elements of the dimension")?;
        *length = range.len();
        // One without elements may begin behind the array.
        if !view.shape.contains(&0) {
            view.array = self.array.slice(range.start.saturating_mul(*stride)..)?;
        }
        Ok(view)
    }

    /// Returns the view with two dimensions exchanged.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if there is no such dimension.
    pub fn transposed(&self, one: usize, other: usize) -> Result<Self> {
        if one.max(other) >= self.shape.len() {
            return Err(self.without(one.max(other)));
        }
        let mut view = self.clone();
        view.shape.swap(one, other);
        view.strides.swap(one, other);
        Ok(view)
    }

    fn without(&self, dimension: usize) -> Error {
        let text = format!("no dimension {dimension} in a view of {} dimensions", self.shape.len());
        Error::new(ErrorKind::OutOfRange, text)
    }

    fn layout(&self) -> StridedLayout {
        let dimensions = self.shape.iter().zip(&self.strides).rev();
        dimensions.fold(StridedLayout::new(size_of::<T>()), |layout, (length, stride)| {
            layout.repeat(*length, stride.saturating_mul(size_of::<T>()))
        })
    }
}

impl Runtime {
    /// Returns a copy of the elements of one view over those of another of the same shape. Nothing happens before it is
    /// [submitted](CopyBuilder::submit), [waited for](CopyBuilder::wait) or `.await`ed.
    /// [`copy_strided`](crate::CrossBackendTransferManager::copy_strided) of the manager says how it is copied and what is in use meanwhile.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// // Heads 4 to 7 of 16, of 128 tokens with 64 elements each.
    /// let keys = rt.host(vec![1_f32; 128 * 16 * 64])?.view(&[128, 16, 64])?;
    /// let mine = rt.zeros::<f32>(128 * 4 * 64)?;
    /// let report = rt.copy_strided(&keys.narrow(1, 4..8)?, &mine.view(&[128, 4, 64])?)?.wait()?;
    /// assert_eq!(report.bytes, 128 * 4 * 64 * 4);
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`CrossBackendTransferManager::copy_strided`](crate::CrossBackendTransferManager::copy_strided).
    pub fn copy_strided<'a, T: Pod>(
        &'a self,
        src: &'a StridedView<T>,
        dst: &'a StridedView<T>,
    ) -> Result<CopyBuilder<'a>> {
        self.manager().copy_strided((src.array.raw(), &src.layout()), (dst.array.raw(), &dst.layout()))
    }
}

impl<T> Clone for StridedView<T> {
    fn clone(&self) -> Self {
        Self { array: self.array.clone(), shape: self.shape.clone(), strides: self.strides.clone() }
    }
}

impl<T> fmt::Debug for StridedView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StridedView")
            .field("array", &self.array)
            .field("shape", &self.shape)
            .field("strides", &self.strides)
            .finish()
    }
}
