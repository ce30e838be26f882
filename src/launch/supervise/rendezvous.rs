//! Rendezvous of a job's tasks after a failure: files in the run's folder, which all nodes see. No
//! server is involved that could be the one that died.
//!
//! ```text
//! restarts/JOB/here-3          task 3 has started, and has not ended
//!              made-3          outermost missing folder that task 3 created for the run
//!              epoch-1/task-3  task 3 has joined the rendezvous, and how its rank ended
//!                      plan    rank of each task, and the address of rank 0
//!              end             the job is over, with this exit code
//! ```
//! The first task that joined decides, when all have joined or the time limit has passed. If
//! several decide, the first plan counts (a hard link that fails if there is one). The epoch is
//! part of the name by which its ranks authenticate each other (`comm::Place`), so ranks of an
//! older epoch are rejected. The last task that ends removes all files.

use super::super::run_folder::{self, RESTARTS, job_folder};
use super::plan::{Arrival, EpochPlan};
use anyhow::{Context, Result};
use base::Moment;
use base::output::{self, Existing};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Poll intervals of a task in the rendezvous, and of one whose rank is running. They grow with
/// every thousand tasks.
const POLL: Duration = Duration::from_millis(100);
const POLL_RUNNING: Duration = Duration::from_secs(1);
const TASKS: u32 = 1000;

/// Files through which the tasks of a job agree on the next epoch.
pub struct Rendezvous {
    run: PathBuf,
    folder: PathBuf,
    pub task: usize,
    pub tasks: usize,
}

impl Rendezvous {
    /// Opens the files of this start of this job. Task 0 removes those of an older start with the
    /// same name.
    pub fn open(run: &Path, job: &str, task: usize, tasks: usize) -> Result<Rendezvous> {
        let folder = job_folder(run, RESTARTS, job);
        let created = run_folder::outermost_missing(run);
        if task == 0 && folder.join("here-0").exists() {
            // Renamed first, because other tasks may be writing there already.
            let old = folder.with_extension(format!("old-{}", std::process::id()));
            if fs::rename(&folder, &old).is_ok() {
                let _ = fs::remove_dir_all(&old); // a remaining file has another name
            }
        }
        let rendezvous = Rendezvous { run: run.to_path_buf(), folder, task, tasks };
        rendezvous.write(&rendezvous.alive_file(), &())?;
        if let Some(created) = created {
            rendezvous.write(&rendezvous.created_file(), &created)?;
        }
        Ok(rendezvous)
    }

    /// Heartbeat: recreates the task's file, which task 0 may have removed with those of an older
    /// start.
    pub fn heartbeat(&self) {
        if !self.alive_file().exists() {
            let _ = self.write(&self.alive_file(), &()); // retried at the next poll
        }
    }

    /// Ends the task. The last one removes all files of the rendezvous, and a folder created for a
    /// run that has not begun.
    pub fn end_task(&self) {
        let _ = fs::remove_file(self.alive_file());
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut others_live = false;
        let mut created = Vec::<PathBuf>::new();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            others_live |= name.starts_with("here-");
            created.extend(name.strip_prefix("made-").and_then(|_| read(&entry.path())));
        }
        if others_live {
            return;
        }
        // Files that cannot be removed are harmless.
        let _ = fs::remove_dir_all(&self.folder);
        let _ = self.folder.parent().map(fs::remove_dir); // unless other jobs have some
        if let Some(outermost) = created
            .into_iter()
            .min_by_key(|path| path.as_os_str().len())
        {
            run_folder::remove_unused(&self.run, &outermost);
        }
    }

    /// File per task, because two tasks cannot write the same one.
    fn created_file(&self) -> PathBuf {
        self.folder.join(format!("made-{}", self.task))
    }

    fn alive_file(&self) -> PathBuf {
        self.folder.join(format!("here-{}", self.task))
    }

    fn epoch_folder(&self, epoch: u64) -> PathBuf {
        self.folder.join(format!("epoch-{epoch}"))
    }

    /// Poll interval while the rank runs.
    pub fn poll_interval(&self) -> Duration {
        self.scale_interval(POLL_RUNNING)
    }

    fn scale_interval(&self, interval: Duration) -> Duration {
        interval * (1 + self.tasks as u32 / TASKS)
    }

    /// Whether tasks have joined this epoch's rendezvous.
    pub fn has_begun(&self, epoch: u64) -> bool {
        self.is_new(&self.epoch_folder(epoch))
    }

    /// Exit code of the job, if it is over.
    pub fn job_exit_code(&self) -> Option<u8> {
        let path = self.folder.join("end");
        self.is_new(&path).then(|| read(&path)).flatten()
    }

    pub fn end_job(&self, code: u8) {
        // If this fails, the other tasks wait until their time limit, and end.
        let _ = self.write(&self.folder.join("end"), &code);
    }

    /// Whether a file is from this start, according to the file system's clock.
    fn is_new(&self, path: &Path) -> bool {
        let modified = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
        let started = modified(&self.alive_file());
        modified(path).is_some_and(|time| started.is_none_or(|started| time >= started))
    }

    /// Joins the rendezvous of an epoch and returns the agreed plan. If this task decides, it calls
    /// `decide` with the arrivals, sorted by task. None if the job ends meanwhile.
    pub fn join(
        &self,
        epoch: u64,
        mine: &Arrival,
        expected: &[usize],
        wait: Duration,
        decide: impl Fn(&[Arrival]) -> EpochPlan,
    ) -> Result<Option<EpochPlan>> {
        let folder = self.epoch_folder(epoch);
        let own = folder.join(format!("task-{}", self.task));
        let plan = folder.join("plan");
        self.write(&own, mine)?;
        let joined = Moment::now();
        loop {
            if let Some(plan) = read(&plan) {
                return Ok(Some(plan));
            }
            if self.job_exit_code().is_some() {
                return Ok(None);
            }
            let arrivals = arrivals(&folder);
            let before_me = arrivals
                .iter()
                .filter(|other| other.task < self.task)
                .count() as u32;
            let complete = expected
                .iter()
                .all(|task| arrivals.iter().any(|other| other.task == *task));
            if complete && before_me == 0 || joined.waited() >= wait * (1 + before_me) {
                self.propose(&plan, &decide(&arrivals))?;
                continue;
            }
            std::thread::sleep(self.scale_interval(POLL));
            // Writing from this node makes a network file system read the folder again.
            self.write(&own, mine)?;
        }
    }

    /// Proposes a plan; the first of several counts.
    fn propose(&self, path: &Path, plan: &EpochPlan) -> Result<()> {
        let new = path.with_extension(format!("of-{}", self.task));
        self.write(&new, plan)?;
        output::claim(&new, path).map(drop)
    }

    /// Writes a file, and retries if task 0, which has just started, removes the folder meanwhile.
    fn write(&self, path: &Path, value: &impl Serialize) -> Result<()> {
        let folder = path.parent().expect("in a folder");
        let text = serde_json::to_vec(value)?;
        let write = || {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            output::write(path, Existing::Replaced, &text)
        };
        write().or_else(|_| write()).or_else(|_| write())
    }
}

