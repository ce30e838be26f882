//! Dates of the Gregorian calendar, in UTC.

use std::time::Duration;

/// Days from 1970-01-01 to a date. A year is counted from March on, so that the leap day is its last.
pub fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before = (153 * month + 2) / 5;
    365 * year + year / 4 - year / 100 + year / 400 + days_before + day - 1 - 719_468
}

/// Year, month and day of a number of days since 1970.
pub fn date_of(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days / 366;
    while days_since_1970(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (1..=12).rfind(|month| days_since_1970(year, *month, 1) <= days);
    let month = month.unwrap_or(1);
    (year, month, days - days_since_1970(year, month, 1) + 1)
}

/// A time in seconds since 1970 as "2026-11-24 08:30 UTC".
pub fn date_and_minute(since_1970: f64) -> String {
    let minutes = (since_1970 / 60.0) as i64;
    let (year, month, day) = date_of(minutes / 1440);
    let (hour, minute) = (minutes % 1440 / 60, minutes % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// A time since 1970 as `2026-11-28 21:15:46.250000`.
pub fn date_and_time(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = date_of((seconds / 86400) as i64);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_1970.subsec_micros();
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u` gives them.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, says) in [
            (0, "1970-01-01 00:00:00.000000"),
            (951_782_400, "2000-02-29 00:00:00.000000"),
            (1_709_251_199, "2024-02-29 23:59:59.000000"),
            (1_709_251_200, "2024-03-01 00:00:00.000000"),
            (4_107_542_400, "2100-03-01 00:00:00.000000"),
            (1_795_900_546, "2026-11-28 21:15:46.000000"),
        ] {
            assert_eq!(date_and_time(Duration::from_secs(seconds)), says, "{seconds}");
        }
        let late = Duration::from_micros(1_735_689_599_250_001);
        assert_eq!(date_and_time(late), "2024-12-31 23:59:59.250001");
    }

    #[test]
    fn minutes_are_those_of_the_calendar() {
        assert_eq!(date_and_minute(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date_and_minute(951_782_399.0), "2000-02-28 23:59 UTC");
        assert_eq!(date_and_minute(951_868_799.0), "2000-02-29 23:59 UTC");
        assert_eq!(date_and_minute(1_735_689_599.0), "2024-12-31 23:59 UTC");
        assert_eq!(date_and_minute(1_795_867_200.0), "2026-11-28 12:00 UTC");
        for day in 0..40_000 {
            let (year, month, date) = date_of(day);
            assert_eq!(days_since_1970(year, month, date), day);
        }
    }
}
