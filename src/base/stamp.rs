//! Wall-clock time, for timestamps, names and times given by a scheduler. No other file reads it. A
//! jump of the clock (by an administrator or NTP) changes no limit and no order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970, UTC; 0 if the clock is set before 1970.
pub fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
