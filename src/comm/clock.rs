//! The monotonic clock of a machine. Processes of one machine share it; the offset to another
//! machine's is measured (`HostCollectives::clock_offset`).

use xxhash_rust::xxh3::xxh3_64;

/// What turns a rank's time into rank 0's, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// Added to this rank's time.
    pub ns: i64,
    /// The offset is wrong by this much at most.
    pub error_ns: i64,
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Equal for the processes that share a clock: those of one machine since its boot. Unique to the
/// process where the boot has no id.
pub fn clock_id() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
    xxh3_64(&boot.unwrap_or_else(|_| format!("{} {}", std::process::id(), now_ns()).into_bytes()))
}
