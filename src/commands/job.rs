//! `gptrain job`: the batch script of a manifest for Slurm. Nodes, tasks, GPUs and CPUs follow from its
//! topology and hardware. The job saves, leaves and requeues itself before its time limit.

use crate::options::Overwrite;
use anyhow::{Context, Result};
use base::{Problems, number, shell_word as quoted};
use estimate::hardware;
use estimate::machine;
use launch::slurm;
use manifest::{DeviceChoice, Loaded, Manifest, OnEnd, Ranks};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Default CPUs of a task.
const CPUS: usize = 8;

#[derive(clap::Args)]
pub struct Job {
    /// Manifest, or folder of a run
    manifest: PathBuf,
    /// Change a setting of the manifest, here and in the job
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    resources: Resources,
    /// Write the script to this file instead of printing it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
}

/// Resources that a job requests from Slurm.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Resources {
    /// GPUs per node [default: those of plan.hardware; without it the ranks compute on CPUs]
    #[arg(long, value_name = "GPUS", value_parser = number::count)]
    gpus_per_node: Option<NonZeroUsize>,
    /// Nodes [default: with GPUs the fewest that hold all ranks, else chosen by Slurm]
    #[arg(long, value_parser = number::count)]
    nodes: Option<NonZeroUsize>,
    /// CPUs per rank [default: train.threads, else 8]
    #[arg(long, value_name = "CPUS", value_parser = number::count)]
    cpus_per_task: Option<NonZeroUsize>,
    /// Time limit in sbatch's format; the job requeues itself before it is reached
    #[arg(long, default_value = "24:00:00", value_parser = check_time)]
    time: String,
    #[command(flatten)]
    passed: Passed,
}

/// Options of sbatch that the script passes on as they are.
#[derive(clap::Args, Clone, Debug, Default)]
struct Passed {
    /// Partition
    #[arg(long, value_parser = check_word)]
    partition: Option<String>,
    /// Account
    #[arg(long, value_parser = check_word)]
    account: Option<String>,
    /// Quality of service
    #[arg(long, value_parser = check_word)]
    qos: Option<String>,
    /// Features that the nodes must have: v100-32g, "a100&ib"
    #[arg(long, value_name = "FEATURES", value_parser = check_word)]
    constraint: Option<String>,
    /// Reservation
    #[arg(long, value_parser = check_word)]
    reservation: Option<String>,
    /// Placement of a task's CPUs: nomultithread, compute_bound, memory_bound
    #[arg(long, value_parser = check_word)]
    hint: Option<String>,
    /// Generic resources of each node; gpu:8 in place of --gpus-per-node
    #[arg(long, value_name = "LIST", value_parser = check_word)]
    gres: Option<String>,
    /// Jobs of an array: 1-10%1 is ten, one after another
    #[arg(long, value_name = "INDEXES", value_parser = check_word)]
    array: Option<String>,
    /// Jobs to wait for: afterany:JOB
    #[arg(long, value_name = "LIST", value_parser = check_word)]
    dependency: Option<String>,
    /// Address for Slurm's mail
    #[arg(long, value_name = "ADDRESS", value_parser = check_word)]
    mail_user: Option<String>,
    /// Events that are mailed: END,FAIL,REQUEUE
    #[arg(long, value_name = "EVENTS", value_parser = check_word)]
    mail_type: Option<String>,
    /// Share no node with other jobs
    #[arg(long)]
    exclusive: bool,
    /// Any other option of sbatch: signal=USR1@300, or nice. May be repeated
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = check_option)]
    option: Vec<String>,
}

impl Passed {
    /// Options, without their dashes.
    fn list(&self) -> Vec<String> {
        let named = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("constraint", &self.constraint),
            ("reservation", &self.reservation),
            ("hint", &self.hint),
            ("gres", &self.gres),
            ("array", &self.array),
            ("dependency", &self.dependency),
            ("mail-user", &self.mail_user),
            ("mail-type", &self.mail_type),
        ];
        let mut list = Vec::new();
        for (name, value) in named {
            list.extend(value.iter().map(|value| format!("{name}={value}")));
        }
        list.extend(self.exclusive.then(|| "exclusive".to_string()));
        list.extend(self.option.iter().cloned());
        list
    }

    /// GPUs per node of --gres: gpu, gpu:8, gpu:a100:8; None without GPUs.
    fn gpus_per_node(&self) -> Option<usize> {
        let gres = self.gres.as_deref().unwrap_or_default();
        let gpus = gres
            .split(',')
            .find_map(|resource| resource.strip_prefix("gpu").filter(|rest| is_count(rest)))?;
        Some(
            gpus.rsplit(':')
                .next()
                .and_then(|count| count.parse().ok())
                .unwrap_or(1),
        )
    }
}

