//! Host views as elements.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::{Error, ErrorKind, HostView, HostViewMut, Pod, Result};

/// Readable elements. Operations that would write them return [`ErrorKind::Busy`] until it is dropped.
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    view: HostView<'a>,
    elements: PhantomData<&'a [T]>,
}

/// Writable elements. Operations that would use them return [`ErrorKind::Busy`] until it is dropped.
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    view: HostViewMut<'a>,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> ReadGuard<'a, T> {
    /// Reads a view's bytes as elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the bytes are no whole number of elements, or not aligned for them.
    pub fn new(view: HostView<'a>) -> Result<Self> {
        check::<T>(&view)?;
        Ok(Self { view, elements: PhantomData })
    }
}

impl<'a, T: Pod> WriteGuard<'a, T> {
    /// Uses a view's bytes as elements.
    ///
    /// # Errors
    /// As for [`ReadGuard::new`].
    pub fn new(view: HostViewMut<'a>) -> Result<Self> {
        check::<T>(&view)?;
        Ok(Self { view, elements: PhantomData })
    }
}

fn check<T: Pod>(bytes: &[u8]) -> Result<()> {
    match bytemuck::try_cast_slice::<u8, T>(bytes) {
        Ok(_) => Ok(()),
        Err(reason) => {
            let (size, alignment) = (size_of::<T>(), align_of::<T>());
            let text = format!(
                "{} bytes at {:p} are not elements of {size} bytes aligned to {alignment}: {reason}",
                bytes.len(),
                bytes.as_ptr()
            );
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
}

// `new` checked length and alignment, so the casts below never fail.

impl<T: Pod> Deref for ReadGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::try_cast_slice(&self.view).unwrap_or_default()
    }
}

impl<T: Pod> Deref for WriteGuard<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::try_cast_slice(&self.view).unwrap_or_default()
    }
}

impl<T: Pod> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::try_cast_slice_mut(&mut self.view).unwrap_or_default()
    }
}
