//! Slurm job of a run, through Slurm's own commands: its end, and its return to the queue. Written for
//! 22.05 and later. An error here never ends a run.

use anyhow::{Context, bail, ensure};
use base::{Deadline, unix_time};
use serde::Serialize;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of a Slurm command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Name of the job's batch script in the run's folder, which is submitted again.
const SCRIPT: &str = "job.sh";

/// Time limit of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTime {
    /// Remaining time.
    pub left: Duration,
    /// Whole time, if it is known.
    pub limit: Option<Duration>,
}

impl JobTime {
    /// Reads squeue's `%L %l`; None without a limit.
    fn read(text: &str) -> anyhow::Result<Option<JobTime>> {
        let mut words = text.split_whitespace();
        let left = parse_time(words.next().unwrap_or_default())?;
        let limit = words
            .next()
            .and_then(|limit| parse_time(limit).ok().flatten());
        Ok(left.map(|left| JobTime { left, limit }))
    }

    /// Reads the variables of the step; None without the job's end.
    fn from_environment() -> Option<JobTime> {
        let read = |name| Some(Duration::from_secs(std::env::var(name).ok()?.parse().ok()?));
        let end: Duration = read("SLURM_JOB_END_TIME")?;
        let limit = read("SLURM_JOB_START_TIME").map(|start| end.saturating_sub(start));
        Some(JobTime { left: end.saturating_sub(unix_time()), limit })
    }
}

/// Name of a run as a job's name.
pub fn job_name(run: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    run.chars().map(plain).collect()
}

/// Job of this user that is in Slurm's queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuedJob {
    /// "1234", or of an array "1234_[5-9]".
    pub id: String,
    /// State in Slurm's words: PENDING, RUNNING, COMPLETING, …
    pub state: String,
    /// Reason why it waits.
    pub reason: String,
}

/// Jobs of a run: those with its name, and its last job.
pub fn queued_jobs(run: &str, last: Option<&str>) -> anyhow::Result<Vec<QueuedJob>> {
    let answer = run_command(Command::new("squeue").args(["-h", "--me", "-o", "%i|%T|%r|%j"]))?;
    Ok(parse_queue(&answer, &job_name(run), last))
}

/// Reads the jobs with this name or number from squeue's `%i|%T|%r|%j`.
fn parse_queue(answer: &str, name: &str, last: Option<&str>) -> Vec<QueuedJob> {
    let mut jobs = Vec::new();
    for line in answer.lines() {
        let fields: Vec<&str> = line.splitn(4, '|').collect();
        let [id, state, reason, job] = fields[..] else { continue };
        if job == name || Some(id) == last {
            let [id, state, reason] = [id, state, reason].map(str::to_string);
            jobs.push(QueuedJob { id, state, reason });
        }
    }
    jobs
}

#[derive(Clone, Debug)]
pub struct Job {
    id: String,
}

