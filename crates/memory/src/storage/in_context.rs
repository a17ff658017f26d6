//! How a storage of another crate's says in which context its device memory lies.

use transload_cuda_sys::Context;

/// What the storage of device memory that this crate did not allocate answers to `Storage::as_any`, so that
/// [`context_of`](crate::context_of) knows it: a copy between devices names the contexts of both sides.
#[derive(Clone, Debug)]
pub struct InContext(Context);

impl InContext {
    /// Memory of this context.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self(context.clone())
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0
    }
}
