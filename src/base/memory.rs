//! How much memory is left.

use super::Bytes;
use rustix::process::{Resource, getrlimit};

/// Bytes this process may still take: the machine's, or less under a container's limit or the
/// process's own (`ulimit -v`). None where the system does not say.
pub fn available() -> Option<Bytes> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let meminfo = read("/proc/meminfo")?;
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let machine = line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024;
    let number = |path: String| read(&path)?.trim().parse::<u64>().ok();
    let group = read("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_string();
    let v2 = format!("/sys/fs/cgroup{}", group.trim_end_matches('/'));
    let v1 = "/sys/fs/cgroup/memory".to_string();
    let limits = [
        (format!("{v2}/memory.max"), format!("{v2}/memory.current")),
        ("/sys/fs/cgroup/memory.max".into(), "/sys/fs/cgroup/memory.current".into()),
        (format!("{v1}/memory.limit_in_bytes"), format!("{v1}/memory.usage_in_bytes")),
    ];
    let left = limits
        .into_iter()
        .filter_map(|(limit, used)| Some(number(limit)?.saturating_sub(number(used)?)));
    Some(Bytes(left.chain(addresses()).fold(machine, u64::min)))
}

/// Under a limit of the process's addresses, those that are left.
fn addresses() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let taken = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = taken.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(kib * 1024))
}
