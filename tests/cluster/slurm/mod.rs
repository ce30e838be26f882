//! Real Slurm on this machine: four nodes of it, `srun -n 8 gptrain run`. What a cluster does to a
//! job: kill -9, SIGSTOP, scancel, a time limit, a requeue. Waits for progress, never for a time.
//!
//! Without Slurm (`apt-get install slurm-wlm munge`, as root) the test says that it is skipped.

mod cluster;
mod series;
mod week;

use crate::common::binary;
use crate::common::binary::{Done, Lab, free_port, has_ended, until};
use crate::run_cuda::variables;
use cluster::Cluster;
use gptrain::base::testing::at_any_load;
use gptrain::comm::Place;
use gptrain::comm::tcp::testing::SEND_LIMIT;
use gptrain::estimate::measured::Measured;
use gptrain::launch::events::{self, Kind};
use gptrain::launch::sick_nodes::{self, Reason};
use gptrain::train::testing::STEP_DELAY;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Two of everything.
const GRID: [&str; 4] =
    ["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1"];

/// A job that is to run until something happens to it.
const LONG: [&str; 5] = [
    "train.steps=1000000",
    "train.eval_interval=0",
    "log.interval=100000",
    "checkpoint.interval=5",
    "comm.timeout_s=60",
];

#[test]
fn slurm_starts_ends_and_requeues_runs() {
    let Some(cluster) = Cluster::start(4) else { return };
    // Slurm's limits are minutes: this one runs beside the others.
    let limited = time_limits(&cluster);
    scripts_of_manifests_are_accepted(&cluster, &Lab::new());
    a_run_is_found_in_the_queue(&cluster, &Lab::new());
    series::a_sweep_runs_as_jobs(&cluster, &Lab::new());
    series::cuts_are_measured_in_an_allocation(&cluster, &Lab::new());
    // Two jobs at a time, on the same nodes.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lab = Lab::new();
            scancel_saves_and_the_next_job_goes_on(&cluster, &lab);
            a_requeued_job_resumes(&cluster, &lab);
        });
        eight_tasks_equal_one_rank(&cluster, &Lab::new());
        tasks_with_gpus_equal_one_rank(&cluster, &Lab::new());
        the_tasks_of_a_node_are_a_shard_group(&cluster);
        as_many_tasks_as_fit_on_each_node(&cluster);
        a_killed_task_ends_all(&cluster);
        a_stopped_task_is_named(&cluster);
        a_killed_rank_begins_anew(&cluster);
        bench_names_the_node_that_sends_slowly(&cluster);
    });
    a_dead_daemon_ends_nobody_and_a_dead_node_is_named(&cluster);
    limited();
}