/// Whether the text after `gpu` is nothing, or begins a type or a count.
fn is_count(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(':')
}

/// Placement of the job's ranks, one task each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placement {
    /// Number of nodes; None if Slurm places the tasks.
    nodes: Option<usize>,
    tasks: usize,
    /// GPUs, one for each task.
    gpus: bool,
}

impl Job {
    pub fn run(self) -> Result<()> {
        let loaded = self.resources.load(&self.manifest, &self.set)?;
        let script = self.resources.script(&loaded, &self.set)?;
        match &self.output {
            Some(path) => {
                base::output::write(path, self.overwrite.existing(), script.as_bytes())?;
                base::say!("wrote {0}: sbatch {0}", path.display());
            }
            None => base::say!("{}", script.trim_end()),
        }
        Ok(())
    }
}

impl Resources {
    /// Loads the manifest. The replicas of `topology.data: auto` fill --nodes.
    fn load(&self, path: &Path, sets: &[String]) -> Result<Loaded> {
        let loaded = manifest::load_for(path, sets, Ranks::OneReplica)?;
        if !loaded.replicas_are_auto {
            return Ok(loaded);
        }
        let (Some(nodes), Some(gpus)) = (self.nodes, self.gpus_per_node(&loaded.manifest)?) else {
            return Err(Problems::one(
                "topology.data",
                "topology.data is auto, and the number of ranks is not known",
                "give --nodes, and --gpus-per-node or plan.hardware; or --set topology.data=2",
            )
            .into());
        };
        manifest::load_for(path, sets, Ranks::Number(usize::from(nodes) * gpus))
    }

    /// Script of a job that starts in the working directory, with the settings `sets` (`KEY=VALUE`).
    pub fn script(&self, loaded: &Loaded, sets: &[String]) -> Result<String> {
        let folder = std::env::current_dir().context("cannot find the working directory")?;
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let programs = program.parent().unwrap_or(&folder);
        Ok(self.write_script(loaded, sets, &folder, programs)?)
    }

    /// The script. It starts in `folder`, and finds the program in `programs`.
    fn write_script(
        &self,
        loaded: &Loaded,
        sets: &[String],
        folder: &Path,
        programs: &Path,
    ) -> Result<String, Problems> {
        let m = &loaded.manifest;
        let placement = self.placement(m)?;
        let t = &m.topology;
        let source = loaded.source.display().to_string();
        let manifest = quoted(&source);
        let sets: String = sets
            .iter()
            .map(|set| format!(" --set {}", quoted(set)))
            .collect();
        let (on_end, at_limit) = match m.slurm.on_end {
            OnEnd::Leave => {
                (" --set slurm.on_end=requeue", "the run saves, leaves and requeues the job")
            }
            _ => ("", "the run does what slurm.on_end says"),
        };
        // Supervisors outlive a rank and restart it.
        let kill = if m.restart.max > 0 {
            "--no-kill --kill-on-bad-exit=0"
        } else {
            "--kill-on-bad-exit=1"
        };
        let options: String = self
            .sbatch_options(m, placement)
            .iter()
            .map(|option| format!("#SBATCH --{option}\n"))
            .collect();
        let ranks = t.ranks();
        let tensor = t.tensor;
        let pipeline = t.pipeline;
        let data = t.data;
        let comment = source.replace(char::is_control, " ");
        Ok(format!(
            "#!/bin/sh\n\
         # Slurm job of {comment}, made by `gptrain job`. Submit it with sbatch.\n\
         # {ranks} ranks = tensor {tensor} × pipeline {pipeline} × data {data}; one task is one rank.\n\
         {options}\
         set -eu\n\
         # All nodes need these two folders at these paths.\n\
         cd {}\n\
         PATH={}:$PATH\n\
         # srun of Slurm 22.05 and later does not take it from sbatch.\n\
         export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n\n\
         gptrain manifest check {manifest}{sets}\n\
         # Ten seconds: a slow node, link or GPU ends the job before it wastes its allocation.\n\
         srun --kill-on-bad-exit=1 gptrain bench {manifest}{sets} --quick\n\
         # Before the time limit {at_limit}.\n\
         srun {kill} gptrain run {manifest}{sets}{on_end}\n",
            quoted(&folder.display().to_string()),
            quoted(&programs.display().to_string()),
        ))
    }

