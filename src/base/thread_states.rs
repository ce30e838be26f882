//! States of this process's threads as the kernel reports them in `/proc`: without a debugger, a
//! signal or root. The kernel does not report stacks of programs.

use super::Moment;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// State of a thread, and its share of a short interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadState {
    /// First 15 bytes of its name.
    pub name: String,
    /// Number by which debuggers attach to it.
    pub id: u32,
    /// Letter of proc(5): R runs, S sleeps, D waits for a device or a file server, T is stopped.
    pub state: char,
    /// Function of the kernel in which it sleeps: "futex_do_wait". None if it runs, or if the kernel
    /// does not report it.
    pub sleeps_in: Option<String>,
    /// Share of the interval on a processor; None if the kernel does not count it.
    pub computing: Option<f64>,
    /// Share of the interval in which it was ready to run and had no processor.
    pub queued: Option<f64>,
}

/// For example "sleeps in futex_do_wait", or "runs, 98 % on a processor".
impl fmt::Display for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            'R' => write!(f, "runs")?,
            'S' => write!(f, "sleeps")?,
            'D' => write!(f, "waits for a device or a file server")?,
            'T' | 't' => write!(f, "is stopped")?,
            other => write!(f, "has the state {other}")?,
        }
        if let Some(function) = &self.sleeps_in {
            write!(f, " in {function}")?;
        }
        let shares = [(self.computing, "on a processor"), (self.queued, "waiting for a processor")];
        for (share, what) in shares {
            // Less is the noise of threads that look after something.
            if let Some(share) = share.filter(|share| *share >= 0.05) {
                write!(f, ", {:.0} % {what}", 100.0 * share)?;
            }
        }
        Ok(())
    }
}

/// States of all threads of this process, with their shares of `interval`, for which it sleeps. Empty
/// if there is no `/proc`.
pub fn thread_states(interval: Duration) -> Vec<ThreadState> {
    let tasks = Path::new("/proc/self/task");
    let begun = Moment::now();
    let before = read_times(tasks);
    std::thread::sleep(interval);
    read_states(tasks, &before, begun.elapsed().as_secs_f64())
}

/// Seconds of a thread on a processor, and waiting for one.
type Times = (f64, f64);

fn read_times(tasks: &Path) -> BTreeMap<u32, Times> {
    ids(tasks)
        .filter_map(|id| Some((id, times(&tasks.join(id.to_string()))?)))
        .collect()
}

fn ids(tasks: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(tasks).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Nanoseconds of `schedstat`, as seconds.
fn times(task: &Path) -> Option<Times> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    let mut fields = text
        .split_whitespace()
        .filter_map(|field| field.parse::<f64>().ok());
    Some((fields.next()? / 1e9, fields.next()? / 1e9))
}

/// States of the threads `seconds` after `before`, by number.
fn read_states(tasks: &Path, before: &BTreeMap<u32, Times>, seconds: f64) -> Vec<ThreadState> {
    let mut states: Vec<ThreadState> = ids(tasks)
        .filter_map(|id| {
            let task = tasks.join(id.to_string());
            let stat = fs::read_to_string(task.join("stat")).ok()?;
            // "4711 (rank 3) S …": a name may hold brackets and spaces.
            let (start, rest) = stat.rsplit_once(") ")?;
            let sleeps_in = fs::read_to_string(task.join("wchan")).ok();
            let passed = before.get(&id).zip(times(&task));
            let share = |from: f64, to: f64| ((to - from) / seconds).clamp(0.0, 1.0);
            Some(ThreadState {
                name: start.split_once(" (")?.1.to_string(),
                id,
                state: rest.chars().next()?,
                sleeps_in: sleeps_in
                    .map(|name| name.trim().to_string())
                    .filter(|name| !name.is_empty() && name != "0"),
                computing: passed.map(|(from, to)| share(from.0, to.0)),
                queued: passed.map(|(from, to)| share(from.1, to.1)),
            })
        })
        .collect();
    states.sort_by_key(|thread| thread.id);
    states
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn states_are_read_from_the_files_of_proc() {
        let root = tempfile::tempdir().unwrap();
        let write = |id: &str, file: &str, text: &str| {
            fs::create_dir_all(root.path().join(id)).unwrap();
            fs::write(root.path().join(id).join(file), text).unwrap();
        };
        write("12", "stat", "12 (rank (3) of 4) D 1 1 1");
        write("12", "wchan", "rpc_wait_bit_killable");
        write("7", "stat", "7 (rayon-0) R 1 1 1");
        write("7", "wchan", "0");
        write("7", "schedstat", "1000000000 500000000 3\n");
        write("12", "schedstat", "not numbers");
        let before = read_times(root.path());
        assert_eq!(before, BTreeMap::from([(7, (1.0, 0.5))]));
        write("7", "schedstat", "1150000000 550000000 4\n");
        let said: Vec<String> = read_states(root.path(), &before, 0.2)
            .iter()
            .map(|thread| format!("{} {thread}", thread.name))
            .collect();
        let expected = [
            "rayon-0 runs, 75 % on a processor, 25 % waiting for a processor",
            "rank (3) of 4 waits for a device or a file server in rpc_wait_bit_killable",
        ];
        assert_eq!(said, expected);
        assert!(read_states(&root.path().join("none"), &before, 0.2).is_empty());
    }

    /// A thread that computes and one that waits, of this process.
    #[test]
    fn a_thread_that_computes_is_told_from_one_that_waits() {
        static END: AtomicBool = AtomicBool::new(false);
        let (end, ended) = channel::<()>();
        let spin = || {
            while !END.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let spinner = crate::threads::spawn("spins", spin).unwrap();
        let waiter = crate::threads::spawn("waits", move || ended.recv().is_err()).unwrap();
        let state = |states: &[ThreadState], name: &str| {
            let found = states.iter().find(|thread| thread.name == name);
            found.map(|thread| (thread.state, thread.sleeps_in.is_none()))
        };
        // Both have begun: on a busy machine the first may wait for a processor, which counts as running.
        loop {
            let states = thread_states(Duration::from_millis(20));
            if state(&states, "waits").is_some_and(|(state, _)| state == 'S')
                && state(&states, "spins").is_some()
            {
                assert_eq!(state(&states, "spins"), Some(('R', true)), "{states:?}");
                break;
            }
        }
        END.store(true, Ordering::Relaxed);
        drop(end);
        spinner.join().unwrap();
        waiter.join().unwrap();
    }
}
