//! Starting the ranks: as threads of this process, or as the one rank that a launcher made of it
//! (srun, torchrun). The only place that picks a backend.

use super::rank::Agreed;
use crate::base::Problems;
use crate::comm::tcp::{self, Join};
use crate::comm::{self, Failed, Launch, RENDEZVOUS, Watch, World, threads};
use crate::device::Backend;
use crate::device::cpu::Cpu;
use crate::device::cuda::{self, Cuda};
use crate::manifest::{DeviceChoice, Loaded, Manifest, Precision};
use anyhow::Context;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The device that the manifest asks for, and what it is called. `threads` is for the CPU.
pub fn backend(m: &Manifest, threads: Option<usize>) -> anyhow::Result<(Box<dyn Backend>, String)> {
    let options = cuda::Options { precision: m.precision, ..cuda::Options::of_machine(0) };
    let gpu = match m.train.device {
        DeviceChoice::Cpu => false,
        DeviceChoice::Cuda => true,
        // One GPU serves one rank.
        DeviceChoice::Auto => m.topology.ranks() == 1 && cuda::is_there(&options),
    };
    if gpu {
        let cuda = Cuda::open(&options)?;
        let description = cuda.description().to_string();
        return Ok((Box::new(cuda), description));
    }
    if m.precision == Precision::Tf32 {
        let what = "precision is tf32, and the device is the CPU, which cannot";
        return Err(Problems::one(m.name.as_str(), what, "--set precision=f32").into());
    }
    let cpu = Cpu::new(threads);
    let description = format!("CPU, {} threads", cpu.threads());
    Ok((Box::new(cpu), description))
}

/// The ranks that this process runs.
pub struct Crew {
    worlds: Vec<World>,
    /// Name of this machine.
    pub node: String,
    /// CPU threads of each rank.
    pub threads: usize,
    /// What the ranks are, as it is shown at the start.
    pub kind: &'static str,
}

/// The others have said why the run ends; this process has nothing to add but its exit code.
#[derive(Debug)]
pub struct Followed {
    pub code: u8,
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another rank has said why the run ends")
    }
}

impl std::error::Error for Followed {}

impl Crew {
    /// All ranks of the manifest as threads, or the one that a launcher told. `asked` is what beside
    /// the manifest must be the same for all.
    pub fn meet(loaded: &Loaded, asked: &str) -> anyhow::Result<Crew> {
        let (m, ranks) = (&loaded.manifest, loaded.manifest.topology.ranks());
        let given = |name: &str| (name == RENDEZVOUS).then(|| m.comm.rendezvous.clone()).flatten();
        let told = Launch::of(&|name| std::env::var(name).ok().or_else(|| given(name)))?;
        let alone = told.as_ref().is_none_or(|launch| launch.world == 1);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let Some(launch) = told.filter(|_| !alone) else {
            let dumps = dumps(m, &format!("process {}", std::process::id()));
            clear(&dumps);
            let threads = m.train.threads.unwrap_or(cores / ranks).max(1);
            let worlds = threads::watched(ranks, &watch(m, &dumps));
            return Ok(Crew { worlds, node: host, threads, kind: "threads of a process" });
        };
        if launch.world != ranks {
            return Err(another_world(m, launch.world).into());
        }
        let share = launch.cores.unwrap_or(cores / launch.local_world.max(1));
        let threads = m.train.threads.unwrap_or(share).max(1);
        let dumps = dumps(m, &launch.job);
        if launch.rank == 0 {
            clear(&dumps);
        }
        let identity = xxh3_64(format!("{}\n{asked}", loaded.effective).as_bytes());
        let join = Join {
            patience: Duration::from_secs_f64(m.comm.start_timeout_s),
            node: if launch.node.is_empty() { host } else { launch.node.clone() },
            ..Join::launched(&launch, &m.log.folder, identity, watch(m, &dumps))?
        };
        let worlds = vec![tcp::join(&join)?];
        if launch.rank == 0 {
            tcp::forget_secret(&m.log.folder, &launch.job); // all have met
        }
        Ok(Crew { worlds, node: join.node, threads, kind: "processes" })
    }