    /// Options of sbatch, without their dashes.
    fn sbatch_options(&self, m: &Manifest, placement: Placement) -> Vec<String> {
        let Placement { nodes, tasks, gpus } = placement;
        let mut options = vec![format!("job-name={}", slurm::job_name(&m.name))];
        match nodes {
            Some(nodes) => {
                options.extend([format!("nodes={nodes}"), format!("ntasks-per-node={tasks}")]);
            }
            None => options.push(format!("ntasks={tasks}")),
        }
        let counted = self.passed.gpus_per_node().is_some();
        options.extend((gpus && !counted).then(|| format!("gpus-per-node={tasks}")));
        let cpus = self
            .cpus_per_task
            .map(usize::from)
            .or(m.train.threads)
            .unwrap_or(CPUS);
        options.extend([format!("cpus-per-task={cpus}"), format!("time={}", self.time)]);
        options.extend((m.restart.max > 0).then(|| "no-kill".to_string()));
        options.extend(["requeue", "open-mode=append", "output=%x-%j.log"].map(str::to_string));
        // The last of two equal options counts.
        options.extend(self.passed.list());
        options
    }

    fn placement(&self, m: &Manifest) -> Result<Placement, Problems> {
        let ranks = m.topology.ranks();
        let tensor = m.topology.tensor;
        let Some(most) = self.gpus_per_node(m)? else {
            let nodes = self.nodes.map(usize::from);
            let tasks = nodes.map_or(Ok(ranks), |nodes| split_ranks(ranks, nodes))?;
            return Ok(Placement { nodes, tasks, gpus: false });
        };
        if let Some(nodes) = self.nodes.map(usize::from) {
            let tasks = split_ranks(ranks, nodes)?;
            if tasks > most {
                return Err(Problems::one(
                    "--nodes",
                    format!("{ranks} ranks on {nodes} nodes are {tasks} a node, with {most} GPUs"),
                    format!("give at least {} nodes", ranks.div_ceil(most)),
                ));
            }
            return Ok(Placement { nodes: Some(nodes), tasks, gpus: true });
        }
        // The fewest nodes; tensor parallelism inside a node, if it fits there.
        let mut all = (ranks.div_ceil(most)..=ranks).filter(|nodes| ranks.is_multiple_of(*nodes));
        let nodes = all
            .clone()
            .find(|nodes| (ranks / nodes).is_multiple_of(tensor))
            .or_else(|| all.next())
            .unwrap_or(ranks);
        Ok(Placement { nodes: Some(nodes), tasks: ranks / nodes, gpus: true })
    }

    /// GPUs per node; None if the ranks compute on the CPU.
    fn gpus_per_node(&self, m: &Manifest) -> Result<Option<usize>, Problems> {
        let hardware = m
            .plan
            .hardware
            .as_deref()
            .filter(|name| *name != hardware::CPU);
        let given = self
            .gpus_per_node
            .map(usize::from)
            .or(self.passed.gpus_per_node());
        match (m.train.device, given, hardware) {
            (DeviceChoice::Cpu, Some(_), _) => Err(Problems::one(
                "--gpus-per-node or --gres",
                "train.device is cpu",
                "leave the option out, or set train.device: cuda",
            )),
            (DeviceChoice::Cpu, None, _) | (DeviceChoice::Auto, None, None) => Ok(None),
            (_, Some(gpus), _) => Ok(Some(gpus)),
            (_, None, Some(name)) => Ok(Some(machine::find(name, "plan.hardware")?.per_node)),
            (DeviceChoice::Cuda, None, None) => Err(Problems::one(
                "--gpus-per-node",
                "train.device is cuda, but the number of GPUs per node is not set",
                "give --gpus-per-node, or plan.hardware in the manifest",
            )),
        }
    }
}

