//! Starting the ranks: as threads of this process, or as the one rank that a launcher made of it
//! (srun, torchrun); and opening the device of each. The only place that picks a backend.

mod device;

pub use device::{Device, Seat, of_rank};

use super::rank::{Agreed, Rank};
use crate::base::Problems;
use crate::comm::tcp::{self, Join};
use crate::comm::{self, Failed, Launch, RENDEZVOUS, Watch, World, threads};
use crate::device::Dead;
use crate::manifest::{Loaded, Manifest};
use anyhow::Context;
use std::cell::OnceCell;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The ranks that this process runs.
pub struct Crew {
    worlds: Vec<(World, Seat)>,
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
        let Some(launch) = told.as_ref().filter(|_| !alone) else {
            let dumps = dumps(m, &format!("process {}", std::process::id()));
            clear(&dumps);
            let threads = m.train.threads.unwrap_or(cores / ranks).max(1);
            let seat =
                |local_rank| Seat { local_rank, local_world: ranks, process: told.is_some() };
            let worlds = threads::watched(ranks, &watch(m, &dumps));
            let worlds = worlds.into_iter().map(|world| (seat(world.rank()), world));
            let worlds = worlds.map(|(seat, world)| (world, seat)).collect();
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
            ..Join::launched(launch, &m.log.folder, identity, watch(m, &dumps))?
        };
        let (local_rank, local_world) = (launch.local_rank, launch.local_world);
        let seat = Seat { local_rank, local_world, process: true };
        let worlds = vec![(tcp::join(&join)?, seat)];
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
        rank: impl Fn(&Rank, &Device) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<T> {
        let worlds = std::mem::take(&mut self.worlds);
        let (rank, crew) = (&rank, &*self);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let start = |(world, seat): (World, Seat)| {
                let name = format!("rank {}", world.rank());
                let builder = std::thread::Builder::new().name(name).stack_size(8 << 20);
                builder.spawn_scoped(scope, move || crew.one(world, seat, m, rank))
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

impl Crew {
    /// One rank to its end. Its world ends before its memory does, into which others may write.
    fn one<T>(
        &self,
        world: World,
        seat: Seat,
        m: &Manifest,
        rank: &(impl Fn(&Rank, &Device) -> anyhow::Result<T> + Sync),
    ) -> Result<anyhow::Result<T>, Failed> {
        let opened = OnceCell::new();
        let run = |world: &World| {
            world.recorder().node(&self.node);
            let me = Rank::new(world, &m.topology);
            let device = Device::open(m, seat, Some(self.threads));
            let device = device.map_err(|problems| device::of_rank(&me, &self.node, problems));
            let device = me.all(device.map_err(anyhow::Error::from))?;
            let device = opened.get_or_init(|| device);
            device::agree(&me, m, &self.node, device)?;
            me.say(format!("device: {}", device.description()));
            rank(&me, device)
        };
        comm::catch(|| {
            let world = world;
            tell(&world, run(&world))
        })
    }
}

/// The others learn of an error that they do not know of. Of a rank whose world has failed, and of
/// one among several whose device has, that is the end, whatever it came to of it.
fn tell<T>(world: &World, ended: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &ended
        && !error.is::<Agreed>()
    {
        if let Some(failed) = world.failed() {
            failed.raise();
        }
        let Some(Dead { device, why }) = error.downcast_ref::<Dead>() else {
            world.fail(&format!("{error:#}"));
            return ended;
        };
        let why = format!("{why}; last event: {}", world.recorder().now_doing());
        let failed = world.fail(&format!("{device}: {why}"));
        if world.size() > 1 {
            failed.raise();
        }
        return Err(Dead { device: device.clone(), why }.into());
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
