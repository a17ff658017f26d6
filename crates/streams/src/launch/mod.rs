//! Kernels of the caller's: what a launch reads and writes is declared, and from that it is ordered, kept alive and prefetched.

mod arguments;
mod config;
mod executor;
mod kernel;
mod module;
mod reach;
mod request;
mod uses;

pub use arguments::KernelArg;
pub use config::LaunchConfig;
pub use executor::LaunchExecutor;
pub use kernel::CudaKernel;
pub use module::CudaModule;
pub use request::Launch;