/// `sbatch --test-only` of what `gptrain job` writes: by processors, by GPUs, and more than the cluster has.
fn scripts_of_manifests_are_accepted(cluster: &Cluster, lab: &Lab) {
    let grid = "topology={tensor: 2, pipeline: 2, data: 4}";
    let accepted = |args: &[&str]| {
        let wanted = ["run.yaml", "-o", "job.sh", "--overwrite", "--partition", "test"];
        lab.gptrain(&[&["job"], &wanted[..], args].concat())
            .expect(0, &[]);
        let mut sbatch = cluster.command("sbatch");
        let output = sbatch
            .arg("--test-only")
            .arg(lab.path("job.sh"))
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let sixteen = ["--set", grid, "--set", "batch.global=16"];
    for (more, says) in [
        (&["--cpus-per-task", "2"][..], "using 32 processors on nodes n[1-4] "),
        // Two nodes: the job with a time limit may be on one of the first.
        (&["--nodes", "2", "--cpus-per-task", "1"], "using 16 processors on nodes n["),
        (&["--gpus-per-node", "4", "--cpus-per-task", "1"], "using 16 processors on nodes n[1-4] "),
    ] {
        let (ok, said) = accepted(&[&sixteen[..], more].concat());
        assert!(ok && said.contains(says), "{more:?}: {said}");
    }
    // The options of jobs of other projects.
    let passed = [
        "--gres=gpu:4",
        "--cpus-per-task=1",
        "--constraint=v100-32g",
        "--qos=qos_gpu-t3",
        "--hint=nomultithread",
        "--exclusive",
        "--array=1-10%1",
        "--mail-user=us@example.org",
        "--mail-type=END,FAIL",
        "--account=us",
        "--option=nice=100",
        "--option=signal=USR1@300",
        "--option=comment=long",
    ];
    let (ok, said) = accepted(&[&sixteen[..], &passed].concat());
    // Whole nodes, of eight processors.
    assert!(ok && said.contains("using 32 processors on nodes n[1-4] "), "{said}");
    let script = std::fs::read_to_string(lab.path("job.sh")).unwrap();
    assert!(
        script.contains("#SBATCH --constraint=v100-32g\n#SBATCH --hint=nomultithread\n"),
        "{script}"
    );
    for unknown in ["--reservation=none", "--constraint=h100"] {
        let (ok, said) = accepted(&[&sixteen[..], &["--cpus-per-task=1", unknown]].concat());
        assert!(!ok, "{unknown} reaches Slurm: {said}");
    }
    let (ok, said) =
        accepted(&[&sixteen[..], &["--gpus-per-node", "8", "--cpus-per-task", "1"]].concat());
    assert!(!ok && said.contains("node configuration is not available"), "{said}");
}

/// `gptrain status --queue` of a manifest and of a folder: neither running nor queued, waiting, complete.
fn a_run_is_found_in_the_queue(cluster: &Cluster, lab: &Lab) {
    let text = fs::read_to_string(lab.path("run.yaml")).unwrap();
    let text = text.replace("runs/a", "runs/queued");
    fs::write(lab.path("queued.yaml"), format!("name: queued\n{text}")).unwrap();
    let ask = |run: &str| {
        let mut status = cluster.command(env!("CARGO_BIN_EXE_gptrain"));
        let status = status.args(["status", run, "--queue"]);
        Done::of(status.current_dir(lab.path("")).output().unwrap())
    };
    ask("queued.yaml").expect(1, &["runs/queued: the run is not complete, and nothing will"]);
    let held = ["--hold", "--job-name=queued", "--output=/dev/null", "--wrap=:"];
    assert!(cluster.run("sbatch", &held).status.success());
    let waiting = ask("queued.yaml");
    waiting.well();
    assert!(waiting.out.contains("queued: waiting: job "), "{}", waiting.out);
    assert!(waiting.out.contains(", PENDING, JobHeldUser"), "{}", waiting.out);
    assert!(cluster.run("scancel", &["--name=queued"]).status.success());
    until("the job is gone", || ask("queued.yaml").code == Some(1));
    lab.gptrain(&["run", "queued.yaml"]).well();
    assert!(ask("runs/queued").out.contains("queued: complete\n"));
}

/// Submits a job that is longer than it may be: it leaves before its end and is requeued, then
/// leaves again and is submitted again, by its own script. What is returned waits for all of it.
fn time_limits(cluster: &Cluster) -> impl FnOnce() {
    let lab = Lab::new();
    let sets = ["topology.data=2", "checkpoint.interval=1000000", "slurm.margin_s=30"];
    let job = Job::new(cluster, &lab, "runs/a", &[&LONG, &sets]);
    let on_end = "$([ -z $SLURM_RESTART_COUNT ] && echo requeue || echo resubmit)";
    let script = job.script("-n 2 nice -n 19", &format!("--set slurm.on_end={on_end}"));
    job.submit(&["--requeue", "--time=1", "-n2"], &script);
    let rendezvous = job.rendezvous.clone();
    move || {
        let job = Job { cluster, lab: &lab, rendezvous, run: "runs/a", sets: Vec::new() };
        let leaves = |times| {
            job.said()
                .matches("stopped and saved before the job's end")
                .count()
                >= times
        };
        let resumes = |times| job.said().matches("resuming from").count() >= times;
        until("the run leaves before the job's end", || leaves(1));
        // Slurm starts it again by itself after two minutes, and more than once while the other tests
        // run: the counts below are lower bounds, and the job's number may be a later one.
        until("the requeued job resumes", || resumes(1));
        until("the run leaves again", || leaves(2));
        until("the job that it submitted resumes", || resumes(2));
        let next = lab.metrics("runs/a").len();
        until("it takes steps", || job.steps() > next);
        cluster.ok("scancel", &["--name=job.sh"]);
        job.all_ended();
        let steps: Vec<u64> = lab
            .losses("runs/a")
            .iter()
            .map(|row| f64::from_bits(row[0]) as u64)
            .collect();
        assert!(steps.iter().copied().eq(1..=steps.len() as u64), "a step is missing or twice");
        assert!(job.said().contains("goes back into the queue"), "{}", job.said());
        lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"])
            .expect(0, &[]);
    }
}

/// One job of a run.
struct Job<'a> {
    cluster: &'a Cluster,
    lab: &'a Lab,
    /// Only this job's ranks have it.
    rendezvous: String,
    run: &'static str,
    sets: Vec<String>,
}

