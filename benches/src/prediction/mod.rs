//! Courses of unified memory for automatic prefetch: what each pattern costs with no prefetch, with one written by hand, and
//! with what the library predicts.

mod course;
mod pattern;
mod short;

pub use course::{Course, CourseSize, Way};
pub use pattern::Pattern;
pub use short::{ShortLaunches, ShortOrder, ShortSize};
