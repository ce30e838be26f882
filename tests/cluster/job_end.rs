//! A run before the end of its Slurm job, by stand-ins of Slurm's commands that write down what they
//! are asked for: it saves and leaves in time, and queues its job again, but not for ever.

use crate::common::binary::{Done, Lab, run_args};
use gptrain::launch::sick_nodes::{self, Reason};
use gptrain::train::testing::STEP_DELAY;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A run that only its job's end ends.
const LONG: [&str; 4] =
    ["train.steps=1000000", "train.eval_interval=0", "log.interval=100000", "log.folder=runs/a"];

/// A job of which squeue says this.
struct Job {
    lab: Lab,
}

impl Job {
    fn new(left: &str) -> Job {
        let job = Job { lab: Lab::new() };
        fs::create_dir(job.lab.path("bin")).unwrap();
        job.command("squeue", "[ -n \"$LEFT\" ] && echo \"$LEFT\"");
        let answer =
            "case $1 in show) echo NumNodes=4 NumTasks=32 Partition=test TimeLimit=2:00:00;;";
        let write = "write) echo '#!/bin/sh' > \"$4\";; esac";
        job.command("scontrol", &format!("echo \"scontrol $*\" >> asked; {answer} {write}"));
        job.command(
            "sbatch",
            "echo \"sbatch $*\" \"${SLURM_PROCID:-no rank}\" >> asked; . ./few; echo 8",
        );
        fs::write(job.lab.path("few"), "").unwrap();
        fs::write(job.lab.path("left"), left).unwrap();
        job
    }

    fn command(&self, name: &str, script: &str) {
        let path = self.lab.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// `gptrain run` inside of the job, to its end.
    fn run(&self, sets: &[&str]) -> Done {
        self.run_with(&[], sets)
    }

    /// The same with variables of the environment.
    fn run_with(&self, variables: &[(&str, &str)], sets: &[&str]) -> Done {
        let sets = [&LONG[..], sets].concat();
        let mut command = self.lab.command(&run_args(&sets));
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.lab.path("bin").display()));
        command.env("LEFT", fs::read_to_string(self.lab.path("left")).unwrap());
        command
            .env("SLURM_JOB_ID", "7")
            .envs(variables.iter().copied());
        Done::of(command.output().unwrap())
    }

    /// Commands received by the stand-ins.
    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.lab.path("asked")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }
}

/// The limit is beyond the margin at first: the run takes steps, and leaves when it comes near.
#[test]
fn a_run_leaves_before_its_job_ends() {
    let job = Job::new("10:02");
    let done = job.run(&["slurm.margin_s=600"]);
    let done = done.expect(0, &[]);
    assert!(done.out.contains("job 7 ends in 10 m 02 s"), "{}", done.out);
    assert!(done.out.contains("leaving (slowest step"), "{}", done.out);
    assert!(done.out.contains("stopped and saved before the job's end"), "{}", done.out);
    let taken = job.lab.metrics("runs/a").len();
    assert!(
        job.lab
            .path(&format!("runs/a/checkpoints/step-{taken:08}"))
            .exists()
    );
    assert_eq!(job.asked(), [""; 0], "slurm.on_end is leave");
}

/// Without a limit, without an answer, or if the manifest ignores it, the run continues to its end.
#[test]
fn a_run_whose_job_has_no_known_end_goes_on() {
    let cases = [
        ("UNLIMITED", &[][..]),
        ("364-23:00:00", &[]),
        ("", &[]),
        ("0:01", &["slurm.on_end=ignore"]),
    ];
    for (left, sets) in cases {
        let job = Job::new(left);
        let done = job.run(&[&["train.steps=4"][..], sets].concat());
        assert!(done.expect(0, &[]).out.contains("complete: runs/a"), "{}", done.out);
        assert!(!done.out.contains("job 7 ends in"), "{}", done.out);
    }
}

/// Complete or failed runs start nothing again; one that makes no progress does so three times.
#[test]
fn a_chain_of_jobs_comes_to_an_end() {
    let job = Job::new("0:30");
    for start in 1..=3 {
        let done = job.run(&["slurm.on_end=requeue"]);
        let done = done.expect(0, &[]);
        let refused = done.out.contains("is not queued again: 3 starts in a row");
        // A step or two may pass before squeue has answered; then it gets on.
        if job.lab.metrics("runs/a").is_empty() {
            assert_eq!(refused, start == 3, "{}", done.out);
        }
    }
    let asked = job.asked();
    assert!(asked.iter().all(|line| line == "scontrol requeue 7"), "{asked:?}");
    assert!((2..=3).contains(&asked.len()), "{asked:?}");
    let job = Job::new("10:00:00");
    job.run(&["slurm.on_end=requeue", "data.train=nothing"])
        .expect(2, &["nothing"]);
    job.run(&["slurm.on_end=requeue", "train.steps=2"])
        .expect(0, &[]);
    assert_eq!(job.asked(), [""; 0]);
}