impl<'a> Job<'a> {
    fn new(cluster: &'a Cluster, lab: &'a Lab, run: &'static str, sets: &[&[&str]]) -> Job<'a> {
        // The names of the four nodes do not resolve.
        let rendezvous = format!("127.0.0.1:{}", free_port());
        let folder = format!("log.folder={run}");
        let sets = sets
            .concat()
            .iter()
            .map(|set| set.to_string())
            .chain([folder])
            .collect();
        Job { cluster, lab, rendezvous, run, sets }
    }

    fn steps(&self) -> usize {
        self.lab.metrics(self.run).len()
    }

    fn run_args(&self) -> Vec<&str> {
        let sets: Vec<&str> = self.sets.iter().map(String::as_str).collect();
        binary::run_args(&sets)
    }

    /// `srun -N 4 -n 8 OPTIONS gptrain run …`
    fn srun(&self, options: &[&str]) -> Command {
        self.srun_as(&[&["-N", "4", "-n", "8", "--ntasks-per-node=2"], options].concat())
    }

    /// `srun OPTIONS gptrain run …`
    fn srun_as(&self, options: &[&str]) -> Command {
        let mut srun = self.cluster.command("srun");
        srun.args(options);
        srun.arg(env!("CARGO_BIN_EXE_gptrain"))
            .args(self.run_args());
        srun.current_dir(self.lab.path(""))
            .env("GPTRAIN_RENDEZVOUS", &self.rendezvous);
        srun.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        srun
    }

    /// A process of this job that has all of these variables.
    fn process(&self, variables: &[&str]) -> Option<Pid> {
        self.process_of("gptrain", variables)
    }

    fn process_of(&self, program: &str, variables: &[&str]) -> Option<Pid> {
        let ours = format!("GPTRAIN_RENDEZVOUS={}", self.rendezvous);
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(Result::ok)
            .find_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let exe = fs::read_link(entry.path().join("exe")).ok()?;
                let environ = fs::read(entry.path().join("environ")).ok()?;
                let has = |what: &str| {
                    environ
                        .split(|b| *b == 0)
                        .any(|v| v.starts_with(what.as_bytes()))
                };
                let found =
                    exe.ends_with(program) && has(&ours) && variables.iter().all(|v| has(v));
                if found { Pid::from_raw(pid) } else { None }
            })
    }

    /// The process of a rank, or of a task.
    fn task(&self, rank: usize) -> Option<Pid> {
        self.process(&[&format!("SLURM_PROCID={rank}")])
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(self.task(rank).expect("the rank runs"), signal).unwrap();
    }

    fn all_ended(&self) {
        until("every rank has ended", || (0..8).all(|rank| self.task(rank).is_none()));
    }

    /// Runs it until it has ended with `happening` after some steps.
    fn during(&self, options: &[&str], happening: impl FnOnce()) -> Output {
        let child = self.srun(options).spawn().unwrap();
        until("the ranks take steps", || self.steps() >= 8 || has_ended(&child));
        assert!(self.steps() >= 8, "{:?}", child.wait_with_output());
        happening();
        child.wait_with_output().unwrap()
    }

    /// A batch script that runs it; told USR1, it has itself queued again.
    fn script(&self, tasks: &str, more: &str) -> String {
        let words = self.run_args().into_iter().map(|word| format!("'{word}'"));
        let (gptrain, words) = (env!("CARGO_BIN_EXE_gptrain"), words.collect::<Vec<_>>().join(" "));
        let place = format!("export GPTRAIN_RENDEZVOUS={}", self.rendezvous);
        let again = "trap 'scontrol requeue $SLURM_JOB_ID' USR1";
        format!("#!/bin/sh\n{place}\n{again}\nsrun {tasks} {gptrain} {words} {more} &\nwait\n")
    }

    /// Submits the script; the job's number.
    fn submit(&self, options: &[&str], script: &str) -> String {
        let path = self.lab.path("job.sh");
        fs::write(&path, script).unwrap();
        let mut sbatch = self.cluster.command("sbatch");
        sbatch
            .args(["--parsable", "--output=job.out", "--open-mode=append"])
            .args(options);
        let output = sbatch
            .arg(&path)
            .current_dir(self.lab.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    }

    /// A job that was requeued has its turn: Slurm itself would wait for two minutes. Nodes refuse a
    /// job that begins in the second in which they have ended it ("Job credential revoked").
    fn begins_again(&self, id: &str, with: &[&str]) {
        until("the job waits", || {
            let state = self
                .cluster
                .run("squeue", &["-h", "-o", "%T", "-j", id])
                .stdout;
            String::from_utf8_lossy(&state).trim() == "PENDING"
        });
        // One that waits for a lost task would end the next start's step, which has the same number.
        while let Some(old) = self.process_of("srun", &[]) {
            let _ = kill_process(old, Signal::KILL);
        }
        let again = ["update", &format!("JobId={id}"), "StartTime=now+2"];
        self.cluster.ok("scontrol", &[&again, with].concat());
    }

    fn said(&self) -> String {
        fs::read_to_string(self.lab.path("job.out")).unwrap_or_default()
    }
}