/// Ranks of each node.
fn split_ranks(ranks: usize, nodes: usize) -> Result<usize, Problems> {
    if ranks.is_multiple_of(nodes) {
        Ok(ranks / nodes)
    } else {
        Err(Problems::one(
            "--nodes",
            format!("{ranks} ranks are not divisible by {nodes} nodes"),
            "give a number of nodes that divides it, or change topology.data",
        ))
    }
}

/// Checks a time in Slurm's formats: 90, 24:00:00, 2-12:00:00.
fn check_time(text: &str) -> Result<String, String> {
    if text.is_empty()
        || !text
            .chars()
            .all(|c| c.is_ascii_digit() || c == ':' || c == '-')
    {
        return Err("write minutes (90), hours (24:00:00) or days (2-12:00:00)".to_string());
    }
    Ok(text.to_string())
}

/// Checks an option that is passed on, which begins with its name.
fn check_option(text: &str) -> Result<String, String> {
    let name = text.split('=').next().unwrap_or_default();
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    if !is_name {
        return Err("write its name without dashes before it: nice=100".to_string());
    }
    check_word(text)
}

fn check_word(text: &str) -> Result<String, String> {
    if text.is_empty() || !text.chars().all(|c| !c.is_whitespace() && !c.is_control()) {
        return Err("write one word without spaces".to_string());
    }
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(
        sets: &[&str],
        nodes: Option<usize>,
        gpus: Option<usize>,
    ) -> Result<Placement, Problems> {
        let text = "model: {layers: 12, hidden: 96, heads: 12, vocab: 64, seq_len: 16}\n\
            data: {train: none}\nbatch: {micro: 1, global: 96}\nlr: {peak: 1e-3}\ntrain: {steps: 1}\n";
        let m = manifest::for_test(text, sets);
        let nodes = nodes.and_then(NonZeroUsize::new);
        let gpus_per_node = gpus.and_then(NonZeroUsize::new);
        Resources { nodes, gpus_per_node, ..Resources::default() }.placement(&m)
    }

    #[test]
    fn nodes_and_tasks_follow_from_the_grid() {
        let grid = ["topology={tensor: 2, pipeline: 2, data: 4}"];
        let on = |nodes, tasks| Placement { nodes: Some(nodes), tasks, gpus: true };
        assert_eq!(placed(&grid, None, Some(8)).unwrap(), on(2, 8));
        assert_eq!(placed(&grid, None, Some(32)).unwrap(), on(1, 16));
        assert_eq!(placed(&grid, Some(4), Some(8)).unwrap(), on(4, 4));
        // 12 ranks do not fill nodes of eight: 2 × 6. Three to a node would cut a tensor group of two.
        assert_eq!(placed(&["topology={tensor: 2, data: 6}"], None, Some(8)).unwrap(), on(2, 6));
        assert_eq!(placed(&["topology={tensor: 2, data: 6}"], None, Some(3)).unwrap(), on(6, 2));
        assert_eq!(placed(&["topology={tensor: 4}"], None, Some(2)).unwrap(), on(2, 2));
        let h100 = [&grid[..], &["plan.hardware=h100-80g"]].concat();
        assert_eq!(placed(&h100, None, None).unwrap(), on(2, 8));
        let cpu = Placement { nodes: None, tasks: 16, gpus: false };
        assert_eq!(placed(&grid, None, None).unwrap(), cpu);
        let four = Placement { nodes: Some(4), tasks: 4, gpus: false };
        assert_eq!(placed(&grid, Some(4), None).unwrap(), four);
    }

    #[test]
    fn what_cannot_be_placed_is_an_error() {
        let says = |sets: &[&str], nodes, gpus| placed(sets, nodes, gpus).unwrap_err().to_string();
        let grid = ["topology.data=16"];
        assert!(says(&grid, Some(3), None).contains("16 ranks are not divisible by 3 nodes"));
        assert!(says(&grid, Some(1), Some(8)).contains("give at least 2 nodes"));
        assert!(says(&["train.device=cpu"], None, Some(8)).contains("train.device is cpu"));
        assert!(
            says(&["train.device=cuda"], None, None).contains("--gpus-per-node, or plan.hardw")
        );
    }
}