    /// Every rank on a thread of its own, to the end of all. What one of them gave, or why they
    /// ended: the cause, where one is known, before what it did to the others.
    pub fn run<T: Send>(
        &mut self,
        m: &Manifest,
        rank: impl Fn(&World, &dyn Backend) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<T> {
        let worlds = std::mem::take(&mut self.worlds);
        let (rank, threads) = (&rank, self.threads);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let start = |world: World| {
                let name = format!("rank {}", world.rank());
                let builder = std::thread::Builder::new().name(name).stack_size(8 << 20);
                builder.spawn_scoped(scope, move || alone(world, m, threads, rank))
            };
            let started: Vec<_> = worlds.into_iter().map(start).collect();
            started.into_iter().map(|thread| anyhow::Ok(thread?.join())).collect()
        });
        let (mut done, mut failed, mut followed) = (None, None, None);
        for outcome in outcomes {
            let outcome = outcome.context("cannot start the thread of a rank")?;
            match outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(Ok(value)) => done = Some(value),
                Err(failure) => failed = failed.or(Some(failure)),
                Ok(Err(error)) => match error.downcast::<Agreed>() {
                    Ok(Agreed { error: None, code }) => followed = Some(Followed { code }),
                    Ok(Agreed { error: Some(error), .. }) | Err(error) => return Err(error),
                },
            }
        }
        match (failed, followed, done) {
            (Some(failed), _, _) => Err(failed.into()),
            (None, Some(followed), _) => Err(followed.into()),
            (None, None, done) => done.context("no rank was started"),
        }
    }
}

/// One rank to its end. Its world ends before its memory does, into which others may write.
fn alone<T>(
    world: World,
    m: &Manifest,
    threads: usize,
    rank: &(impl Fn(&World, &dyn Backend) -> anyhow::Result<T> + Sync),
) -> Result<anyhow::Result<T>, Failed> {
    let (backend, device) = match backend(m, Some(threads)) {
        Ok(opened) => opened,
        Err(error) => return comm::catch(move || tell(&world, Err(error))),
    };
    let be = &*backend;
    comm::catch(move || {
        if world.rank() == 0 {
            println!("device: {device}");
        }
        tell(&world, rank(&world, be))
    })
}

/// The others learn of an error that they do not know of.
fn tell<T>(world: &World, ended: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &ended
        && !error.is::<Agreed>()
    {
        world.fail(&format!("{error:#}"));
    }
    ended
}

fn another_world(m: &Manifest, world: usize) -> Problems {
    let t = &m.topology;
    let what = format!(
        "{world} ranks were started; topology tensor {} × pipeline {} × data {} makes {}",
        t.tensor,
        t.pipeline,
        t.data,
        t.ranks()
    );
    let per_replica = t.tensor * t.pipeline;
    let remedy = match world.is_multiple_of(per_replica) {
        true => format!(
            "start {} (srun -n {}), or --set topology.data={}",
            t.ranks(),
            t.ranks(),
            world / per_replica
        ),
        false => format!("start {} (srun -n {})", t.ranks(), t.ranks()),
    };
    Problems::one(m.name.as_str(), what, remedy)
}

fn watch(m: &Manifest, dumps: &std::path::Path) -> Watch {
    let timeout = Duration::from_secs_f64(m.comm.timeout_s);
    Watch { dumps: Some(dumps.into()), ..Watch::new(timeout) }
}

/// A folder for this start of this job: failures of other starts stay as they are.
fn dumps(m: &Manifest, job: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    m.log.folder.join("failures").join(job.chars().map(plain).collect::<String>())
}

/// What an earlier start under the same name wrote would pass for the verdict on this one.
fn clear(dumps: &std::path::Path) {
    let _ = std::fs::remove_dir_all(dumps); // most often there is nothing
}