impl Job {
    /// Job of this process, if it has one.
    pub fn from_environment() -> Option<Job> {
        let id = std::env::var("SLURM_JOB_ID")
            .ok()
            .filter(|id| !id.is_empty())?;
        Some(Job { id })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Time limit of the job; None without one. squeue also reports a limit that was changed. If it
    /// fails, uses SLURM_JOB_START_TIME and SLURM_JOB_END_TIME (absent in 22.05), which have the limit
    /// at the job's start.
    pub fn time(&self) -> anyhow::Result<Option<JobTime>> {
        let answer =
            run_command(Command::new("squeue").args(["-h", "-o", "%L %l", "-j", &self.id]));
        match answer.and_then(|text| JobTime::read(&text)) {
            Ok(time) => Ok(time),
            Err(error) => Ok(Some(JobTime::from_environment().ok_or(error)?)),
        }
    }

    /// Puts the job back into the queue, under its number. Slurm ends its running processes: SIGTERM
    /// may arrive before the command's answer.
    pub fn requeue(&self) -> anyhow::Result<()> {
        run_despite_sigterm(&["scontrol", "requeue", &self.id])
            .context("the cluster may forbid it: slurm.on_end: resubmit needs no permission")?;
        Ok(())
    }

    /// Excludes nodes (as from `exclusion_list`) from the job, which is queued again. A running job's list
    /// cannot be changed: "Job is no longer pending execution" (22.05).
    pub fn exclude(&self, nodes: &str) -> anyhow::Result<()> {
        let job = format!("JobId={}", self.id);
        let nodes = format!("ExcNodeList={nodes}");
        run_despite_sigterm(&["scontrol", "update", &job, &nodes]).map(drop)
    }

    /// Nodes to exclude when the job is queued again: its own list and these. Fails if the cluster has
    /// too few others: Slurm would accept such a list, and let the job wait for ever (reason
    /// BadConstraints).
    pub fn exclusion_list(&self, exclude: &[String]) -> anyhow::Result<String> {
        let description = self.description()?;
        let own = field(&description, "ExcNodeList").unwrap_or_default();
        let nodes = merge_lists(own, exclude);
        let mut test = as_user("sbatch");
        test.args(["--test-only", "--wrap=:"])
            .args(repeated_options(&description));
        run_command(test.arg(format!("--exclude={nodes}")))?;
        Ok(nodes)
    }

    fn description(&self) -> anyhow::Result<String> {
        run_command(Command::new("scontrol").args(["show", "job", "-o", &self.id]))
    }

    /// Submits the job's batch script again, to start when this job has ended, with the same
    /// options (`repeated_options`), but not on the nodes to `exclude`, as from `exclusion_list`.
    /// Returns the new job's number.
    pub fn resubmit(&self, folder: &Path, exclude: Option<&str>) -> anyhow::Result<String> {
        let script = folder.join(SCRIPT);
        let _ = std::fs::remove_file(&script); // scontrol refuses to write over one
        let write = ["write", "batch_script", &self.id];
        run_command(Command::new("scontrol").args(write).arg(&script))
            .context("only a job with a batch script can be submitted again")?;
        ensure!(script.exists(), "scontrol wrote no {}", script.display());
        let description = self.description()?;
        let mut sbatch = as_user("sbatch");
        sbatch.arg("--parsable");
        sbatch.arg(format!("--dependency=afterany:{}", self.id));
        sbatch.arg("--open-mode=append");
        sbatch.args(repeated_options(&description));
        let name = std::env::var("SLURM_JOB_NAME").ok();
        sbatch.args(name.map(|name| format!("--job-name={name}")));
        sbatch.args(exclude.map(|nodes| format!("--exclude={nodes}")));
        let answer = run_command(sbatch.arg(&script))?;
        let (number, _cluster) = answer.trim().split_once(';').unwrap_or((answer.trim(), ""));
        Ok(number.to_string())
    }
}

/// Command that passes its environment to a job, without the variables of this step's rank.
fn as_user(program: &str) -> Command {
    let mut command = Command::new(program);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    command.env_remove(comm::Place::VARIABLE);
    for name in names.filter(|name| name.starts_with("SLURM_") && name != "SLURM_CONF") {
        command.env_remove(name);
    }
    command
}

/// Runs a command that continues when Slurm ends this step, which it does by SIGTERM and, `KillWait`
/// later, by SIGKILL. Returns the output.
fn run_despite_sigterm(words: &[&str]) -> anyhow::Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' TERM; exec \"$@\"", "sh"]);
    run_as(words[0], shell.args(words))
}

/// Field of `scontrol show job -o`, if it has a value.
fn field<'a>(description: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = description
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(field, _)| *field == name)?;
    (!matches!(value, "" | "0" | "(null)" | "N/A")).then_some(value)
}

/// Appends nodes to a list in Slurm's notation, "n[1-3],n7".
fn merge_lists(own: &str, more: &[String]) -> String {
    let mut nodes: Vec<&str> = own.split(',').filter(|node| !node.is_empty()).collect();
    for node in more {
        if !own.split(',').any(|listed| listed == node) {
            nodes.push(node);
        }
    }
    nodes.join(",")
}

/// Options of sbatch that repeat the options of a job: options on sbatch's command line are not in the
/// script. `description` is the output of `scontrol show job -o`.
fn repeated_options(description: &str) -> Vec<String> {
    const OPTIONS: [(&str, &str); 11] = [
        ("NumNodes", "nodes"),
        ("NumTasks", "ntasks"),
        ("NtasksPerN:B:S:C", "ntasks-per-node"),
        ("CPUs/Task", "cpus-per-task"),
        ("Partition", "partition"),
        ("Account", "account"),
        ("QOS", "qos"),
        ("TimeLimit", "time"),
        ("WorkDir", "chdir"),
        ("StdOut", "output"),
        ("StdErr", "error"),
    ];
    let mut options = Vec::new();
    for (name, option) in OPTIONS {
        let Some(mut value) = field(description, name) else { continue };
        if name.contains(':') {
            // Tasks per node, board, socket and core.
            value = value.split(':').next().unwrap_or(value);
        }
        if value != "0" {
            options.push(format!("--{option}={value}"));
        }
    }
    options
}

/// Runs a command and returns its output. Fails with its error output if it fails or takes too long.
fn run_command(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    run_as(&name, command)
}

fn run_as(name: &str, command: &mut Command) -> anyhow::Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let end = Deadline::after(TIMEOUT);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if end.has_passed() {
            child.kill()?;
            child.wait()?;
            bail!("{name} does not answer");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Short answers, which fit into the pipes.
    let mut output = String::new();
    let mut errors = String::new();
    let stdout = child.stdout.as_mut().context("piped")?;
    stdout.read_to_string(&mut output)?;
    let stderr = child.stderr.as_mut().context("piped")?;
    stderr.read_to_string(&mut errors)?;
    ensure!(status.success(), "{name}: {}", errors.trim());
    Ok(output)
}