/// Messages of gptrain itself, without srun's.
fn verdict(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("gptrain: "))
        .collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0].to_string()
}

/// The quick start, a little of it.
fn eight_tasks_equal_one_rank(cluster: &Cluster, lab: &Lab) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let quickstart = fs::read_to_string(root.join("manifests/quickstart.yaml")).unwrap();
    let datasets = root.join("datasets").display().to_string();
    fs::write(lab.path("run.yaml"), quickstart.replace("../datasets", &datasets)).unwrap();
    let few = ["train.steps=6", "train.eval_interval=3", "train.eval_samples=10"];
    let exact = ["precision=f32", "batch={micro: 2, global: 8}", "log.interval=1"];
    let small = [&few[..], &exact].concat();
    lab.run(&[&small[..], &["log.folder=runs/one"]].concat())
        .expect(0, &[]);
    let output = Job::new(cluster, lab, "runs/a", &[&small, &GRID])
        .srun(&[])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("8 ranks (processes"), "{out}");
    assert!(out.contains("n4: 6 TP0 PP1 DP1 · 7 TP1 PP1 DP1"), "{out}");
    let (ours, one) = (lab.losses("runs/a"), lab.losses("runs/one"));
    assert_eq!((ours.len(), one.len()), (6, 6));
    for (a, b) in ours.iter().zip(&one) {
        let (a, b) = (a.map(f64::from_bits), b.map(f64::from_bits));
        assert!((a[1] - b[1]).abs() <= 2e-6 * b[1], "{a:?} and {b:?}");
    }
}

