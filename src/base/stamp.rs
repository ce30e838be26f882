//! The time of day, for stamps, names and the moments that a scheduler gives: the one place that
//! reads it. A clock that jumps, by an administrator or NTP, changes no limit and no order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Since 1970, UTC; 0 on a machine whose clock stands before that.
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