/// Time as squeue prints it: "1-02:03:04", "02:03:04", "03:04", or a word.
fn parse_time(text: &str) -> anyhow::Result<Option<Duration>> {
    if matches!(text, "UNLIMITED" | "NOT_SET") {
        return Ok(None);
    }
    if text == "INVALID" {
        return Ok(Some(Duration::ZERO)); // it is over its limit
    }
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Result<Vec<u64>, _> = std::iter::once(days)
        .chain(clock.split(':'))
        .map(str::parse)
        .collect();
    let seconds = match parts.as_deref() {
        Ok([days, hours, minutes, seconds]) => ((days * 24 + hours) * 60 + minutes) * 60 + seconds,
        Ok([_, minutes, seconds]) => minutes * 60 + seconds,
        _ => bail!("squeue gives the time left as {text:?}"),
    };
    Ok(Some(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_read_as_squeue_prints_it() {
        let left = |text| JobTime::read(text).unwrap().map(|time| time.left.as_secs());
        assert_eq!(left("0:07\n"), Some(7));
        assert_eq!(left("59:03"), Some(59 * 60 + 3));
        assert_eq!(left("23:59:59"), Some(86_399));
        assert_eq!(left("2-00:00:01"), Some(2 * 86_400 + 1));
        assert_eq!((left("UNLIMITED"), left("NOT_SET"), left("INVALID")), (None, None, Some(0)));
        for wrong in ["", "N/A", "7", "1-2", "1:2:3:4", "a:b"] {
            assert!(JobTime::read(wrong).is_err(), "{wrong:?}");
        }
        let limit = |text| {
            JobTime::read(text)
                .unwrap()
                .unwrap()
                .limit
                .map(|limit| limit.as_secs())
        };
        assert_eq!(
            (limit("0:07 1:00\n"), limit("7:00 UNLIMITED"), limit("7:00")),
            (Some(60), None, None)
        );
    }

    #[test]
    fn jobs_of_a_run_have_its_name_or_number() {
        // Output of Slurm 22.05.
        let answer = "31|RUNNING|None|tr1-13B\n32_[2-9%1]|PENDING|JobArrayTaskLimit|other\n\
                      33|PENDING|Dependency|tr1-13B\n34|PENDING|Priority|a|b\n";
        let ids = |name, last| {
            let jobs = parse_queue(answer, name, last);
            jobs.into_iter().map(|job| job.id).collect::<Vec<_>>()
        };
        assert_eq!(ids("tr1-13B", None), ["31", "33"]);
        assert_eq!(ids("none", Some("34")), ["34"]);
        assert_eq!(ids("a|b", None), ["34"]);
        assert_eq!(job_name("my run/1"), "my_run_1");
    }

    #[test]
    fn what_sbatch_was_given_is_repeated() {
        // Output of Slurm 22.05.
        let about = "JobId=1 JobName=job.sh Account=(null) QOS=(null) TimeLimit=00:01:00 \
                     TimeMin=N/A Partition=test NumNodes=2-2 NumCPUs=2 NumTasks=2 CPUs/Task=1 \
                     NtasksPerN:B:S:C=0:0:*:* WorkDir=/w StdErr=/w/job.out StdOut=/w/job.out Power=";
        let expected = "--nodes=2-2 --ntasks=2 --cpus-per-task=1 --partition=test \
                        --time=00:01:00 --chdir=/w --output=/w/job.out --error=/w/job.out";
        assert_eq!(repeated_options(about).join(" "), expected);
        let per_node = "NtasksPerN:B:S:C=8:0:*:*";
        assert_eq!(repeated_options(per_node), ["--ntasks-per-node=8"]);
    }

    #[test]
    fn sick_nodes_are_added_to_those_that_the_job_excludes() {
        let sick = ["n2", "n9"].map(str::to_string);
        let own = |about| merge_lists(field(about, "ExcNodeList").unwrap_or_default(), &sick);
        assert_eq!(own("JobId=1 ExcNodeList=(null) NodeList=n[1-2]"), "n2,n9");
        assert_eq!(own("JobId=1 ExcNodeList=n[4-6],n2"), "n[4-6],n2,n9");
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let mut failing = Command::new("sh");
        let error = run_command(failing.args(["-c", "echo no such job >&2; exit 1"])).unwrap_err();
        assert_eq!(error.to_string(), "sh: no such job");
        assert!(run_command(&mut Command::new("gptrain-no-such-program")).is_err());
        let output = run_despite_sigterm(&["sh", "-c", "kill -TERM $$; echo continues"]).unwrap();
        assert_eq!(output, "continues\n");
    }
}
