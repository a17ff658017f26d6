//! Descriptions: backends, devices, places, transfer methods, costs and reports.

pub(crate) mod backend;
pub(crate) mod cost;
pub(crate) mod device_id;
pub(crate) mod list_cost;
pub(crate) mod method;
pub(crate) mod place;
pub(crate) mod report;
#[cfg(feature = "serde")]
mod serde_forms;
pub(crate) mod size_class;
pub(crate) mod staging_hints;
