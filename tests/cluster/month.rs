//! A month of a cluster, played: nodes with a rank each and spares, checkpoints in memory at every step,
//! and faults in random order. A rank is killed, a node is lost with its memory, two neighbours are lost at
//! the same time, the job ends. The run ends with the bits of an undisturbed one; a table says what each
//! kind of fault cost.
//!
//! Two variables make it long: `MONTH_NODES=64 MONTH_FAULTS=120 cargo test --test cluster month -- --nocapture`.
//! A node is a mount namespace with a host name and memory of its own. All share the processors, so that
//! the seconds are those of this machine; the steps lost are those of any.

use crate::common::binary::{Lab, Ranks, free_port, rank_of, until, within};
use crate::common::hosts::may_mount;
use gptrain::base::rng;
use gptrain::base::testing::at_any_load;
use gptrain::checkpoint::published;
use gptrain::train::testing::STEP_DELAY;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

/// Steps between two faults, at least.
const BETWEEN: usize = 4;

/// Spare tasks, each on its own node.
const SPARES: usize = 2;

/// Steps between two checkpoints on disk.
const ON_DISK: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Rank,
    Node,
    /// Two nodes of which one keeps the copy of the other.
    Neighbours,
    Job,
}

/// Steps that a fault cost, and seconds until the next one.
struct Cost {
    steps: usize,
    seconds: f64,
    from_memory: bool,
}