/// Two nodes of two stand-in GPUs: each task takes that of its number on the node.
fn tasks_with_gpus_equal_one_rank(cluster: &Cluster, lab: &Lab) {
    let few = ["train.steps=4", "train.eval_interval=0"];
    lab.run(&[&few[..], &["log.folder=runs/one"]].concat())
        .expect(0, &[]);
    let grid = ["train.device=cuda", "topology.tensor=2", "topology.data=2", "topology.zero=1"];
    let job = Job::new(cluster, lab, "runs/gpus", &[&few, &grid]);
    let mut srun = job.srun_as(&["-N", "2", "-n", "4", "--ntasks-per-node=2"]);
    srun.envs(variables())
        .env("TMPDIR", lab.path(""))
        .env("SOFTGPU_DEVICES", "2");
    let output = srun.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("2 TP0 PP0 DP1 GPU 0 · 3 TP1 PP0 DP1 GPU 1"), "{out}");
    let (ours, one) = (lab.losses("runs/gpus"), lab.losses("runs/one"));
    assert_eq!((ours.len(), one.len()), (4, 4));
    for (a, b) in ours.iter().zip(&one) {
        let (a, b) = (a.map(f64::from_bits), b.map(f64::from_bits));
        assert!((a[1] - b[1]).abs() <= 1e-5 * b[1], "{a:?} and {b:?}");
    }
}

/// `srun gptrain bench` over four nodes: the node whose two ranks send slowly is named and left out.
/// A busy machine can slow other links too, so only that node must be named: which partners are not
/// named is a matter of figures, tested in `bench::outliers`.
fn bench_names_the_node_that_sends_slowly(cluster: &Cluster) {
    const SLOW: usize = 2;
    let lab = Lab::new();
    let grid = "--set 'topology={tensor: 2, data: 4}' --set batch.global=8";
    let bench = |limit: &str, tolerance: f64| {
        let script = format!(
            "{limit} exec {} bench run.yaml --quick --json --tolerance={tolerance} {grid}",
            env!("CARGO_BIN_EXE_gptrain")
        );
        let mut srun = cluster.command("srun");
        srun.args(["-N", "4", "-n", "8", "--ntasks-per-node=2", "sh", "-c", &script]);
        srun.current_dir(lab.path(""));
        srun.env("GPTRAIN_RENDEZVOUS", format!("127.0.0.1:{}", free_port()));
        let output = srun.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let found = Measured::read(&text, "stdout");
        let found = found
            .unwrap_or_else(|problems| panic!("{problems}: {output:?}", output = output.stderr));
        (output.status.code(), found)
    };
    let (code, found) = bench("", 0.99);
    assert!([Some(0), Some(5)].contains(&code), "{code:?}");
    assert_eq!((found.ranks.len(), &*found.units, found.pairs.len()), (8, "nodes", 6));
    let node = |rank: usize| &*found.ranks[rank].node;
    assert_eq!([node(0), node(1), node(2), node(7)], ["n1", "n1", "n2", "n4"]);
    let limit = format!("if [ $SLURM_NODEID = {SLOW} ]; then export {SEND_LIMIT}=3e5; fi;");
    let (code, found) = bench(&limit, 0.8);
    let named = found
        .slow
        .iter()
        .any(|slow| slow.what == "node" && slow.who == ["n3"]);
    let texts: Vec<_> = found.slow.iter().map(|slow| &slow.text).collect();
    assert!(code == Some(5) && named, "{code:?}: {texts:?}");
    assert!(sick_nodes::hosts_to_exclude(&lab.path("runs/a"), false).contains(&"n3".to_string()));
}

/// Two tasks on each of two nodes.
fn the_tasks_of_a_node_are_a_shard_group(cluster: &Cluster) {
    let lab = Lab::new();
    let levels = ["topology={data: 4, zero: 3, shard: node, states: shard}", "batch.micro=1"];
    let number = ["topology.shard=2", "log.folder=runs/number"];
    lab.run(&[&levels[..], &number].concat()).well();
    let job = Job::new(cluster, &lab, "runs/a", &[&levels]);
    let tasks = ["-N", "2", "-n", "4", "--ntasks-per-node=2"];
    let output = job.srun_as(&tasks).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("in 2 shard groups of 2, each with all states"), "{out}");
    assert!(out.contains("n2: 2 TP0 PP0 DP2 · 3 TP0 PP0 DP3"), "{out}");
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/number"));
}

