//! Unified memory prefetched before it is asked for: what comes next is predicted from what was declared so far.

mod auto;
mod known;
mod predictor;
mod repetition;
mod residency;
mod room;
mod stride;
mod trust;

pub use auto::{AutoPrefetcher, PredictionLimits, PredictionStatistics};
pub use predictor::{AccessPredictor, DeclaredAccess, PredictedAccess};
pub use residency::DeviceResidency;
