//! Context of device memory that another crate allocated.

use transload_cuda_sys::Context;

/// Returned by `Storage::as_any` of device memory that this crate did not allocate, so that
/// [`context_of`](crate::context_of) finds its context: a copy between devices names the contexts of both sides.
#[derive(Clone, Debug)]
pub struct InContext(Context);

impl InContext {
    /// Names the context that the memory belongs to.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self(context.clone())
    }

    /// Returns the context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0
    }
}