/// Three on one node, one on the other.
fn as_many_tasks_as_fit_on_each_node(cluster: &Cluster) {
    let lab = Lab::new();
    let job = Job::new(
        cluster,
        &lab,
        "runs/a",
        &[&["topology.data=4", "batch.global=8", "train.steps=4"]],
    );
    fs::write(lab.path("hosts"), "n1\nn1\nn1\nn2\n").unwrap();
    let mut uneven = job.srun_as(&["-n", "4", "--distribution=arbitrary"]);
    let output = uneven
        .env("SLURM_HOSTFILE", lab.path("hosts"))
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(out.contains("n1: 0 TP0 PP0 DP0 · 1 TP0 PP0 DP1 · 2 TP0 PP0 DP2"), "{out}");
    assert!(out.contains("n2: 3 TP0 PP0 DP3"), "{out}");
    assert_eq!(job.steps(), 4);
}

/// Slurm leaves the other tasks of a step alone.
fn a_killed_task_ends_all(cluster: &Cluster) {
    let lab = Lab::new();
    let job = Job::new(cluster, &lab, "runs/a", &[&GRID, &LONG]);
    let output = job.during(&[], || job.signal(5, Signal::KILL));
    let line = verdict(&output);
    assert!(line.contains("rank 5 (node n3, TP1 PP1 DP0) died"), "{line}");
    let noted = sick_nodes::read(&lab.path("runs/a")).unwrap();
    let noted: Vec<_> = noted
        .iter()
        .map(|node| (&*node.host, node.reason, node.times))
        .collect();
    assert_eq!(noted, [("n3", Reason::Failed, 1)]);
    assert_ne!(output.status.code(), Some(0));
    job.all_ended();
}

