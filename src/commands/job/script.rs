//! Batch script of a manifest for Slurm: nodes, tasks, GPUs and CPUs follow from its topology and
//! hardware. The job saves, leaves and requeues itself before its time limit.

use base::{Problems, shell_word as quoted};
use estimate::hardware;
use manifest::{DeviceChoice, Loaded, Manifest, OnEnd};
use std::path::Path;

/// Default CPUs of a task.
const CPUS: usize = 8;

/// User's options of a job.
#[derive(Clone, Debug, Default)]
pub struct JobRequest {
    pub nodes: Option<usize>,
    pub gpus_per_node: Option<usize>,
    pub cpus_per_task: Option<usize>,
    pub time: String,
    pub partition: Option<String>,
    pub account: Option<String>,
    /// `KEY=VALUE` that override the manifest's.
    pub sets: Vec<String>,
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

/// The script. It starts in `folder`, and finds the program in `programs`.
pub fn script(
    loaded: &Loaded,
    request: &JobRequest,
    folder: &Path,
    programs: &Path,
) -> Result<String, Problems> {
    let m = &loaded.manifest;
    let placement = placement(m, request)?;
    let t = &m.topology;
    let source = loaded.source.display().to_string();
    let manifest = quoted(&source);
    let sets: String = request
        .sets
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
    let kill =
        if m.restart.max > 0 { "--no-kill --kill-on-bad-exit=0" } else { "--kill-on-bad-exit=1" };
    let options: String = options(m, request, placement)
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
fn options(m: &Manifest, request: &JobRequest, placement: Placement) -> Vec<String> {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let Placement { nodes, tasks, gpus } = placement;
    let mut options = vec![format!("job-name={}", m.name.chars().map(plain).collect::<String>())];
    match nodes {
        Some(nodes) => {
            options.extend([format!("nodes={nodes}"), format!("ntasks-per-node={tasks}")]);
        }
        None => options.push(format!("ntasks={tasks}")),
    }
    options.extend(gpus.then(|| format!("gpus-per-node={tasks}")));
    let cpus = request.cpus_per_task.or(m.train.threads).unwrap_or(CPUS);
    options.extend([format!("cpus-per-task={cpus}"), format!("time={}", request.time)]);
    options.extend(
        request
            .partition
            .iter()
            .map(|name| format!("partition={name}")),
    );
    options.extend(request.account.iter().map(|name| format!("account={name}")));
    options.extend((m.restart.max > 0).then(|| "no-kill".to_string()));
    options.extend(["requeue", "open-mode=append", "output=%x-%j.log"].map(str::to_string));
    options
}

fn placement(m: &Manifest, request: &JobRequest) -> Result<Placement, Problems> {
    let ranks = m.topology.ranks();
    let tensor = m.topology.tensor;
    let Some(most) = gpus_per_node(m, request)? else {
        let nodes = request.nodes;
        let tasks = nodes.map_or(Ok(ranks), |nodes| split(ranks, nodes))?;
        return Ok(Placement { nodes, tasks, gpus: false });
    };
    if let Some(nodes) = request.nodes {
        let tasks = split(ranks, nodes)?;
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
    let even = |nodes: &usize| ranks.is_multiple_of(*nodes);
    let mut all = (ranks.div_ceil(most)..=ranks).filter(even);
    let nodes = all
        .clone()
        .find(|nodes| (ranks / nodes).is_multiple_of(tensor))
        .or_else(|| all.next())
        .unwrap_or(ranks);
    Ok(Placement { nodes: Some(nodes), tasks: ranks / nodes, gpus: true })
}

/// Ranks of each node.
fn split(ranks: usize, nodes: usize) -> Result<usize, Problems> {
    let what = || format!("{ranks} ranks are not divisible by {nodes} nodes");
    if ranks.is_multiple_of(nodes) {
        Ok(ranks / nodes)
    } else {
        Err(Problems::one(
            "--nodes",
            what(),
            "give a number of nodes that divides it, or change topology.data",
        ))
    }
}

/// GPUs per node; None if the ranks compute on the CPU.
fn gpus_per_node(m: &Manifest, request: &JobRequest) -> Result<Option<usize>, Problems> {
    let hardware = m
        .plan
        .hardware
        .as_deref()
        .filter(|name| *name != hardware::CPU);
    match (m.train.device, request.gpus_per_node, hardware) {
        (DeviceChoice::Cpu, Some(_), _) => Err(Problems::one(
            "--gpus-per-node",
            "train.device is cpu",
            "leave the flag out, or set train.device: cuda",
        )),
        (DeviceChoice::Cpu, None, _) | (DeviceChoice::Auto, None, None) => Ok(None),
        (_, Some(gpus), _) => Ok(Some(gpus)),
        (_, None, Some(name)) => Ok(Some(hardware::find(name, "plan.hardware")?.per_node)),
        (DeviceChoice::Cuda, None, None) => Err(Problems::one(
            "--gpus-per-node",
            "train.device is cuda, but the number of GPUs per node is not set",
            "give --gpus-per-node, or plan.hardware in the manifest",
        )),
    }
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
        placement(&m, &JobRequest { nodes, gpus_per_node: gpus, ..JobRequest::default() })
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