/// A margin longer than the job counts as half of it, with a note; and a chain of starts that take
/// a step each ends.
#[test]
fn a_margin_longer_than_the_job_is_shortened_and_a_step_is_no_progress() {
    let job = Job::new("0:40 1:00");
    let done = job.run(&["slurm.margin_s=120", "slurm.on_end=requeue"]);
    let says = "slurm.margin_s (2 m 00 s) is more than half of the job's time limit (1 m 00 s), \
                and counts as 30.0 s: lower it, or raise sbatch --time";
    assert!(done.expect(0, &[]).out.contains(says), "{}", done.out);
    assert!(job.lab.metrics("runs/a").len() > 3, "it trains before the margin begins");
    assert_eq!(job.asked(), ["scontrol requeue 7"]);
    let job = Job::new("0:30");
    let mut refused = false;
    for start in 1..=3 {
        let done = job.run_with(&[(STEP_DELAY, "3")], &["slurm.on_end=requeue"]);
        let before = job.asked().len();
        refused = done
            .expect(0, &[])
            .out
            .contains("is not queued again: 3 starts in a row took");
        assert_eq!((before, refused), (start.min(2), start == 3), "{}", done.out);
    }
    assert!(refused && job.lab.metrics("runs/a").len() <= 3);
}

/// Whether the cluster has enough nodes without the sick one.
const COULD_START: &str = "sbatch --test-only --wrap=: --nodes=4 --ntasks=32 --partition=test \
                           --time=2:00:00 --exclude=n2 no rank";

/// A list of nodes goes to a job that is queued again; where the cluster has too few others, none.
#[test]
fn a_requeued_job_stays_away_from_sick_nodes() {
    for few in [false, true] {
        let job = Job::new("0:30");
        if few {
            fs::write(job.lab.path("few"), "echo too few nodes >&2; exit 1").unwrap();
        }
        let folder = job.lab.path("runs/a");
        sick_nodes::add(&folder, "n2", Reason::Slow, "135 of 400 Gb/s").unwrap();
        let done = job.run(&["slurm.on_end=requeue"]);
        let said = &done.expect(0, &[]).out;
        let mut expected = vec!["scontrol show job -o 7", COULD_START, "scontrol requeue 7"];
        if few {
            let told = "note: the job keeps its nodes, n2 too: sbatch: too few nodes";
            assert!(said.contains(told), "{said}");
        } else {
            assert!(said.contains("job 7 goes back into the queue, without n2"), "{said}");
            expected.push("scontrol update JobId=7 ExcNodeList=n2");
        }
        let status = job.lab.gptrain(&["status", "runs/a"]).out;
        let queued = if few { " ago, job 7\n" } else { " ago, job 7, without n2\n" };
        assert!(status.contains("queued again ") && status.contains(queued), "{status}");
        assert_eq!(job.asked(), expected);
    }
}

/// The job's own script, when it has ended, on as many nodes; not as one of this step's ranks.
#[test]
fn a_job_is_submitted_again() {
    let job = Job::new("0:30");
    let folder = job.lab.path("runs/a");
    fs::create_dir_all(&folder).unwrap();
    for line in ["rank 4 (node n2, TP0) died", "rank 5 (node n2, TP1) is silent"] {
        sick_nodes::add(&folder, "n2", Reason::Failed, line).unwrap();
    }
    sick_nodes::add(&folder, "n3", Reason::Failed, "rank 6 (node n3) died").unwrap();
    let nodes = job.lab.gptrain(&["nodes", "runs/a"]);
    let said = &nodes.expect(0, &[]).out;
    assert!(said.contains("n2: excluded for 3 d 0 h; seen 2 times, "), "{said}");
    assert!(said.contains("n3: seen once, "), "{said}");
    let terms = " (excluded from the second time); expires in 3 d 0 h: rank 6 (node n3) died";
    assert!(said.contains(terms), "{said}");
    let done = job.run(&["slurm.on_end=resubmit"]);
    assert!(done.out.contains(", without n2"), "{}", done.out);
    assert!(
        done.expect(0, &[])
            .out
            .contains("job 8 continues when job 7 has ended"),
        "{}",
        done.out
    );
    let script = "runs/a/job.sh";
    let expected = [
        "scontrol show job -o 7".to_string(),
        COULD_START.to_string(),
        format!("scontrol write batch_script 7 {script}"),
        "scontrol show job -o 7".to_string(),
        format!(
            "sbatch --parsable --dependency=afterany:7 --open-mode=append --nodes=4 --ntasks=32 \
             --partition=test --time=2:00:00 --exclude=n2 {script} no rank"
        ),
    ];
    assert_eq!(job.asked(), expected);
    let cleared = job.lab.gptrain(&["nodes", "runs/a", "--clear", "n2"]);
    assert_eq!(cleared.expect(0, &[]).out, "removed 1 entry\n");
    assert_eq!(sick_nodes::hosts_to_exclude(&folder, false), [""; 0]);
}
