//! Waits of tests that no load of the machine can fail: for events, as long as the machine has work;
//! and limits that grow where the first were too short. (Public because every floor's tests wait.)

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Waits until it is so, however busy the machine is: gives up only when processors have meanwhile
/// had nothing to do for as long as the slowest wait, Slurm's for a requeued job, takes.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = idle_seconds() + 300.0;
    while !is_so() {
        assert!(idle_seconds() < end, "the machine stood idle, and it is not so that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Does some work that must come to its end by itself; what it gave.
pub fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = crate::threads::spawn(what, work).expect("a thread");
    until(&format!("{what} ends"), || thread.is_finished());
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A test of something that happens after a limit. A limit can be too short where the machine is busy,
/// so that others do not do in time what they must: then the test is repeated with longer ones.
pub fn at_any_load(first: Duration, test: impl Fn(Duration)) {
    let tries = [1, 4, 16].map(|factor| first * factor);
    let passed = |limit: &Duration| catch_unwind(AssertUnwindSafe(|| test(*limit))).is_ok();
    if !tries.iter().any(passed) {
        test(first * 64);
    }
}

/// Seconds since the machine was started in which a processor had nothing to do, on average.
fn idle_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("Linux has it");
    let processors = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    let idle = text.lines().next().and_then(|line| line.split_whitespace().nth(4));
    let hundredths: f64 = idle.and_then(|idle| idle.parse().ok()).expect("a number of ticks");
    hundredths / 100.0 / processors as f64
}
