//! A simulated week in a minute, on a separate cluster: a job of three replicas and a spare task, one per
//! node. It reaches its time limit four times. One node is slow and then excluded, one dies, a document is
//! poisoned, the disk is full for a while. Only an administrator acts: reduces the job's time and restarts
//! the dead node. The run ends with the losses of an undisturbed one, and its report shows the events.
//!
//! Nothing waits for a clock: what happens next does so when what was expected is there.

use super::Job;
use super::cluster::Cluster;
use crate::common::binary::{Lab, until};
use gptrain::base::testing::at_any_load;
use gptrain::comm::Place;
use gptrain::launch::events::{self, Kind};
use gptrain::launch::sick_nodes::{self, Reason};
use gptrain::train::testing::{REREAD, STEP_DELAY};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const RUN: [&str; 8] = [
    "data.train=[{prefix: clean, weight: 199}, {prefix: noise, weight: 1}]",
    "batch.global=6",
    "topology.data=3",
    "divergence={loss_rise: 0.3, norm_rise: 1000000}",
    "train.steps=600",
    "train.eval_interval=0",
    "checkpoint={interval: 20, keep_last: 2}",
    "log.interval=100",
];

/// Settings of the job: it leaves as soon as less than twenty minutes remain.
const OF_JOB: [&str; 4] = [
    "slurm={on_end: requeue, margin_s: 1200, exclude_stragglers: true}",
    "restart.max=3",
    "comm.timeout_s=60",
    "checkpoint.wait_for_storage_s=3600",
];

#[test]
fn a_week_of_a_cluster_costs_no_step() {
    // A task comes back to a restart within this time; a step is long beside what disturbs it.
    at_any_load(Duration::from_secs(6), |limit| {
        let Some(cluster) = Cluster::start(6) else { return };
        let lab = Lab::poisoned();
        lab.run(&[&RUN[..], &["log.folder=whole"]].concat()).well();
        let disk = SmallDisk::mount(lab.path("disk"));
        let wait = format!("restart.wait_s={}", limit.as_secs());
        let job = Job::new(&cluster, &lab, "disk/a", &[&RUN, &OF_JOB, &[&wait]]);
        let id = job.submit(&OPTIONS, &job.script(&tasks(limit.as_secs_f64() / 200.0), ""));
        let week = Week { cluster: &cluster, lab: &lab, job, id };
        week.wait("the slow node is named", || week.is_sick("n2", Reason::Straggles));
        week.meets_its_limit(1);
        assert!(week.about_the_job().contains("ExcNodeList=n2 "), "{}", week.about_the_job());
        let lost = week.loses_the_node_of_task(1);
        week.meets_its_limit(2);
        week.finds_the_disk_full(&disk);
        week.meets_its_limit(3);
        week.meets_its_limit(4);
        until("the run is complete", || week.job.said().contains("complete: disk/a"));
        assert!(week.is_sick(&lost, Reason::Failed), "{lost}");
        week.has_lost_nothing();
        week.is_told(disk.mounted);
    });
}

const OPTIONS: [&str; 5] =
    ["--requeue", "--no-kill", "--time=120", "--nodes=4", "--ntasks-per-node=1"];

/// Options of srun and a shell around each task: the steps of the first start take `step` seconds,
/// 15 % more on node n2; those of the next three a tenth of a second, so that things happen in their
/// middle.
fn tasks(step: f64) -> String {
    let slow = 1.15 * step;
    let delay = format!(
        "case ${{SLURM_RESTART_COUNT:-0}}-$SLURMD_NODENAME in 0-n2) d={slow};; 0-*) d={step};; \
         4-*) d=0;; *) d=0.1;; esac; export {STEP_DELAY}=$d {REREAD}=1; exec \"$@\""
    );
    format!("-N4 -n4 --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 sh -c '{delay}' sh")
}

struct Week<'a> {
    cluster: &'a Cluster,
    lab: &'a Lab,
    job: Job<'a>,
    id: String,
}