/// Restarts in the job, with the README's flag: the task remains, its rank is a new process.
fn a_killed_rank_begins_anew(cluster: &Cluster) {
    let lab = Lab::new();
    let sets = ["topology.data=4", "batch.global=8", "train.steps=80", "train.eval_interval=0"];
    lab.run(&[&sets[..], &["log.folder=runs/whole"]].concat())
        .well();
    let job = Job::new(cluster, &lab, "runs/a", &[&sets, &["restart.max=3"]]);
    let mut tasks = job.srun_as(&["-N", "4", "-n", "4", "--kill-on-bad-exit=0"]);
    let child = tasks.env(STEP_DELAY, "0.03").spawn().unwrap();
    lab.wait_for_steps("runs/a", 12);
    let rank = job
        .process(&["SLURM_PROCID=2", Place::VARIABLE])
        .expect("a supervisor started it");
    kill_process(rank, Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let events = events::read(&lab.path("runs/a")).unwrap();
    let restarts: Vec<_> = events
        .iter()
        .filter(|event| event.kind == Kind::Restart)
        .collect();
    assert_eq!(restarts.len(), 1, "{events:?}");
    assert!(
        restarts[0]
            .text
            .contains("restart 1 (1 of 3): from the checkpoint"),
        "{restarts:?}"
    );
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
}

/// Slurm does not notice a stopped task, but with `--kill-on-bad-exit` ends it with the others.
fn a_stopped_task_is_named(cluster: &Cluster) {
    at_any_load(Duration::from_secs(5), |limit| {
        let lab = Lab::new();
        let limit = format!("comm.timeout_s={}", limit.as_secs());
        let job = Job::new(cluster, &lab, "runs/a", &[&GRID, &LONG, &[&limit]]);
        let output = job.during(&["--kill-on-bad-exit=1"], || job.signal(2, Signal::STOP));
        let line = verdict(&output);
        assert!(line.contains("rank 2 (node n2, TP0 PP0 DP1)"), "{line}");
        job.all_ended();
    });
}

/// `scontrol suspend` stops every process of a job, here for longer than ranks wait for each other.
#[test]
fn a_job_that_slurm_suspends_continues() {
    let Some(cluster) = Cluster::start(4) else { return };
    at_any_load(Duration::from_secs(5), |limit| suspended_for(&cluster, 2 * limit, limit));
}

fn suspended_for(cluster: &Cluster, time: Duration, limit: Duration) {
    let lab = Lab::new();
    let limit = format!("comm.timeout_s={}", limit.as_secs());
    let job = Job::new(cluster, &lab, "runs/a", &[&GRID, &LONG, &[&limit]]);
    job.during(&["--job-name=suspended"], || {
        let listed = cluster
            .run("squeue", &["-h", "--name=suspended", "-o", "%i"])
            .stdout;
        let id = String::from_utf8(listed).unwrap().trim().to_string();
        cluster.ok("scontrol", &["suspend", &id]);
        std::thread::sleep(time);
        cluster.ok("scontrol", &["resume", &id]);
        let steps = job.steps();
        until("the ranks continue, or have ended", || {
            job.steps() >= steps + 4 || job.task(0).is_none()
        });
        cluster.ok("scancel", &["--name=suspended"]);
        assert!(job.steps() >= steps + 4, "the ranks have ended");
    });
    job.all_ended();
    assert!(sick_nodes::read(&lab.path("runs/a")).unwrap().is_empty());
}

/// A node's tasks do not need its slurmd; when they die too, the others end.
fn a_dead_daemon_ends_nobody_and_a_dead_node_is_named(cluster: &Cluster) {
    let lab = Lab::new();
    let job = Job::new(cluster, &lab, "runs/a", &[&GRID, &LONG]);
    let output = job.during(&[], || {
        cluster.kill_daemon("n4");
        let steps = job.steps();
        until("the ranks continue", || job.steps() >= steps + 4);
        // Both are found first: the other one ends by itself soon after the first died.
        let both = [6, 7].map(|rank| job.task(rank).expect("the rank runs"));
        for rank in both {
            let _ = kill_process(rank, Signal::KILL);
        }
    });
    let line = verdict(&output);
    assert!(line.contains("(node n4, TP") && line.contains(" died"), "{line}");
    job.all_ended();
}

/// Reference run of the two tests below.
const RUN: [&str; 4] =
    ["train.steps=150", "train.eval_interval=50", "log.interval=50", "checkpoint.interval=40"];

fn scancel_saves_and_the_next_job_goes_on(cluster: &Cluster, lab: &Lab) {
    let whole = Job::new(cluster, lab, "runs/whole", &[&GRID, &RUN]);
    assert!(whole.srun(&[]).output().unwrap().status.success());
    let job = Job::new(cluster, lab, "runs/cancelled", &[&GRID, &RUN]);
    job.during(&["--job-name=cancelled"], || cluster.ok("scancel", &["--name=cancelled"]));
    job.all_ended();
    let saved = job.steps();
    assert!(saved < 150, "it was cancelled before its end");
    assert!(
        lab.path(&format!("runs/cancelled/checkpoints/step-{saved:08}"))
            .exists()
    );
    assert!(job.srun(&[]).output().unwrap().status.success());
    assert_eq!(lab.losses("runs/cancelled"), lab.losses("runs/whole"));
}

fn a_requeued_job_resumes(cluster: &Cluster, lab: &Lab) {
    let job = Job::new(cluster, lab, "runs/requeued", &[&GRID, &RUN]);
    let tasks = "-N 4 -n 8 --ntasks-per-node=2";
    let id = job.submit(&["--requeue", "-N4", "-n8"], &job.script(tasks, ""));
    until("the job takes steps", || job.steps() >= 8);
    cluster.ok("scancel", &["--batch", "--signal=USR1", &id]);
    job.all_ended();
    let saved = job.steps();
    assert!(saved < 150, "it was requeued before its end");
    job.begins_again(&id, &[]);
    until("it starts again", || job.said().contains("resuming from"));
    until("it is complete", || job.said().contains("complete: runs/requeued"));
    assert!(job.said().contains(&format!("(step {saved}, ")), "{}", job.said());
    assert_eq!(lab.losses("runs/requeued"), lab.losses("runs/whole"));
}
