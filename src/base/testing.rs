//! Waits and time limits for tests that must not fail on a busy machine. Waits give up only when
//! the machine is idle; limits grow and the test is repeated. Not in a build without the feature
//! `testing`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Waits until `is_so` holds, however busy the machine is. Fails once the processors were idle for
/// 300 s, the duration of the slowest wait (Slurm requeueing a job).
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = idle_seconds() + 300.0;
    while !is_so() {
        assert!(idle_seconds() < end, "the machine was idle for 300 s, and still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs work on a thread, waits until it ends, and returns its result.
pub fn run_to_end<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = crate::threads::spawn(what, work).expect("a thread");
    until(&format!("{what} ends"), || thread.is_finished());
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs a test with time limits. On a busy machine a limit can be too short for other threads to
/// act in time, so a failed test is repeated with longer limits.
pub fn at_any_load(first: Duration, test: impl Fn(Duration)) {
    let tries = [1, 4, 16].map(|factor| first * factor);
    if !tries
        .iter()
        .any(|limit| catch_unwind(AssertUnwindSafe(|| test(*limit))).is_ok())
    {
        test(first * 64);
    }
}

/// Idle seconds since boot, averaged over the processors.
fn idle_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("Linux has it");
    let processors = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    let idle = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(4));
    let hundredths: f64 = idle
        .and_then(|idle| idle.parse().ok())
        .expect("a number of ticks");
    hundredths / 100.0 / processors as f64
}
