//! Durations as seconds, a floating-point number: for `#[serde(with = "transload_core::serde_seconds")]` on
//! fields of the types [`Duration`] and `Option<Duration>`.
//!
//! All durations of this workspace have this form, and the names of their fields end in `_seconds`. Durations
//! up to a month keep each nanosecond.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A [`Duration`] or an `Option<Duration>`.
pub trait Seconds: Sized {
    /// The form: `f64`, or an option of it.
    type Form: Serialize + for<'de> Deserialize<'de>;
    /// Converts to seconds.
    fn to_form(&self) -> Self::Form;
    /// Converts from seconds.
    ///
    /// # Errors
    /// If the number is negative, not finite or larger than a `Duration`.
    fn from_form(form: Self::Form) -> Result<Self, std::time::TryFromFloatSecsError>;
}

impl Seconds for Duration {
    type Form = f64;

    fn to_form(&self) -> f64 {
        self.as_secs_f64()
    }

    fn from_form(seconds: f64) -> Result<Self, std::time::TryFromFloatSecsError> {
        Self::try_from_secs_f64(seconds)
    }
}

impl Seconds for Option<Duration> {
    type Form = Option<f64>;

    fn to_form(&self) -> Option<f64> {
        self.map(|time| time.as_secs_f64())
    }

    fn from_form(seconds: Option<f64>) -> Result<Self, std::time::TryFromFloatSecsError> {
        seconds.map(Duration::try_from_secs_f64).transpose()
    }
}

/// Serializes as seconds.
///
/// # Errors
/// If the serializer fails.
pub fn serialize<T: Seconds, S: Serializer>(time: &T, serializer: S) -> Result<S::Ok, S::Error> {
    time.to_form().serialize(serializer)
}

/// Deserializes from seconds.
///
/// # Errors
/// If the input is no number, or negative, not finite or larger than a `Duration`.
pub fn deserialize<'de, T: Seconds, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::from_form(T::Form::deserialize(deserializer)?).map_err(de::Error::custom)
}
