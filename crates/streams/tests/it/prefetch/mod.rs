//! Unified memory: hints and automatic prefetch.

mod concurrent_hints;
mod hints;
mod last_user;
mod launch_arguments;
mod prediction;
mod skipped_launches;
