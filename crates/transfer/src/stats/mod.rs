//! Statistics of transfers, and the tracking of those whose handles were dropped.

mod histogram;
pub(crate) mod lost;
pub(crate) mod path_stats;
pub(crate) mod sampling;
pub(crate) mod transfer_stats;
pub(crate) mod unobserved;