/// Tasks that joined a rendezvous, sorted.
fn arrivals(folder: &Path) -> Vec<Arrival> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let tasks = entries.filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| {
            name.strip_prefix("task-")
                .is_some_and(|n| n.parse::<u64>().is_ok())
        })
    });
    let mut arrivals: Vec<Arrival> = tasks.filter_map(|entry| read(&entry.path())).collect();
    arrivals.sort_by_key(|arrival| arrival.task);
    arrivals
}

/// Reads a file; None if it does not exist or is incomplete.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(task: usize) -> Arrival {
        Arrival { task, host: "h".into(), code: Some(3) }
    }

    fn plan(by: usize, members: Vec<usize>) -> EpochPlan {
        EpochPlan { members, decided_by: by, ..EpochPlan::default() }
    }

    #[test]
    fn tasks_agree_on_one_plan_of_those_that_came() {
        let folder = tempfile::tempdir().unwrap();
        let tasks: Vec<Rendezvous> = (0..4)
            .map(|task| Rendezvous::open(folder.path(), "job 7", task, 4).unwrap())
            .collect();
        let join = |task: usize, wait: f64| {
            let tasks = &tasks;
            let wait = Duration::from_secs_f64(wait);
            let decide =
                move |all: &[Arrival]| plan(task, all.iter().map(|one| one.task).collect());
            move || {
                tasks[task]
                    .join(1, &arrival(task), &[0, 1, 2], wait, decide)
                    .unwrap()
                    .unwrap()
            }
        };
        assert!(!tasks[3].has_begun(1));
        let plans: Vec<EpochPlan> = std::thread::scope(|scope| {
            let came: Vec<_> = (0..3).map(|task| scope.spawn(join(task, 1e6))).collect();
            came.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(plans.iter().all(|one| *one == plan(0, vec![0, 1, 2])), "{plans:?}");
        assert!(tasks[3].has_begun(1));
        assert_eq!(join(3, 0.0)(), plans[0], "who comes late learns what was decided");
    }

    #[test]
    fn a_task_that_does_not_join_is_left_out_after_the_time_limit() {
        let folder = tempfile::tempdir().unwrap();
        let task = Rendezvous::open(folder.path(), "job", 2, 3).unwrap();
        let decide = |all: &[Arrival]| plan(2, all.iter().map(|one| one.task).collect());
        let wait = Duration::from_millis(300);
        let met = task.join(1, &arrival(2), &[0, 1, 2], wait, decide).unwrap();
        assert_eq!(met, Some(plan(2, vec![2])));
        task.end_job(2);
        assert_eq!(task.join(2, &arrival(2), &[0], wait, decide).unwrap(), None);
        assert_eq!(task.job_exit_code(), Some(2));
    }

    #[test]
    fn files_of_an_older_start_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let [_, old] = [0, 1].map(|task| Rendezvous::open(folder.path(), "job", task, 2).unwrap());
        old.join(1, &arrival(1), &[1], Duration::ZERO, |_| plan(1, vec![1]))
            .unwrap();
        old.end_job(3);
        std::thread::sleep(Duration::from_millis(20)); // the file system's clock has ticks
        let new = Rendezvous::open(folder.path(), "job", 1, 2).unwrap();
        assert_eq!((new.has_begun(1), new.job_exit_code()), (false, None));
        Rendezvous::open(folder.path(), "job", 0, 2).unwrap();
        assert!(!folder.path().join("restarts/job/end").exists());
    }

    #[test]
    fn the_last_task_removes_all_files_but_those_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("runs/a");
        for begun in [false, true] {
            let tasks = [0, 1].map(|task| Rendezvous::open(&run, "job", task, 2).unwrap());
            fs::write(run.join("run.lock"), "").unwrap();
            if begun {
                fs::write(run.join("starts.json"), "{}").unwrap();
            }
            tasks[0].end_job(2);
            tasks[0].end_task();
            assert_eq!(tasks[1].job_exit_code(), Some(2), "the other task is still to learn of it");
            tasks[1].end_task();
            assert_eq!((run.exists(), folder.path().join("runs").exists()), (begun, begun));
        }
        assert!(!run.join("restarts").exists());
    }
}
