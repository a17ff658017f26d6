//! Launches of the caller's kernels. They declare the memory they use, which orders them, keeps it alive and prefetches it.

mod arguments;
mod config;
mod executor;
mod kernel;
mod module;
pub(crate) mod reach;
mod request;
mod uses;

pub use arguments::KernelArg;
pub use config::LaunchConfig;
pub use executor::LaunchExecutor;
pub use kernel::CudaKernel;
pub use module::CudaModule;
pub use request::Launch;
