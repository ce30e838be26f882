//! Binds threads to the cores near a GPU. On a machine with several memory nodes, a rank's threads and
//! the pages that they touch first belong on the node of the GPU's bus: copies of page-locked memory of
//! another node cross the link between the sockets. Threads inherit the cores of the thread that starts
//! them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::Path;

/// Binds this thread, and those that it will start, to those of its cores that are near a GPU. Returns a
/// description. None if the machine has one node, or does not report which one is near, or if this
/// thread has no core there.
pub fn bind(bus: &str) -> Option<String> {
    let (node, near) = find_nearest(Path::new("/sys"), bus)?;
    let has = sched_getaffinity(None).ok()?;
    let both: Vec<usize> = near
        .into_iter()
        .filter(|cpu| *cpu < CpuSet::MAX_CPU && has.is_set(*cpu))
        .collect();
    let mut set = CpuSet::new();
    both.iter().for_each(|cpu| set.set(*cpu));
    let first = both.first()?;
    let last = both.last()?;
    sched_setaffinity(None, &set).ok()?;
    Some(format!("on {} cores ({first} to {last}) of memory node {node}", both.len()))
}

/// Memory node of a device, and its cores. `root` is `/sys`.
fn find_nearest(root: &Path, bus: &str) -> Option<(usize, Vec<usize>)> {
    let text = |path: String| fs::read_to_string(root.join(path)).ok();
    let nodes = "devices/system/node";
    let mut count = 0;
    for entry in fs::read_dir(root.join(nodes)).ok()?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        count += number.is_some_and(|n| n.parse::<u32>().is_ok()) as usize;
    }
    if count < 2 {
        return None;
    }
    let node = text(format!("bus/pci/devices/{}/numa_node", bus.to_lowercase()))?
        .trim()
        .parse::<usize>()
        .ok()?; // −1 where the machine does not know
    Some((node, cores(text(format!("{nodes}/node{node}/cpulist"))?.trim())?))
}

/// Parses a list such as "0-3,8,10-11".
fn cores(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for run in list.split(',').filter(|run| !run.is_empty()) {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_those_of_the_node_that_a_gpu_is_connected_to() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let found = || find_nearest(root.path(), "0000:3B:00.0");
        assert_eq!(found(), None);
        write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        write("devices/system/node/node0/cpulist", "0-3,8-11\n");
        write("devices/system/node/possible", "0\n");
        assert_eq!(found(), None, "one node");
        write("devices/system/node/node1/cpulist", "4-6,12\n");
        assert_eq!(found(), Some((1, vec![4, 5, 6, 12])));
        write("bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
        assert_eq!(found(), None, "the machine does not say");
    }

    /// Wherever the tests run, the cores of this thread are real, and nothing near is invented.
    #[test]
    fn a_gpu_that_is_not_there_binds_nothing() {
        let before = sched_getaffinity(None).unwrap();
        assert_eq!(bind("ffff:ff:1f.7"), None);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
