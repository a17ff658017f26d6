//! Today's date, without a calendar library.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns today in UTC as `YYYY-MM-DD`.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    from_days(seconds / 86_400)
}

/// Returns whether a text begins with `YYYY-MM-DD`.
pub(crate) fn begins_with_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 10
        && bytes.iter().take(10).enumerate().all(|(index, byte)| match index {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Converts days since 1970-01-01 to a date in the proleptic Gregorian calendar.
fn from_days(days: u64) -> String {
    // Years begin in March, so that the leap day ends its year; an era is 400 years of 146,097 days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_around_leap_days_are_correct() {
        for (days, date) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (19_782, "2024-02-29"),
            (20_777, "2026-11-20"),
        ] {
            assert_eq!(from_days(days), date);
        }
    }

    #[test]
    fn date_prefix_is_recognised() {
        assert!(begins_with_date("2026-11-20-h200-copies.json"));
        assert!(begins_with_date("2026-11-20T10:00:00Z"));
        assert!(!begins_with_date("20-11-2026"));
        assert!(!begins_with_date("2026-11"));
    }
}
