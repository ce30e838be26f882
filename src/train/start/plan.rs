//! Plan of a run before its first step: seconds, days and memory, with warnings where this machine is
//! too small for it.
//!
//! On a CPU the plan is that of `gptrain estimate`, by a brief measurement of the processor. A GPU is
//! not recognised, so its seconds are planned only with `plan.hardware`.

use super::{Device, Process, Rank};
use anyhow::Result;
use base::memory::HostMemory;
use base::{Bytes, Count, Seconds};
use engine::model_dtype;
use estimate::days::plan_run;
use estimate::gptrain::dry_run::{self, Stage};
use estimate::gptrain::local_cpu::{self, Care};
use estimate::gptrain::shape_stages::ShapeStages;
use estimate::hardware::{self, CPU, Hardware};
use estimate::machine;
use estimate::setup::{Program, Setup};
use estimate::words;
use manifest::Manifest;
use tracing::subscriber::NoSubscriber;

/// Ranks per core above which a run was probably meant for other machines.
const CROWDED: usize = 4;

/// Seconds above which a run on a CPU is probably unintended.
const LONG: f64 = 86400.0;

/// Share of the machine's memory above which its use is a warning.
const FULL: f64 = 0.5;

/// Line of the log.
#[derive(Debug, PartialEq)]
enum Line {
    Info(String),
    Warning(String),
}

impl Line {
    fn say(&self) {
        match self {
            Line::Info(text) => tracing::info!("{text}"),
            Line::Warning(text) => tracing::warn!("{text}"),
        }
    }
}

/// Planned use of this machine by the rest of a run.
struct StartPlan<'a> {
    m: &'a Manifest,
    hardware: &'static Hardware,
    stages: Vec<Stage>,
    /// Seconds of a step of the whole batch.
    step: f64,
    steps: u64,
    seconds: f64,
    /// Whether the ranks are threads of this process, which share its cores.
    are_threads: bool,
}

/// Prints the plan from step `from` on, before memory is reserved. Returns the machine of the plan, with
/// which the first steps are compared; None on other ranks than the first. A collective.
pub fn announce(
    process: &Process,
    rank: &Rank,
    device: &Device,
    from: u64,
) -> Result<Option<&'static Hardware>> {
    let m = &process.loaded.manifest;
    let nodes = rank.gather(&process.node)?;
    if !rank.is_first() {
        return Ok(None);
    }
    let hardware = match device.gpu() {
        Some(_) => find_named_gpu(m),
        None => measure_this_cpu(m, process.threads * nodes.len()),
    };
    let plan = hardware.map(|hardware| {
        // Excludes the spans of the dry engine from the trace.
        tracing::subscriber::with_default(NoSubscriber::new(), || {
            StartPlan::new(process, hardware, from)
        })
    });
    match (&plan, device.gpu()) {
        (Some(plan), None) if nodes.iter().all(|node| *node == nodes[0]) => {
            plan.plan_on_cpu(cores(), HostMemory::detect().as_ref())
                .iter()
                .for_each(Line::say);
        }
        (Some(plan), Some(_)) => tracing::info!("{}", plan.plan_on_gpus(device)),
        (None, Some(_)) => tracing::info!(
            "plan: no seconds without plan.hardware, which names these GPUs (`gptrain estimate \
             --list-hardware`); they are measured in the first steps"
        ),
        (_, None) => {}
    }
    Ok(hardware)
}

/// Row of the GPUs that the manifest names.
fn find_named_gpu(m: &Manifest) -> Option<&'static Hardware> {
    let named = m.plan.hardware.as_deref().filter(|name| *name != CPU)?;
    machine::find(named, "plan.hardware").ok()
}