#[test]
fn faults_cost_no_complete_step_and_no_bit() {
    let number = |name, default| {
        let given: Option<usize> = std::env::var(name).ok().and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    let (nodes, faults) = (number("MONTH_NODES", 4), number("MONTH_FAULTS", 6));
    if !may_mount() {
        return;
    }
    // A task comes back to a restart within this time.
    at_any_load(Duration::from_secs(6), |wait| play(nodes, faults, wait));
}

fn play(nodes: usize, faults: usize, wait: Duration) {
    let steps = (faults + 1) * (BETWEEN + 2) + ON_DISK;
    let sets = [
        format!("topology={{data: {nodes}, zero: 1}}"),
        format!("batch={{micro: 1, global: {nodes}}}"),
        format!("train.steps={steps}"),
        format!("checkpoint.interval={ON_DISK}"),
        "train.eval_interval=0".to_string(),
        "log.interval=1000".to_string(),
    ];
    let whole = Lab::new();
    whole
        .run(&sets.iter().map(String::as_str).collect::<Vec<_>>())
        .well();
    let lab = Lab::new();
    let restarts = [
        "restart.max=9".to_string(),
        format!("restart.wait_s={}", wait.as_secs()),
        "checkpoint.memory_interval=1".to_string(),
        format!("checkpoint.memory_folder={}", lab.path("memory").display()),
    ];
    fs::create_dir(lab.path("memory")).unwrap();
    let sets = [&sets[..], &restarts].concat();
    let mut month = Month { tasks: start(&lab, nodes, &sets), lab, nodes, sets };
    let mut costs: BTreeMap<Fault, Vec<Cost>> = BTreeMap::new();
    for number in 0..faults {
        month
            .tasks
            .reach(&month.lab, "runs/a", month.steps() + BETWEEN);
        let fault = month.choose(number);
        let cost = month.suffer(fault, number as u64);
        costs.entry(fault).or_default().push(cost);
    }
    until("the run is complete", || month.said().contains("complete: runs/a"));
    print(&costs);
    assert_eq!(month.lab.losses("runs/a"), whole.losses("runs/a"));
}

/// Starts all tasks, each on its node.
fn start(lab: &Lab, nodes: usize, sets: &[String]) -> Ranks {
    let port = free_port();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let said = OpenOptions::new()
        .create(true)
        .append(true)
        .open(lab.path("said"))
        .unwrap();
    let names: Vec<String> = (0..nodes + SPARES)
        .map(|task| format!("node{task}"))
        .collect();
    let hosts = lab.path("hosts");
    fs::write(&hosts, format!("127.0.0.1 localhost {}\n", names.join(" "))).unwrap();
    let start = |task: usize| {
        let memory = lab.path(&format!("node{task}"));
        let _ = fs::create_dir(&memory);
        let script = format!(
            "hostname node{task} && mount --bind {} {} && mount --bind {} /etc/hosts && exec \"$@\"",
            memory.display(),
            lab.path("memory").display(),
            hosts.display()
        );
        let outer = ["unshare", "--mount", "--uts", "sh", "-c", &script, "sh"];
        let mut command = lab.rank(task, nodes + SPARES, port, &sets);
        command.env(STEP_DELAY, "0.05");
        let mut command = within(&outer, &command);
        command
            .stdout(said.try_clone().unwrap())
            .stderr(said.try_clone().unwrap());
        command.spawn().unwrap()
    };
    Ranks { children: (0..nodes + SPARES).map(start).collect() }
}

struct Month {
    lab: Lab,
    nodes: usize,
    sets: Vec<String>,
    tasks: Ranks,
}

impl Month {
    fn steps(&self) -> usize {
        self.lab.metrics("runs/a").len()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.lab.path("said")).unwrap()
    }

    /// Newest step that is complete where a fault leaves it: in memory, or on disk.
    fn complete(&self, fault: Fault) -> usize {
        if fault == Fault::Neighbours {
            let saved = published(&self.lab.path("runs/a/checkpoints")).unwrap_or_default();
            return saved.last().map_or(0, |found| found.step as usize);
        }
        let note = fs::read(self.lab.path("runs/a/memory-checkpoint.json")).unwrap_or_default();
        let note: Option<serde_json::Value> = serde_json::from_slice(&note).ok();
        note.and_then(|note| note["step"].as_u64()).unwrap_or(0) as usize
    }

    /// Tasks that run a rank, and the ranks' processes.
    fn members(&self) -> Vec<(usize, Pid)> {
        let tasks = 0..self.tasks.children.len();
        tasks
            .filter(|task| !self.tasks.ended(*task))
            .filter_map(|task| Some((task, rank_of(self.tasks.pid(task))?)))
            .collect()
    }

    /// The faults in turn at first, then mostly killed ranks; the job ends when there is no spare.
    fn choose(&self, number: usize) -> Fault {
        let alive = (0..self.tasks.children.len())
            .filter(|task| !self.tasks.ended(*task))
            .count();
        let spares = alive - self.nodes;
        let wanted = match number {
            0 | 2 => Fault::Rank,
            1 => Fault::Node,
            3 => Fault::Job,
            4 => Fault::Neighbours,
            _ => match rng::below(7, number as u64, 20) {
                0..14 => Fault::Rank,
                14..18 => Fault::Node,
                18 => Fault::Neighbours,
                _ => Fault::Job,
            },
        };
        match wanted {
            Fault::Node if spares < 1 => Fault::Job,
            Fault::Neighbours if spares < 2 => Fault::Job,
            wanted => wanted,
        }
    }

    /// Lets a fault happen, and waits until the run takes a step again.
    fn suffer(&mut self, fault: Fault, number: u64) -> Cost {
        let members = self.members();
        assert_eq!(members.len(), self.nodes, "every rank runs");
        let chosen = rng::below(11, number, self.nodes as u64) as usize;
        let heard = self.said().len();
        let complete = self.complete(fault);
        let since = Instant::now();
        match fault {
            Fault::Rank => kill_process(members[chosen].1, Signal::KILL).unwrap(),
            Fault::Node => self.lose(&[members[chosen].0]),
            Fault::Neighbours => {
                let next = (chosen + 1) % self.nodes;
                self.lose(&[members[chosen].0, members[next].0]);
            }
            Fault::Job => {
                let tasks = 0..self.tasks.children.len();
                tasks.for_each(|task| self.tasks.signal(task, Signal::KILL));
            }
        }
        let taken = self.steps();
        if fault == Fault::Job {
            self.tasks = start(&self.lab, self.nodes, &self.sets);
        }
        let resumed = || {
            let said = self.said().split_off(heard);
            let goes_on = !said.contains("no further restart");
            assert!(goes_on && !said.contains("instead of"), "{said}");
            let in_memory = number_after(&said, "resumed at step ");
            let on_disk = || Some((number_after(&said, " (step ")?, false));
            in_memory.map(|step| (step, true)).or_else(on_disk)
        };
        until("the run resumes", || resumed().is_some());
        let (step, from_memory) = resumed().unwrap();
        assert!(step >= complete, "{fault:?}: resumed at step {step}, complete was {complete}");
        until("it takes a step", || self.steps() > step);
        Cost {
            steps: taken.saturating_sub(step),
            seconds: since.elapsed().as_secs_f64(),
            from_memory,
        }
    }

    /// Ends everything on the nodes of these tasks.
    fn lose(&self, tasks: &[usize]) {
        for task in tasks {
            self.tasks.signal(*task, Signal::KILL);
        }
        for task in tasks {
            let memory = self.lab.path(&format!("node{task}"));
            until("the node's processes have ended", || self.tasks.ended(*task));
            for run in fs::read_dir(memory).unwrap() {
                until("its memory is empty", || {
                    fs::remove_dir_all(run.as_ref().unwrap().path()).is_ok()
                });
            }
        }
    }
}

/// The number behind the first occurrence of some words.
fn number_after(text: &str, words: &str) -> Option<usize> {
    let (_, rest) = text.split_once(words)?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn print(costs: &BTreeMap<Fault, Vec<Cost>>) {
    println!(
        "fault: times, from memory; steps lost, mean and most; seconds to the next step, mean and most"
    );
    for (fault, costs) in costs {
        let count = costs.len() as f64;
        let steps: Vec<f64> = costs.iter().map(|cost| cost.steps as f64).collect();
        let seconds: Vec<f64> = costs.iter().map(|cost| cost.seconds).collect();
        let describe = |of: &[f64]| {
            let most = of.iter().copied().fold(0.0, f64::max);
            format!("{:.2} {most:.2}", of.iter().sum::<f64>() / count)
        };
        let from_memory = costs.iter().filter(|cost| cost.from_memory).count();
        println!("{fault:?}: {count} {from_memory}; {}; {}", describe(&steps), describe(&seconds));
    }
}
