//! Simulated slow network adapter: limits the bytes that a process sends per second.

use base::Problems;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Variable with the limit of this process, in bytes per second: "1e6". Unlimited if not set.
pub const SEND_LIMIT: &str = "GPTRAIN_TEST_SEND_LIMIT";

/// Limit from the environment.
pub fn send_limit() -> Result<Option<f64>, Problems> {
    let Ok(text) = std::env::var(SEND_LIMIT) else { return Ok(None) };
    match text.parse::<f64>() {
        Ok(limit) if limit >= 1.0 && limit.is_finite() => Ok(Some(limit)),
        _ => Err(Problems::one(
            SEND_LIMIT,
            format!("{text:?} is not a number of bytes per second"),
            "give one such as 1e6, or unset it",
        )),
    }
}

/// Token bucket without a reserve: n bytes to all peers together take n/limit seconds, however long
/// the process was idle before.
pub struct Throttle {
    bytes_per_s: f64,
    /// Time at which all earlier bytes have been sent.
    free_at: Mutex<Instant>,
}

impl Throttle {
    pub fn new(bytes_per_s: f64) -> Throttle {
        Throttle { bytes_per_s, free_at: Mutex::new(Instant::now()) }
    }

    /// Returns when this many bytes would have been sent.
    pub fn wait_for(&self, bytes: usize) {
        let until = self.reserve(bytes, Instant::now());
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// Time at which bytes submitted at `now` have been sent, after all earlier ones.
    fn reserve(&self, bytes: usize, now: Instant) -> Instant {
        let mut free_at = self.free_at.lock();
        *free_at = now.max(*free_at) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throttle_queues_bytes_and_saves_no_idle_time() {
        let throttle = Throttle::new(1e6);
        let start = Instant::now() + Duration::from_secs(1);
        let ms = |n| Duration::from_millis(n);
        assert_eq!(throttle.reserve(500_000, start), start + ms(500));
        assert_eq!(throttle.reserve(250_000, start + ms(100)), start + ms(750));
        assert_eq!(throttle.reserve(0, start + ms(200)), start + ms(750));
        assert_eq!(throttle.reserve(100_000, start + ms(5000)), start + ms(5100));
    }
}
