//! Memory that a buffer owns, and how it is freed.

mod adopt;
mod device_memory;
mod driver_memory;
mod end_words;
mod free_deferral;
mod free_thread;
mod in_context;
mod list_pages;
mod mapped_page;
mod pointer;
mod word_page;

pub(crate) use device_memory::DeviceSource;
#[cfg(target_os = "linux")]
pub(crate) use driver_memory::Origin;
pub use driver_memory::context_of;
pub(crate) use driver_memory::{DriverMemory, context_of_kind, finish_free};
pub use end_words::{EndWord, EndWords, PendingEnd};
pub use free_deferral::FreeDeferral;
pub(crate) use free_deferral::Running;
pub(crate) use free_thread::{Address, FreeThread, PendingUpload};
pub use in_context::InContext;
pub use list_pages::{FixedList, ListEntry, ListPage, ListPages};
pub use pointer::{PointerAttributes, pointer_attributes};
pub use word_page::WordPage;
