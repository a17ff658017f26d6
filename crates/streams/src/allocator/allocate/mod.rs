//! How a request is met that the stream's own free blocks do not serve.

pub(crate) mod coalesce;
pub(crate) mod grow;
pub(crate) mod reuse;
