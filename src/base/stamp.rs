//! Wall-clock time, for timestamps, names and times given by a scheduler. No other file reads it. A
//! jump of the clock (by an administrator or NTP) changes no limit and no order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970, UTC; 0 if the clock is set before 1970.
pub fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A time since 1970 as `2026-11-28 21:15:46.250000`, UTC.
pub fn date_and_time(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_1970.subsec_micros();
    // Years begin in March here, so that leap days are the last of a year.
    let days = seconds / 86400 + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let [month, after] = if month < 10 { [month + 3, 0] } else { [month - 9, 1] };
    let year = 400 * era + year + after;
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
}