/// Row of this machine's processor, for this number of threads.
fn measure_this_cpu(m: &Manifest, threads: usize) -> Option<&'static Hardware> {
    let row = hardware::find(CPU, "plan.hardware").ok()?;
    let threads = Some(threads.min(cores()));
    Some(local_cpu::measure(row, model_dtype(m.precision), threads, Care::Brief).leak())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl<'a> StartPlan<'a> {
    fn new(process: &'a Process, hardware: &'static Hardware, from: u64) -> StartPlan<'a> {
        let m = &process.loaded.manifest;
        let stages = dry_run::stages(m);
        let setup = Setup::new(m, Program::Gptrain, hardware);
        let ramp = m.batch.ramp();
        let schedule = m.schedule();
        let samples = m.train.samples;
        let mut shapes = ShapeStages::new(m, stages.clone());
        let mut seconds = |setup: &Setup| shapes.seconds(setup);
        let step = seconds(&setup);
        let mut run = |samples: u64| plan_run(&schedule, samples, &setup, &mut seconds).seconds;
        let done = if from > 0 { run(ramp.samples_after(from)) } else { 0.0 };
        StartPlan {
            seconds: (run(samples) - done).max(0.0),
            steps: ramp.steps(samples).saturating_sub(from),
            step,
            stages,
            are_threads: !process.are_processes,
            hardware,
            m,
        }
    }

    /// "a step 41 ms, 300 steps in 12.3 s"
    fn time(&self, step: &str) -> String {
        let steps = Count(self.steps).with_noun("step");
        format!("a step {step}, {steps} in {}", words::span(self.seconds))
    }

    /// Plan on GPUs of the named kind.
    fn plan_on_gpus(&self, device: &Device) -> String {
        let (_, needed) = dry_run::peak(&self.stages);
        let memory = device
            .memory()
            .map_or(String::new(), |(_, all)| format!(" of {all}"));
        let basis = if self.hardware.is_unmeasured() { ", a forecast" } else { "" };
        let name = &self.hardware.name;
        let bar = dry_run::error(self.hardware, self.m.topology.ranks());
        let time = self.time(&words::with_bar(self.step, bar));
        format!("plan for {name}{basis}: {time}; {needed}{memory} on the fullest GPU")
    }

    /// Plan on this number of cores and this memory, and warnings. Other machines of the manifest are named
    /// first.
    fn plan_on_cpu(&self, cores: usize, memory: Option<&HostMemory>) -> Vec<Line> {
        let ranks = self.m.topology.ranks();
        let machine = self.m.plan.hardware.as_deref().filter(|name| *name != CPU);
        let mut lines: Vec<Line> = machine
            .map(|name| format!("plan.hardware is {name}, and this run computes on the CPU"))
            .map(Line::Warning)
            .into_iter()
            .collect();
        let needed = self.total_memory();
        let of = memory.map_or(String::new(), |memory| format!(" of {}", memory.total));
        let [ranks_text, cores_text] =
            [(ranks, "rank"), (cores, "core")].map(|(n, noun)| Count(n as u64).with_noun(noun));
        let time = self.time(&format!("of about {}", Seconds(self.step)));
        lines.push(Line::Info(format!(
            "plan: {time} if this machine is idle; {needed}{of} of memory; {ranks_text} on {cores_text}"
        )));
        if self.are_threads && ranks > CROWDED * cores {
            lines.push(Line::Warning(format!(
                "{ranks_text} share {cores_text}: fewer are as fast (topology.tensor, \
                 topology.pipeline, topology.data); `gptrain job` writes a job for other machines"
            )));
        }
        if self.seconds > LONG {
            lines.push(Line::Warning(format!(
                "the run takes {} here: `--minutes 10` makes it as short as that, and `gptrain \
                 estimate` with `--hardware h100-80g` plans it for GPUs",
                words::span(self.seconds)
            )));
        }
        if memory.is_some_and(|memory| needed.0 as f64 > FULL * memory.total.0 as f64) {
            lines.push(Line::Warning(format!(
                "it takes {needed} of this machine's memory: a smaller batch.micro, \
                 topology.recompute: full or a smaller model needs less"
            )));
        }
        lines
    }

    /// Memory of all ranks.
    fn total_memory(&self) -> Bytes {
        let on_stage = (self.m.topology.tensor * self.m.topology.data) as u64;
        let mut bytes = 0;
        for stage in &self.stages {
            let plan = &stage.memory_plan;
            bytes += on_stage * (plan.total().0 + plan.host_total().0);
        }
        Bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::memory::MemoryLimit;

    const GPT: &str = "
model: {layers: 8, hidden: 512, heads: 8, vocab: 4096, seq_len: 256}
data: {train: none}
batch: {micro: 1, global: 32}
lr: {peak: 1e-3}
train: {steps: 1000}
";

    /// Lines of a run whose steps take `step` seconds, on 2 cores and `gib` GiB of memory.
    fn lines(sets: &[&str], step: f64, gib: u64) -> Vec<Line> {
        let m = &manifest::for_test(GPT, sets);
        let stages = dry_run::stages(m);
        let hardware = hardware::find(CPU, "test").unwrap();
        let steps = 1000;
        let seconds = 1000.0 * step;
        let plan = StartPlan { m, hardware, stages, step, steps, seconds, are_threads: true };
        let [free, total] = [Bytes(gib << 30); 2];
        let limited = MemoryLimit::ByMachine;
        plan.plan_on_cpu(2, Some(&HostMemory { free, total, limited, lockable: None }))
    }

    #[test]
    fn a_plan_for_this_machine_is_one_line() {
        let lines = lines(&[], 0.05, 16);
        let [Line::Info(text)] = &lines[..] else { panic!("{lines:?}") };
        let says =
            ["a step of about 50 ms, 1,000 steps in 50.0 s", "of 16.0 GiB", "1 rank on 2 cores"];
        assert!(says.iter().all(|say| text.contains(say)), "{text}");
    }

    #[test]
    fn a_plan_for_other_machines_warns_with_the_way_out() {
        let sets = ["topology={data: 16}", "plan={hardware: h100-80g}"];
        let lines = lines(&sets, 240.0, 1);
        let warning = |at: usize, says: [&str; 2]| {
            let Some(Line::Warning(text)) = lines.get(at) else { panic!("{at}: {lines:?}") };
            assert!(says.iter().all(|say| text.contains(say)), "{text}");
        };
        warning(0, ["plan.hardware is h100-80g", "on the CPU"]);
        assert!(matches!(&lines[1], Line::Info(text) if text.contains("16 ranks on 2 cores")));
        warning(2, ["16 ranks share 2 cores", "topology.data"]);
        warning(3, ["the run takes 2.8 days here", "--minutes 10"]);
        warning(4, ["of this machine's memory", "batch.micro"]);
        assert_eq!(lines.len(), 5);
    }
}
