//! Casts of arrays between floating-point element types.

use transload_core::{Buffer, FloatType, Pod};
use transload_transfer::CastBuilder;

use crate::Runtime;

/// An element type that [`Runtime::cast`] reads or writes: `f32`, with the feature `half` also `half::f16` and `half::bf16`, or a type of
/// yours with the same bits. Casts of a type whose size is not that of [`TYPE`](Self::TYPE) do not compile.
pub trait Float: Pod {
    /// What its bits mean.
    const TYPE: FloatType;
}

impl Float for f32 {
    const TYPE: FloatType = FloatType::F32;
}

#[cfg(feature = "half")]
impl Float for half::f16 {
    const TYPE: FloatType = FloatType::F16;
}

#[cfg(feature = "half")]
impl Float for half::bf16 {
    const TYPE: FloatType = FloatType::Bf16;
}

impl Runtime {
    /// Returns a cast of all elements of `src` to as many of `dst`, which have another type: rounded to nearest even, as [`FloatType`]
    /// says. Nothing happens before it is [submitted](CastBuilder::submit), [waited for](CastBuilder::wait) or `.await`ed. [`CastBuilder`]
    /// says how it is cast; bytes without a type are cast by
    /// [`CrossBackendTransferManager::cast`](crate::CrossBackendTransferManager::cast).
    ///
    /// ```
    /// # #[cfg(feature = "half")] {
    /// use half::bf16;
    ///
    /// let rt = transload::Runtime::discover()?;
    /// let (weights, narrow) = (rt.host(vec![1.0_f32; 1000])?, rt.zeros::<bf16>(1000)?);
    /// rt.cast(&weights, &narrow).wait()?;
    /// assert_eq!(narrow.read()?[999], bf16::ONE);
    /// # }
    /// # Ok::<(), transload::Error>(())
    /// ```
    pub fn cast<T: Float, U: Float>(
        &self,
        src: &(impl Buffer<T> + ?Sized),
        dst: &(impl Buffer<U> + ?Sized),
    ) -> CastBuilder<'_> {
        const {
            assert!(
                size_of::<T>() == T::TYPE.size() && size_of::<U>() == U::TYPE.size(),
                "an element has another size than its `Float::TYPE`"
            );
        }
        self.manager().cast((src.raw(), T::TYPE), (dst.raw(), U::TYPE))
    }
}
