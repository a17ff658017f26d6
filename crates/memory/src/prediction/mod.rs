//! Automatic prefetch of unified memory: the next accesses are predicted from those declared so far.

mod auto;
mod backoff;
mod hashing;
mod memory_budget;
mod predictor;
mod repetition;
mod residency;
mod stride;

pub use auto::{AutoPrefetcher, PredictionLimits, PredictionStatistics};
pub use predictor::{AccessPredictor, DeclaredAccess, PredictedAccess};
pub use residency::DeviceResidency;
