//! Monotonic clock of a machine. All processes of a machine share it; the offset between machines
//! is measured (`HostCollectives::clock_offset`).

use xxhash_rust::xxh3::xxh3_64;

/// Conversion from a rank's clock to the clock of rank 0, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// To add to this rank's time.
    pub ns: i64,
    /// Maximum error of the offset.
    pub error_ns: i64,
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one `timespec` to the variable. Every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Id that is equal for processes with the same clock, that is, on one machine since its boot.
/// Unique to the process if the machine has no boot id.
pub fn clock_id() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
    xxh3_64(&boot.unwrap_or_else(|_| format!("{} {}", std::process::id(), now_ns()).into_bytes()))
}
