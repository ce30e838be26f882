//! Memory that a process may allocate.

use super::Bytes;
use std::fmt;
use std::path::Path;

/// Tightest limit on the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMemory {
    pub free: Bytes,
    /// Total that the tightest limit allows.
    pub total: Bytes,
    /// Source of that limit.
    pub limited: MemoryLimit,
    /// Maximum that a process may lock (`ulimit -l`); None if unlimited.
    pub lockable: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    ByMachine,
    ByContainer,
    /// `ulimit -v`, which limits address space.
    ByProcess,
}

/// Bytes that this process may still allocate. None if the system does not report it.
pub fn available() -> Option<Bytes> {
    HostMemory::detect().map(|memory| memory.free)
}

/// Bytes of this process in the machine's memory (VmRSS). None if the system does not report it.
pub fn resident() -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let row = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = row.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(1024 * kib))
}

impl HostMemory {
    /// Limit of this process. None if the system does not report it.
    pub fn detect() -> Option<HostMemory> {
        HostMemory::read(Path::new("/"))
    }

    /// Limit according to the `/proc` and `/sys` in a folder.
    fn read(root: &Path) -> Option<HostMemory> {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let number = |path: &str| text(path)?.trim().parse::<u64>().ok();
        let kib = |file: &str, name: &str| {
            let content = text(file)?;
            let row = content.lines().find_map(|line| line.strip_prefix(name))?;
            Some(row.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
        };
        let limits = text("proc/self/limits").unwrap_or_default();
        let limit = |name: &str| -> Option<u64> {
            let row = limits.lines().find_map(|line| line.strip_prefix(name))?;
            row.split_whitespace().next()?.parse().ok()
        };
        let free = kib("proc/meminfo", "MemAvailable:")?;
        let machine = (free, kib("proc/meminfo", "MemTotal:")?, MemoryLimit::ByMachine);
        let groups = text("proc/self/cgroup").unwrap_or_default();
        let group = groups
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap_or_default();
        let path = format!("sys/fs/cgroup/{group}");
        let v2 = path.trim_end_matches('/');
        let v1 = "sys/fs/cgroup/memory";
        let containers = [
            (format!("{v2}/memory.max"), format!("{v2}/memory.current")),
            ("sys/fs/cgroup/memory.max".into(), "sys/fs/cgroup/memory.current".into()),
            (format!("{v1}/memory.limit_in_bytes"), format!("{v1}/memory.usage_in_bytes")),
        ]
        .into_iter()
        .filter_map(|(limit, used)| {
            let limit = number(&limit)?;
            Some((limit.saturating_sub(number(&used)?), limit, MemoryLimit::ByContainer))
        });
        let addresses = limit("Max address space").and_then(|limit| {
            let taken = kib("proc/self/status", "VmSize:")?;
            Some((limit.saturating_sub(taken), limit, MemoryLimit::ByProcess))
        });
        let (free, total, limited) = containers
            .chain(addresses)
            .fold(machine, |least, other| if other.0 < least.0 { other } else { least });
        let lockable = limit("Max locked memory").map(Bytes);
        Some(HostMemory { free: Bytes(free), total: Bytes(total), limited, lockable })
    }

    /// "8.0 MiB", or "unlimited".
    pub fn lockable(&self) -> String {
        self.lockable
            .map_or("unlimited".to_string(), |limit| limit.to_string())
    }
}

/// For example "10.0 GiB is free of the container's 16.0 GiB; ulimit -l is 8.0 MiB".
impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.limited {
            MemoryLimit::ByMachine => "the machine's",
            MemoryLimit::ByContainer => "the container's",
            MemoryLimit::ByProcess => "the process's (ulimit -v)",
        };
        let free = self.free;
        let total = self.total;
        let lockable = self.lockable();
        write!(f, "{free} is free of {whose} {total}; ulimit -l is {lockable}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn memory_is_resident_once_it_is_written() {
        const ADDED: u64 = 128 << 20;
        let before = resident().unwrap().0;
        let written = std::hint::black_box(vec![1u8; ADDED as usize]);
        let grown = resident().unwrap().0 - before;
        drop(written);
        // Other tests of this process allocate little meanwhile.
        assert!(grown.abs_diff(ADDED) < ADDED / 100, "{grown} of {ADDED}");
    }

    /// The tightest limit is reported.
    #[test]
    fn the_limit_that_leaves_least_is_named() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(HostMemory::read(root.path()), None);
        write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        let says = || HostMemory::read(root.path()).unwrap().to_string();
        assert_eq!(says(), "4.0 GiB is free of the machine's 8.0 GiB; ulimit -l is unlimited");
        let limits =
            "Limit  Soft Limit  Hard Limit\nMax locked memory   8388608   8388608  bytes\n";
        write("proc/self/limits", limits);
        write("proc/self/cgroup", "0::/job\n");
        write("sys/fs/cgroup/job/memory.max", "3221225472\n");
        write("sys/fs/cgroup/job/memory.current", "1073741824\n");
        assert_eq!(says(), "2.0 GiB is free of the container's 3.0 GiB; ulimit -l is 8.0 MiB");
        write("sys/fs/cgroup/job/memory.max", "max\n");
        assert_eq!(says(), "4.0 GiB is free of the machine's 8.0 GiB; ulimit -l is 8.0 MiB");
        write("proc/self/limits", "Max address space   1073741824   unlimited  bytes\n");
        write("proc/self/status", "VmSize:   524288 kB\n");
        let process = "512.0 MiB is free of the process's (ulimit -v) 1.0 GiB";
        assert_eq!(says(), format!("{process}; ulimit -l is unlimited"));
    }
}
