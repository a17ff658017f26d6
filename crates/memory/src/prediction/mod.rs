//! Unified memory prefetched before it is asked for: what comes next is predicted from what was declared so far.

mod auto;
mod familiar;
mod known;
mod last_prefetch;
mod predictor;
mod repetition;
mod residency;
mod room;
mod stride;
mod trust;

pub use auto::{AutoPrefetcher, PredictionLimits, PredictionStatistics};
pub use last_prefetch::LastPrefetch;
pub use predictor::{AccessPredictor, DeclaredAccess, PredictedAccess};
pub use residency::DeviceResidency;