impl Week<'_> {
    /// Waits for something that happens before the run is complete.
    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        until(what, || {
            let said = self.job.said();
            assert!(!said.contains("complete: "), "it is complete before {what}: {said}");
            is_so()
        });
    }

    fn update(&self, what: &[&str]) {
        self.cluster.run("scontrol", &[&["update"], what].concat());
    }

    fn about_the_job(&self) -> String {
        let about = self
            .cluster
            .run("scontrol", &["show", "job", "-o", &self.id]);
        String::from_utf8(about.stdout).unwrap()
    }

    fn events(&self, kind: Kind) -> Vec<String> {
        let all = events::read(&self.lab.path("disk/a")).unwrap().into_iter();
        all.filter(|event| event.kind == kind)
            .map(|event| event.text)
            .collect()
    }

    fn is_sick(&self, host: &str, reason: Reason) -> bool {
        let noted = sick_nodes::read(&self.lab.path("disk/a")).unwrap_or_default();
        noted
            .iter()
            .any(|node| node.host == host && node.reason == reason)
    }

    /// The end of the job comes nearer, and the run leaves, for the so-many-th time; then its turn
    /// comes again, at once, and it takes steps.
    fn meets_its_limit(&self, times: usize) {
        let job = format!("JobId={}", self.id);
        let starts = self.events(Kind::Start).len();
        self.update(&[&job, "EndTime=now+10minutes"]);
        self.wait("the run leaves", || {
            self.job
                .said()
                .matches("stopped and saved before the job's end")
                .count()
                == times
        });
        let taken = self.job.steps();
        self.job.begins_again(&self.id, &["TimeLimit=120"]);
        self.wait("the requeued job takes steps", || {
            self.events(Kind::Start).len() > starts && self.job.steps() > taken
        });
    }

    /// The node is gone with all that runs on it (task 0's has the batch script, and with it the job);
    /// the spare task takes the place of its task. The node.
    fn loses_the_node_of_task(&self, task: usize) -> String {
        let task = format!("SLURM_PROCID={task}");
        let rank = self
            .job
            .process(&[&task, Place::VARIABLE])
            .expect("a rank runs there");
        let (supervisor, node) = (parent(rank), variable(rank, "SLURMD_NODENAME"));
        self.cluster.kill_daemon(&node);
        for process in [parent(supervisor), supervisor, rank] {
            let _ = kill_process(process, Signal::KILL); // the last two end with the first
        }
        self.wait("the spare task continues", || !self.events(Kind::Restart).is_empty());
        let taken = self.job.steps();
        self.wait("it takes steps", || self.job.steps() > taken + 4);
        self.cluster.start_daemon(&node); // it has been started again
        node
    }

    fn finds_the_disk_full(&self, disk: &SmallDisk) {
        if !disk.mounted {
            return;
        }
        let said = |what: &str| self.job.said().contains(what);
        disk.fill();
        self.wait("the disk is full", || said(" cannot be written (") && said("No space left"));
        fs::remove_file(disk.filler()).unwrap();
        self.wait("the disk has room again", || said("can be written again, after "));
    }

    fn has_lost_nothing(&self) {
        let (ours, whole) = (self.lab.losses("disk/a"), self.lab.losses("whole"));
        assert_eq!((ours.len(), whole.len()), (600, 600));
        assert_eq!(ours, whole, "{}", self.job.said());
        let restarts = self.events(Kind::Restart);
        assert!(
            restarts.len() == 1 && restarts[0].contains("without task 1, with the spare task 3")
        );
    }

    fn is_told(&self, full: bool) {
        self.lab.gptrain(&["report", "disk/a"]).well();
        let page = fs::read_to_string(self.lab.path("disk/a/report.html")).unwrap();
        let story = [
            (" is slow: busy for", 1),
            ("saved, as its job ended", 4),
            ("without task 1, with the spare task 3", 1),
            (" cannot be written (", usize::from(full)),
            (" can be written again, after ", usize::from(full)),
            (": its update is skipped", 1),
            ("complete", 1),
            ("goodput", 1),
        ];
        for (part, times) in story {
            let found = page.matches(part).count();
            assert!(found >= times, "{part:?} is {found} times in the report");
        }
        let status = self.lab.gptrain(&["status", "disk/a"]);
        assert!(status.out.contains("goodput "), "{}", status.out);
    }
}

/// A variable of a process.
fn variable(of: Pid, name: &str) -> String {
    let environ = fs::read(format!("/proc/{}/environ", of.as_raw_nonzero())).unwrap();
    let all = String::from_utf8(environ).unwrap();
    let value = all
        .split('\0')
        .find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
    value.expect("it has the variable").to_string()
}

fn parent(of: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{}/status", of.as_raw_nonzero())).unwrap();
    let parent = status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))
        .unwrap();
    Pid::from_raw(parent.trim().parse().unwrap()).unwrap()
}

/// A disk that has room for a run of this test, and no more. Where the system mounts none, an ordinary
/// folder.
struct SmallDisk {
    folder: PathBuf,
    mounted: bool,
}

impl SmallDisk {
    fn mount(folder: PathBuf) -> SmallDisk {
        fs::create_dir(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=32m", "none"])
            .arg(&folder);
        let mounted = mount.status().is_ok_and(|status| status.success());
        SmallDisk { folder, mounted }
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily: processes of a failed test may still write there.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        }
    }
}
